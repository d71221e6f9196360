"""Which token lies in which slot of a buffer, said in a few integers however long the buffer is.

A mask is made from these and from nothing else, so they are its key among the masks of a step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Slots:
    """Slots `low` … `low + count − 1` of a buffer whose first slot was made for token `base`.

    The tokens `base` … `end − 1` were written one after another; after `ring` slots (None: never)
    they start again at the first. A slot that was not written, or whose token is `end` or later
    because it was undone, holds none.
    """

    base: int
    end: int
    low: int
    count: int
    ring: int | None = None

    def numbers(self) -> np.ndarray:
        """The token number in each slot `[count]`, −1 where there is none."""
        slots = np.arange(self.low, self.low + self.count)
        written = self.end - self.base
        if self.ring is None or written <= self.ring:
            return np.where(slots < written, self.base + slots, -1)
        return self.end - 1 - (written - 1 - slots) % self.ring

    @property
    def span(self) -> tuple[int, int] | None:
        """The least token number and one past the largest; None where a slot may hold none."""
        written = self.end - self.base
        if self.ring is not None and written > self.ring:
            return self.end - self.ring, self.end
        high = self.low + self.count
        return None if high > written else (self.base + self.low, self.base + high)


def tokens(low: int, high: int) -> Slots:
    """The tokens `low` … `high − 1` in a row."""
    return Slots(low, high, 0, high - low)
