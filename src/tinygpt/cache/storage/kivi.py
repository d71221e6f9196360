"""KIVI (Liu et al., 2024, arXiv 2402.02750): keys packed per channel, values per token.

The first `first` tokens and the last `residual` … `residual + group` ones stay in half precision,
keys and values alike. Query i reads token j packed iff j < border(i), a function of numbers alone.
Departures from the paper: its prefill attends in full precision and its residual is flushed as one
block, so there the answer depends on how a prompt is cut; here it does not, and the oldest group is
packed when residual + group tokens wait (half the divergence at the same size). Full-precision
first tokens are an addition: they halve the divergence at 4 bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from tinygpt.cache.eviction.base import Eviction
from tinygpt.cache.layout import LayerLayout
from tinygpt.cache.slots import Slots, tokens
from tinygpt.cache.step import Step, visible
from tinygpt.cache.storage.base import (
    Pair,
    Seen,
    by_name,
    front,
    pair_named,
    resized,
    write,
    write_front,
)
from tinygpt.cache.storage.packed_runs import PackedPair, PackedRuns
from tinygpt.ops.attention import View
from tinygpt.ops.quantize import quantise_k, quantise_v

TAIL_QUANTUM = 8  # tokens by which the tail grows


@dataclass(frozen=True, slots=True)
class Cut:
    """What of the sizes decides how a query reads a token: where its border is."""

    first: int
    group: int
    residual: int

    def borders(self, queries: np.ndarray) -> np.ndarray:
        """The border of each of the `queries` [T]: tokens below it are read packed."""
        waited = np.maximum(0, queries - self.first - self.residual)
        return np.asarray(self.first + self.group * (waited // self.group))


def reads_packed(step: Step, slots: Slots, cut: Cut) -> np.ndarray | None:
    """`[T, n]`: which of the packed tokens in `slots` each query reads so; None for all."""
    seen, span = visible(step, slots), slots.span
    border = int(cut.borders(np.array([step.first]))[0])  # the least of the queries' borders
    if span is not None and span[1] <= border:
        return seen
    read = slots.numbers() < cut.borders(step.numbers)[:, None]
    return read if seen is None else seen & read


def reads_half(step: Step, slots: Slots, cut: Cut | None) -> np.ndarray | None:
    """`[T, n]`: which of the tokens in `slots` each query reads unpacked; None for all.

    Without a `cut`, every token that it sees.
    """
    seen = visible(step, slots)
    if cut is None:
        return seen
    read = slots.numbers() >= cut.borders(step.numbers)[:, None]
    return read if seen is None else seen & read


@dataclass(frozen=True, slots=True)
class KIVISizes:
    """`group` and `residual` are tokens, `value_group` channels, `first` the unpacked first tokens.

    `half` is the type of what is not packed. `slack` is how many tokens may be undone.
    """

    bits: int
    group: int
    value_group: int
    residual: int
    first: int
    half: mx.Dtype
    slack: int

    def border(self, query: int) -> int:
        """The number of the first token that `query` reads in half precision after the first."""
        return self.first + self.group * (max(0, query - self.first - self.residual) // self.group)

    @property
    def cut(self) -> Cut:
        """The part that masks depend on."""
        return Cut(self.first, self.group, self.residual)

    def ring_groups(self, window: int) -> int:
        """How many packed groups the queries of a window (and those undone) can still see."""
        return max(1, -(-(window + self.slack - self.residual - 2) // self.group))

    @property
    def tail_tokens(self) -> int:
        """The most tokens that wait in half precision."""
        return self.residual + self.group + self.slack


@dataclass(frozen=True, slots=True)
class _Pending:
    """A step whose tokens are not stored yet, and the groups that it filled."""

    new: Pair
    step: Step
    packed: PackedPair | None


class KIVI:
    """See `Storage`. `_packed_end` and `_tail_start` are token numbers.

    `_held`: nothing more is packed for now.
    """

    def __init__(self, eviction: Eviction, layer: LayerLayout, sizes: KIVISizes) -> None:
        self._eviction, self._layer, self._o = eviction, layer, sizes
        window = eviction.window
        self._ring = None if window is None else sizes.ring_groups(window)
        self._runs = PackedRuns(sizes.group, sizes.bits, self._ring)
        self._packed_end = self._tail_start = sizes.first
        self._first: Pair | None = None  # [N, ≤ first, D]: the first tokens
        self._tail: Pair | None = None  # [N, capacity, D]: from token _tail_start on
        self._pending: _Pending | None = None
        self._reserved: int | None = None
        self._held = False

    def reserve(self, tokens: int | None) -> None:
        """See `Storage`."""
        self._reserved = tokens
        self._runs.reserve(None if tokens is None else self._group_of(self._o.border(tokens - 1)))

    def bytes_for(self, tokens: int) -> int:
        """See `Storage`."""
        o, dim, value_dim = self._o, self._layer.head_dim, self._layer.value_width
        if not tokens:
            return 0
        groups = self._group_of(o.border(tokens - 1))
        groups = groups if self._ring is None else min(groups, self._ring)
        waiting = max(0, tokens - max(o.first, o.border(tokens - 1 - o.slack)))
        half = min(o.first, tokens) + (self._tail_capacity(waiting, tokens) if waiting else 0)
        key_bytes = dim * (o.group * o.bits // 8 + 4)  # a float16 scale and zero a group
        value_bytes = o.group * (value_dim * o.bits // 8 + 4 * value_dim // o.value_group)
        return half * (dim + value_dim) * o.half.size + groups * (key_bytes + value_bytes)

    def arrays(self) -> dict[str, mx.array]:
        """See `Storage`."""
        pending = None if self._pending is None else self._pending.new
        pairs = {"first": self._first, "tail": self._tail, "pending": pending}
        return by_name(pairs) | self._runs.arrays()

    def load(self, arrays: Mapping[str, mx.array], seen: int, most_seen: int) -> None:
        """See `Storage`. Both borders are functions of the token numbers: rule 2."""
        o = self._o
        self._first, self._tail = pair_named(arrays, "first"), pair_named(arrays, "tail")
        self._runs.load(arrays, o.value_group)
        self._packed_end = o.border(most_seen - 1)
        self._tail_start = max(o.first, o.border(most_seen - 1 - o.slack))
        self.undo(seen)

    def undo(self, seen: int) -> None:
        """See `Storage`. A group that holds an undone token is packed anew when it is full."""
        o = self._o
        whole = o.first + o.group * (max(0, seen - o.first) // o.group)
        self._packed_end = min(self._packed_end, whole)

    def hold(self, held: bool) -> None:
        """See `Storage`."""
        self.commit()
        self._held = held

    @property
    def holds_all(self) -> bool:
        """See `Storage`."""
        return self._ring is None and self._packed_end == self._tail_start == self._o.first

    def keep(self, chosen: mx.array, seen: int) -> None:
        """See `Storage`."""
        kept = [self._gathered(which, chosen, seen) for which in (0, 1)]  # [N, m, D], [N, m, D_v]
        first, count = self._o.first, chosen.shape[1]
        self._first = kept[0][:, :first], kept[1][:, :first]
        self._tail = None
        if count > first:
            self._tail = kept[0][:, first:], kept[1][:, first:]

    def append(self, keys: mx.array, values: mx.array, step: Step) -> View:
        """See `Storage`."""
        self.commit()
        half = self._o.half
        new = keys.astype(half), values.astype(half)  # [N, T, D], [N, T, D_v]
        self._write_first(new, step)
        self._pending = pending = _Pending(new, step, self._newly_packed(new, step))
        seen = Seen()
        if step.count == 1:
            self.commit()
        self._add_first(seen, step)
        self._add_runs(seen, step)
        if step.count == 1:
            self._add_waiting(seen, step)
        else:
            self._add_chunk(seen, pending)
        return seen.view()

    def commit(self) -> None:
        """See `Storage`."""
        if self._pending is None:
            return
        pending, self._pending = self._pending, None
        if pending.packed is not None:
            self._runs.write(self._group_of(self._packed_end), pending.packed)
            self._packed_end = self._border(pending.step.end - 1)
        self._keep_tail(pending.new, pending.step)

    # --- what the queries of a step see -------------------------------------------------------

    def _add_first(self, seen: Seen, step: Step) -> None:
        """Sinks, and the other first tokens as long as some query sees them."""
        sink, end = self._eviction.sink, min(step.end, self._o.first)
        window = self._eviction.window
        for low, high in ((0, min(sink, end)), (sink, end)):
            is_sink = low < sink
            is_gone = not is_sink and window is not None and step.first - (high - 1) >= window
            if low >= high or is_gone:
                continue
            assert self._first is not None
            keys, values = (buffer[:, low:high] for buffer in self._first)
            slots = tokens(low, high)
            seen.add(keys, values, slots, step.mask(visible, slots), sink=is_sink)

    def _add_runs(self, seen: Seen, step: Step) -> None:
        """The stored runs, each with the mask of the tokens that a query sees and reads packed.

        Full runs that all queries read whole, however many, need one look; what lies above them in
        the stack (packed anew after an undo, or a ring) has a mask.
        """
        runs, per_run = self._runs, self._runs.per_run
        if runs.full is not None:
            whole = runs.full_runs
            if self._ring is None:  # what was undone of the stack is read as a run of its own
                whole = min(whole, self._group_of(self._packed_end) // per_run)
            if whole:
                stack = runs.full.map(lambda packed: packed.each(lambda array: array[:whole]))
                self._add_run(seen, stack, 0, whole * per_run, step)
            if whole < runs.full_runs and self._group_of(self._packed_end) > whole * per_run:
                rest = runs.full.map(lambda packed: packed.each(lambda array: array[whole]))
                self._add_run(seen, rest, whole * per_run, per_run, step)
        low = runs.full_runs * per_run
        if runs.newest is not None and (
            self._ring is not None or self._group_of(self._packed_end) > low
        ):
            self._add_run(seen, runs.newest, low, runs.newest_groups, step)

    def _add_run(self, seen: Seen, run: PackedPair, low: int, groups: int, step: Step) -> None:
        """`groups` groups from slot `low` on."""
        o = self._o
        ring = None if self._ring is None else self._ring * o.group
        slots = Slots(o.first, self._packed_end, low * o.group, groups * o.group, ring)
        mask = step.mask(reads_packed, slots, o.cut)
        seen.add_packed(run.keys, run.values, slots, mask)

    def _add_waiting(self, seen: Seen, step: Step) -> None:
        """The half-precision tokens that one query sees: those from its border on."""
        border = self._border(step.first)
        if border >= step.end:
            return
        assert self._tail is not None
        low, high = border - self._tail_start, step.end - self._tail_start
        keys, values = (buffer[:, low:high] for buffer in self._tail)
        seen.add(keys, values, tokens(border, step.end), None)

    def _add_chunk(self, seen: Seen, pending: _Pending) -> None:
        """Tokens that some queries read packed and others do not are there in both forms."""
        step = pending.step
        first, last = self._border(step.first), self._border(step.end - 1)
        if pending.packed is not None:
            slots = tokens(self._packed_end, last)
            mask = step.mask(reads_packed, slots, self._o.cut)
            seen.add_packed(pending.packed.keys, pending.packed.values, slots, mask)
        if step.end > first:
            slots = tokens(first, step.end)
            mask = step.mask(reads_half, slots, None if self._held else self._o.cut)
            seen.add(*self._span(first, pending.new, step), slots, mask)

    # --- what is kept -------------------------------------------------------------------------

    def _border(self, query: int) -> int:
        """As the sizes say; what is packed already stays so while no more is."""
        return self._packed_end if self._held else self._o.border(query)

    def _group_of(self, token: int) -> int:
        return (token - self._o.first) // self._o.group

    def _write_first(self, new: Pair, step: Step) -> None:
        end = min(step.end, self._o.first)
        if step.first >= end:
            return
        size = front(self._o.first, step.end, self._reserved)
        self._first = write_front(self._first, new, step, end, size)

    def _newly_packed(self, new: Pair, step: Step) -> PackedPair | None:
        """The groups between what is packed and the last query's border."""
        o, start = self._o, self._packed_end
        count = self._border(step.end - 1) - start
        if count <= 0:
            return None
        keys, values = (array[:, :count] for array in self._span(start, new, step))
        return PackedPair(
            quantise_k(keys, o.group, o.bits),  # words [N, D, count·bits/32]
            quantise_v(values, o.value_group, o.bits),  # words [N, count, D_v·bits/32]
        )

    def _span(self, start: int, new: Pair, step: Step) -> Pair:
        """Tokens `start` … `step.end − 1` in half precision, from the tail and the step."""
        skip = max(0, start - step.first)
        keys, values = (source[:, skip:] for source in new)
        if start >= step.first:
            return keys, values
        assert self._tail is not None
        low, high = start - self._tail_start, step.first - self._tail_start
        old_keys, old_values = (buffer[:, low:high] for buffer in self._tail)
        return (
            mx.concatenate([old_keys, keys], axis=1),
            mx.concatenate([old_values, values], axis=1),
        )

    def _keep_tail(self, new: Pair, step: Step) -> None:
        """Keep what is not packed, and what an undo could bring back."""
        o = self._o
        unpacked = min(self._border(step.end - 1), o.border(step.end - 1 - o.slack))
        start = max(self._tail_start, unpacked)
        count = step.end - start
        if count <= 0:
            return
        appended = step.count == 1 and start == self._tail_start and self._tail is not None
        if appended and self._tail is not None and count <= self._tail[0].shape[1]:
            for buffer, source in zip(self._tail, new, strict=True):
                write(buffer, 1, count - 1, source)
            return
        self._tail = resized(self._span(start, new, step), self._tail_capacity(count, step.end))
        self._tail_start = start

    def _tail_capacity(self, count: int, end: int) -> int:
        """Room for `count` waiting tokens; a bounded cache's only grows, and is soon constant."""
        needed = count if self._ring is None else end - self._o.first
        room = -(-needed // TAIL_QUANTUM) * TAIL_QUANTUM
        return max(count, min(self._o.tail_tokens, room))

    def _gathered(self, which: int, chosen: mx.array, seen: int) -> mx.array:
        """`chosen` [N, m] of all keys (0) or values (1), `[N, m, …]`; nothing is packed."""
        first, waiting = min(seen, self._o.first), max(0, seen - self._o.first)
        pieces = []
        for pair, count in ((self._first, first), (self._tail, waiting)):
            if count:
                assert pair is not None
                pieces.append(pair[which][:, :count])
        whole = mx.concatenate(pieces, axis=1)
        return mx.take_along_axis(whole, chosen[..., None], axis=1)
