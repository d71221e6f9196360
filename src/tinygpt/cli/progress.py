"""A progress line on stderr, on a terminal only and only where there is something to wait for."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tqdm import tqdm

LONG = 1_000  # tokens; fewer are over before a progress line helps


class Progress:
    """One line that counts tokens up to `total` (None: unlimited) and goes away when it is reached.

    It shows nothing for `LONG` tokens or fewer, or when `shown` is false.
    """

    def __init__(self, what: str, total: int | None, shown: bool) -> None:
        self._what = what
        self._total = total
        self._shown = shown and (total is None or total > LONG)
        self._bar: tqdm[object] | None = None

    def reach(self, tokens: int) -> None:
        """`tokens` are done by now; the first call makes the line appear."""
        if not self._shown:
            return
        if self._bar is None:
            self._bar = self._appear()
        self._bar.update(tokens - self._bar.n)
        if tokens == self._total:
            self.close()

    def close(self) -> None:
        """Wipe the line, for good."""
        self._shown = False
        if self._bar is not None:
            self._bar.close()

    def _appear(self) -> tqdm[object]:
        from tqdm import tqdm

        return tqdm(
            total=self._total,
            desc=self._what,
            unit=" tokens",
            leave=False,
            file=sys.stderr,
            ncols=None if _columns() else 80,  # tqdm prints nothing on a terminal without a size
        )


def _columns() -> int:
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns
    except (OSError, ValueError):
        return 0


def stderr_is_terminal() -> bool:
    """True when a person may be watching stderr."""
    return sys.stderr is not None and sys.stderr.isatty()
