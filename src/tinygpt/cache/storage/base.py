"""The contract of a storage, and how its buffers grow.

A storage belongs to one layer. It takes rotated keys `[N, T, D]` and values `[N, T, D_v]`, N being
batch × kv-heads, and says what the queries of the same step attend to. Token numbers decide
everything; a buffer is never handed out, only parts of it for the step at hand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import mlx.core as mx
import numpy as np

from tinygpt.cache.slots import Slots
from tinygpt.cache.step import Step
from tinygpt.ops.attention import PartsView, View
from tinygpt.ops.parts import DensePart, PackedPart, Part
from tinygpt.ops.quantize import Packed

Pair = tuple[mx.array, mx.array]  # keys [N, tokens, D] and values [N, tokens, D_v]


class Storage(Protocol):
    """Keeps one layer's tokens. `seen` tokens have been appended and not undone."""

    def append(self, keys: mx.array, values: mx.array, step: Step) -> View:
        """Take the step's keys and values; what the step's queries attend to."""
        ...

    def commit(self) -> None:
        """Store what the last step left pending: evict and pack. Idempotent."""
        ...

    def undo(self, seen: int) -> None:
        """Forget the tokens from number `seen` on; the caller checks that slack covers them."""
        ...

    def reserve(self, tokens: int | None) -> None:
        """No more than `tokens` are expected in all: do not grow past what they need."""
        ...

    def hold(self, held: bool) -> None:
        """While `held`, tokens stay as they came: nothing more is packed until that ends."""
        ...

    def keep(self, chosen: mx.array, seen: int) -> None:
        """Keep of the `seen` tokens only `chosen` [N, m], m for each row; they are 0 … m − 1 now.

        Asked only of a storage that `holds_all`.
        """
        ...

    @property
    def holds_all(self) -> bool:
        """Whether every token is there, unpacked, and none is ever evicted."""
        ...

    def bytes_for(self, tokens: int) -> int:
        """Bytes that a kv-head's buffers have after `tokens`, if that many were reserved."""
        ...

    def arrays(self) -> dict[str, mx.array]:
        """Every allocated buffer by name; names of packed codes contain `packed`."""
        ...

    def load(self, arrays: Mapping[str, mx.array], seen: int, most_seen: int) -> None:
        """Go on from another storage's `arrays`, all committed: all else follows from two numbers.

        `seen` tokens were appended and not undone, `most_seen` at the most so far.
        """
        ...


@dataclass(slots=True)
class Seen:
    """What a step's queries see, part by part, and the slots that say which tokens those are."""

    parts: list[Part] = field(default_factory=list)
    slots: list[Slots] = field(default_factory=list)

    def add(
        self,
        keys: mx.array,
        values: mx.array,
        slots: Slots,
        mask: mx.array | None,
        *,
        sink: bool = False,
    ) -> None:
        """Tokens in a float type."""
        self.parts.append(DensePart(keys, values, mask, sink))
        self.slots.append(slots)

    def add_packed(self, keys: Packed, values: Packed, slots: Slots, mask: mx.array | None) -> None:
        """Packed tokens, of one run or of several."""
        self.parts.append(PackedPart(keys, values, mask))
        self.slots.append(slots)

    def view(self) -> PartsView:
        """All of it."""
        return PartsView(self.parts, self._numbers)

    def _numbers(self) -> np.ndarray:
        return np.concatenate([slots.numbers() for slots in self.slots])


def front(size: int, end: int, reserved: int | None) -> int:
    """Room for the first `size` tokens once `end` are there: no more than a text of `reserved`."""
    return size if reserved is None else min(size, max(end, reserved))


def by_name(pairs: dict[str, Pair | None]) -> dict[str, mx.array]:
    """The arrays of named pairs of keys and values, for `Storage.arrays`."""
    return {
        f"{name}_{what}": array
        for name, pair in pairs.items()
        if pair is not None
        for what, array in zip(("keys", "values"), pair, strict=True)
    }


def pair_named(arrays: Mapping[str, mx.array], name: str) -> Pair | None:
    """The pair that `by_name` gave this name, None where there was none."""
    if f"{name}_keys" not in arrays:
        return None
    return arrays[f"{name}_keys"], arrays[f"{name}_values"]


def write_front(buffers: Pair | None, new: Pair, step: Step, end: int, size: int) -> Pair:
    """`buffers` of `size` tokens, made or widened, with the step's tokens below number `end`."""
    if buffers is None:
        buffers = zeros(new, size)
    elif size > buffers[0].shape[1]:
        buffers = resized(buffers, size)
    for buffer, source in zip(buffers, new, strict=True):
        write(buffer, 1, step.first, source[:, : end - step.first])
    return buffers


def zeros(like: Pair, size: int) -> Pair:
    """Empty buffers for `size` tokens of the widths and types of `like`."""
    keys, values = (mx.zeros((a.shape[0], size, a.shape[2]), a.dtype) for a in like)
    return keys, values


def resized(buffers: Pair, size: int) -> Pair:
    """New buffers with room for `size` tokens, which begin with what was in `buffers`."""
    keys, values = (widened(buffer, 1, size) for buffer in buffers)
    return keys, values


def grown(capacity: int, needed: int, quantum: int, limit: int | None) -> int:
    """The capacity to allocate when `needed` exceeds `capacity`: a multiple of `quantum`.

    Growth by a sixteenth keeps the waste small and copies a token 16 times in all, however long the
    text. `limit` is what is expected at most: it is not passed while `needed` fits; once `needed`
    has passed it, it was wrong, and growing by what is needed would copy all at every token.
    """
    wanted = -(-max(needed, capacity + capacity // 16) // quantum) * quantum
    return wanted if limit is None or needed > limit else min(wanted, limit)


def write(buffer: mx.array, axis: int, start: int, new: mx.array) -> None:
    """Put `new` into `buffer` in place, from `start` on along `axis`."""
    if new.shape == buffer.shape:
        new = _owned(new)
    end = start + new.shape[axis]
    buffer[(slice(None),) * axis + (slice(start, end),)] = new


def _owned(array: mx.array) -> mx.array:
    """The same values in a buffer of their own.

    MLX gives back the source itself where an assignment or a concatenation covers all of it; that
    may be a slice, which would keep the far larger buffer of a whole prompt chunk alive unseen.
    """
    return array + mx.zeros((), array.dtype)


def widened(buffer: mx.array, axis: int, size: int) -> mx.array:
    """A new array whose `axis` has `size` entries: those of `buffer`, then zeros."""
    shape = list(buffer.shape)
    if shape[axis] == size:
        return _owned(buffer)
    shape[axis] = size - shape[axis]
    return mx.concatenate([buffer, mx.zeros(shape, buffer.dtype)], axis=axis)
