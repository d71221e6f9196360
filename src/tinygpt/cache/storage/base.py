"""The contract of a storage, and how its buffers grow.

A storage belongs to one layer. It takes rotated keys and values `[N, T, D]` (N = batch × kv-heads)
and says what the queries of the same step attend to. Token numbers decide everything; a buffer is
never handed out, only parts of it for the step at hand.
"""

from __future__ import annotations

from typing import Protocol

import mlx.core as mx

from tinygpt.cache.step import Step
from tinygpt.ops.attention import View

Pair = tuple[mx.array, mx.array]  # keys and values, each [N, tokens, D]


class Storage(Protocol):
    """Keeps one layer's tokens. `seen` tokens have been appended and not undone."""

    def append(self, keys: mx.array, values: mx.array, step: Step) -> View:
        """Take the step's keys and values `[N, T, D]`; what the step's queries attend to."""
        ...

    def commit(self) -> None:
        """Store what the last step left pending: evict and pack. Idempotent."""
        ...

    def undo(self, seen: int) -> None:
        """Forget the tokens from number `seen` on; the caller checks that slack covers them."""
        ...

    def reserve(self, tokens: int) -> None:
        """No more than `tokens` are expected in all: do not grow past what they need."""
        ...

    def bytes_for(self, tokens: int) -> int:
        """Bytes that a kv-head's buffers have after `tokens`, if that many were reserved."""
        ...

    def arrays(self) -> dict[str, mx.array]:
        """Every allocated buffer by name; names of packed codes contain `packed`."""
        ...


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


def write_front(buffers: Pair | None, new: Pair, step: Step, end: int, size: int) -> Pair:
    """`buffers` of `size` tokens, made or widened, with the step's tokens below number `end`."""
    if buffers is None:
        n_rows, _, dim = new[0].shape
        keys, values = (mx.zeros((n_rows, size, dim), source.dtype) for source in new)
    elif size > buffers[0].shape[1]:
        keys, values = (widened(buffer, 1, size) for buffer in buffers)
    else:
        keys, values = buffers
    for buffer, source in zip((keys, values), new, strict=True):
        write(buffer, 1, step.first, source[:, : end - step.first])
    return keys, values


def grown(capacity: int, needed: int, quantum: int, limit: int | None) -> int:
    """The capacity to allocate when `needed` exceeds `capacity`: a multiple of `quantum`.

    Growth by a sixteenth keeps the waste small and copies a token 16 times in all, however long the
    text. `limit` is what is expected at most: it is not passed while `needed` fits.
    """
    wanted = -(-max(needed, capacity + capacity // 16) // quantum) * quantum
    return wanted if limit is None else max(needed, min(wanted, limit))


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
