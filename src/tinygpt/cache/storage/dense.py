"""Tokens as they are, in one float type: a growing array, or sinks and a ring.

The ring holds the last `window + slack` tokens; token j lies in slot (j − sink) mod capacity, so a
kept token is never moved or rewritten.
"""

from __future__ import annotations

import mlx.core as mx
import numpy as np

from tinygpt.cache.eviction.base import Eviction
from tinygpt.cache.step import Step
from tinygpt.cache.storage.base import by_name, front, grown, widened, write, write_front
from tinygpt.ops.attention import DenseView, PartsView, View
from tinygpt.ops.parts import DensePart, Part

QUANTUM = 32  # tokens by which buffers grow at least
BLOCK = 1024  # tokens that are made float32 together when they are stored in another type


class Dense:
    """See `Storage`. `fused` says that the stored type is the compute type: one call attends."""

    def __init__(
        self, eviction: Eviction, head_dim: int, dtype: mx.Dtype, *, slack: int, fused: bool
    ) -> None:
        self._eviction, self._head_dim, self._dtype = eviction, head_dim, dtype
        self._fused = fused and eviction.window is None
        self._sink = eviction.sink
        self._ring = None if eviction.window is None else eviction.window + slack
        self._limit: int | None = self._ring
        self._slack = slack
        self._reserved: int | None = None
        self._sinks: tuple[mx.array, mx.array] | None = None
        self._kept: tuple[mx.array, mx.array] | None = None
        self._pending: tuple[mx.array, mx.array, Step] | None = None

    def reserve(self, tokens: int) -> None:
        """See `Storage`."""
        self._reserved = tokens
        if self._ring is None:
            self._limit = tokens
        else:
            self._limit = max(1, min(self._ring, tokens - self._sink))

    def bytes_for(self, tokens: int) -> int:
        """See `Storage`."""
        kept = max(0, tokens - self._sink)
        kept = kept if self._ring is None else min(kept, self._ring)
        return 2 * (min(self._sink, tokens) + kept) * self._head_dim * self._dtype.size

    def arrays(self) -> dict[str, mx.array]:
        """See `Storage`."""
        pending = None if self._pending is None else self._pending[:2]
        return by_name({"sink": self._sinks, "kept": self._kept, "pending": pending})

    def undo(self, seen: int) -> None:
        """See `Storage`. Slots are labelled by token numbers, so there is nothing to change."""

    def append(self, keys: mx.array, values: mx.array, step: Step) -> View:
        """See `Storage`."""
        self.commit()
        keys, values = keys.astype(self._dtype), values.astype(self._dtype)
        if self._sink and step.first < self._sink:
            self._write_sinks(keys, values, step)
        # Overwriting the ring first is right as long as it drops no token that a query still sees.
        if self._ring is None or step.count <= 1 + self._slack:
            self._write(keys, values, step)
            return self._view(step.end, step)
        self._pending = keys, values, step
        parts = self._parts(step.first, step)
        fresh = DensePart(keys, values, self._mask("fresh", step.numbers, step, skip_sinks=True))
        return PartsView([*parts, fresh])

    def commit(self) -> None:
        """See `Storage`."""
        if self._pending is not None:
            keys, values, step = self._pending
            self._pending = None
            self._write(keys, values, step)

    def _write_sinks(self, keys: mx.array, values: mx.array, step: Step) -> None:
        size = front(self._sink, step.end, self._reserved)
        end = min(step.end, self._sink)
        self._sinks = write_front(self._sinks, (keys, values), step, end, size)

    def _write(self, keys: mx.array, values: mx.array, step: Step) -> None:
        """Put the step's tokens, sinks left out, into their slots."""
        ring = self._ring or step.end
        first = max(step.first, self._sink, step.end - ring)
        if first >= step.end:
            return
        self._make_room(keys.shape[0], min(step.end - self._sink, ring))
        assert self._kept is not None
        while first < step.end:  # at most twice: up to the ring's end, then from its start
            slot = (first - self._sink) % ring
            count = min(step.end - first, ring - slot)
            offset = first - step.first
            for buffer, new in zip(self._kept, (keys, values), strict=True):
                write(buffer, 1, slot, new[:, offset : offset + count])
            first += count

    def _make_room(self, n_rows: int, needed: int) -> None:
        capacity = 0 if self._kept is None else self._kept[0].shape[1]
        if needed <= capacity:
            return
        size = grown(capacity, needed, QUANTUM, self._limit)
        if self._kept is None:
            self._kept = _zeros(n_rows, size, self._head_dim, self._dtype)
        else:
            keys, values = self._kept
            self._kept = widened(keys, 1, size), widened(values, 1, size)

    def _view(self, end: int, step: Step) -> View:
        if self._fused:
            assert self._kept is not None
            keys, values = self._kept
            return DenseView(keys[:, :end], values[:, :end])
        return PartsView(self._parts(end, step))

    def _parts(self, end: int, step: Step) -> list[Part]:
        """The stored tokens below number `end`, as the step's queries see them."""
        parts: list[Part] = []
        sinks = min(step.end, self._sink)  # they are written at once, whatever is pending
        if sinks:
            assert self._sinks is not None
            keys, values = self._sinks
            mask = self._mask("sinks", np.arange(sinks), step)
            parts.append(DensePart(keys[:, :sinks], values[:, :sinks], mask, sink=True))
        numbers = self._numbers(end)
        for low in range(0, len(numbers), BLOCK):
            block = numbers[low : low + BLOCK]
            mask = self._mask(("kept", low), block, step)
            assert self._kept is not None
            keys, values = (buffer[:, low : low + len(block)] for buffer in self._kept)
            parts.append(DensePart(keys, values, mask))
        return parts

    def _numbers(self, end: int) -> np.ndarray:
        """The number of the token in each slot in use once all below `end` are written."""
        count = max(0, end - self._sink)
        if self._ring is None or count <= self._ring:
            return np.arange(self._sink, self._sink + count)
        slots = np.arange(self._ring)
        last = end - 1 - self._sink
        return self._sink + last - (last - slots) % self._ring

    def _mask(
        self, name: object, numbers: np.ndarray, step: Step, *, skip_sinks: bool = False
    ) -> mx.array | None:
        def build() -> np.ndarray:
            visible = self._eviction.visible(step.numbers, numbers)
            return visible & (numbers >= self._sink) if skip_sinks else visible

        return step.mask(name, build)


def _zeros(n_rows: int, tokens: int, dim: int, dtype: mx.Dtype) -> tuple[mx.array, mx.array]:
    return mx.zeros((n_rows, tokens, dim), dtype), mx.zeros((n_rows, tokens, dim), dtype)
