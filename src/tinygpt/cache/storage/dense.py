"""Tokens as they are, in one float type: a growing array, or sinks and a ring.

The ring holds the last `window + slack` tokens; token j lies in slot (j − sink) mod capacity, so a
kept token is never moved or rewritten.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import mlx.core as mx

from tinygpt.cache.eviction.base import Eviction
from tinygpt.cache.layout import LayerLayout
from tinygpt.cache.slots import Slots, tokens
from tinygpt.cache.step import Step, visible
from tinygpt.cache.storage.base import (
    Pair,
    Seen,
    by_name,
    front,
    grown,
    pair_named,
    resized,
    write,
    write_front,
    zeros,
)
from tinygpt.ops.attention import DenseView, View

QUANTUM = 32  # tokens by which buffers grow at least


@dataclass(frozen=True, slots=True)
class _Pending:
    """A step whose tokens are not in the ring yet."""

    new: Pair
    step: Step


class Dense:
    """See `Storage`. `fused` says that the stored type is the compute type: one call attends."""

    def __init__(
        self, eviction: Eviction, layer: LayerLayout, dtype: mx.Dtype, *, slack: int, fused: bool
    ) -> None:
        self._eviction, self._layer, self._dtype = eviction, layer, dtype
        self._fused = fused and eviction.window is None
        self._sink = eviction.sink
        self._ring = None if eviction.window is None else eviction.window + slack
        self._slack = slack
        self._reserved: int | None = None
        self._sinks: Pair | None = None
        self._kept: Pair | None = None
        self._pending: _Pending | None = None

    def reserve(self, tokens: int | None) -> None:
        """See `Storage`."""
        self._reserved = tokens

    def bytes_for(self, tokens: int) -> int:
        """See `Storage`."""
        kept = max(0, tokens - self._sink)
        kept = kept if self._ring is None else min(kept, self._ring)
        width = self._layer.head_dim + self._layer.value_width
        return (min(self._sink, tokens) + kept) * width * self._dtype.size

    def arrays(self) -> dict[str, mx.array]:
        """See `Storage`."""
        pending = None if self._pending is None else self._pending.new
        return by_name({"sink": self._sinks, "kept": self._kept, "pending": pending})

    def load(self, arrays: Mapping[str, mx.array], seen: int, most_seen: int) -> None:
        """See `Storage`. Slots are labelled by token numbers alone."""
        self._sinks, self._kept = pair_named(arrays, "sink"), pair_named(arrays, "kept")

    def undo(self, seen: int) -> None:
        """See `Storage`. Slots are labelled by token numbers, so there is nothing to change."""

    def hold(self, held: bool) -> None:
        """See `Storage`. Nothing is ever packed here."""

    @property
    def holds_all(self) -> bool:
        """See `Storage`."""
        return self._ring is None

    def keep(self, chosen: mx.array, seen: int) -> None:
        """See `Storage`."""
        assert self._kept is not None and self._ring is None
        index = chosen[..., None]  # [N, m, 1]
        keys, values = (mx.take_along_axis(buffer, index, axis=1) for buffer in self._kept)
        self._kept = keys, values

    def append(self, keys: mx.array, values: mx.array, step: Step) -> View:
        """See `Storage`."""
        self.commit()
        new = keys.astype(self._dtype), values.astype(self._dtype)  # [N, T, D], [N, T, D_v]
        if step.first < self._sink:
            size = front(self._sink, step.end, self._reserved)
            self._sinks = write_front(self._sinks, new, step, min(step.end, self._sink), size)
        # Overwriting the ring first is right as long as it drops no token that a query still sees.
        if self._ring is None or step.count <= 1 + self._slack:
            self._write(new, step)
            return self._view(step)
        self._pending = _Pending(new, step)
        seen = self._ring_seen(step.first, step)
        skip = max(0, min(self._sink, step.end) - step.first)  # sinks among the new: seen above
        if skip < step.count:
            fresh = tokens(step.first + skip, step.end)
            late_keys, late_values = (array[:, skip:] for array in new)
            seen.add(late_keys, late_values, fresh, step.mask(visible, fresh))
        return seen.view()

    def commit(self) -> None:
        """See `Storage`."""
        if self._pending is not None:
            pending, self._pending = self._pending, None
            self._write(pending.new, pending.step)

    def _view(self, step: Step) -> View:
        """Everything that is stored, the step's own tokens included."""
        if self._ring is not None:
            return self._ring_seen(step.end, step).view()
        assert self._kept is not None
        keys, values = self._kept
        if self._fused:
            everything = tokens(0, step.end)
            return DenseView(keys[:, : step.end], values[:, : step.end], everything.numbers)
        # One query sees all; of several, all see the tokens before them: only the rest has a mask.
        cut = step.end if step.count == 1 else step.first
        seen = Seen()
        for low, high in ((0, cut), (cut, step.end)):
            if low < high:
                part = tokens(low, high)
                seen.add(keys[:, low:high], values[:, low:high], part, step.mask(visible, part))
        return seen.view()

    def _ring_seen(self, end: int, step: Step) -> Seen:
        """The stored tokens below number `end`, as the step's queries see them."""
        seen = Seen()
        sinks = min(step.end, self._sink)  # they are written at once, whatever is pending
        if sinks:
            assert self._sinks is not None
            keys, values = (buffer[:, :sinks] for buffer in self._sinks)
            first = tokens(0, sinks)
            seen.add(keys, values, first, step.mask(visible, first), sink=True)
        count = max(0, end - self._sink)
        count = count if self._ring is None else min(count, self._ring)
        if count:
            assert self._kept is not None
            slots = Slots(self._sink, end, 0, count, self._ring)
            keys, values = (buffer[:, :count] for buffer in self._kept)
            seen.add(keys, values, slots, step.mask(visible, slots))
        return seen

    def _write(self, new: Pair, step: Step) -> None:
        """Put the step's tokens, sinks left out, into their slots."""
        ring = self._ring or step.end
        first = max(step.first, self._sink, step.end - ring)
        if first >= step.end:
            return
        self._make_room(new, min(step.end - self._sink, ring))
        assert self._kept is not None
        while first < step.end:  # at most twice: up to the ring's end, then from its start
            slot = (first - self._sink) % ring
            count = min(step.end - first, ring - slot)
            offset = first - step.first
            for buffer, source in zip(self._kept, new, strict=True):
                write(buffer, 1, slot, source[:, offset : offset + count])
            first += count

    def _make_room(self, new: Pair, needed: int) -> None:
        capacity = 0 if self._kept is None else self._kept[0].shape[1]
        if needed <= capacity:
            return
        size = grown(capacity, needed, QUANTUM, self._limit())
        self._kept = zeros(new, size) if self._kept is None else resized(self._kept, size)

    def _limit(self) -> int | None:
        """The most slots that are going to be needed, as far as that is known."""
        known = [] if self._ring is None else [self._ring]
        if self._reserved is not None:
            known.append(max(1, self._reserved - self._sink))
        return min(known, default=None)
