"""KIVI (Liu et al., 2024, arXiv 2402.02750): keys packed per channel, values per token.

The first `first` tokens and the last `residual` … `residual + group` ones stay in half precision,
keys and values alike. Query i reads token j packed iff j < border(i), a function of numbers alone.
Departures from the paper: its prefill attends in full precision and its residual is flushed as one
block, so there the answer depends on how a prompt is cut; here it does not, and the oldest group is
packed when residual + group tokens wait (half the divergence at the same size). Full-precision
first tokens are an addition: they halve the divergence at 4 bits.
"""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from tinygpt.cache.eviction.base import Eviction
from tinygpt.cache.step import Step
from tinygpt.cache.storage.base import Pair, by_name, front, widened, write, write_front
from tinygpt.cache.storage.packed_runs import PackedRuns
from tinygpt.ops.attention import PartsView, View
from tinygpt.ops.parts import DensePart, PackedPart, Part
from tinygpt.ops.quantize import Packed, quantise_k, quantise_v

TAIL_QUANTUM = 8  # tokens by which the tail grows


@dataclass(frozen=True, slots=True)
class KIVIOptions:
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

    def borders(self, queries: np.ndarray) -> np.ndarray:
        """`border` of each of the `queries` [T]."""
        waited = np.maximum(0, queries - self.first - self.residual)
        return np.asarray(self.first + self.group * (waited // self.group))

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
    packed: tuple[Packed, Packed] | None


class KIVI:
    """See `Storage`. `_packed_end` and `_tail_start` are token numbers."""

    def __init__(self, eviction: Eviction, head_dim: int, options: KIVIOptions) -> None:
        self._eviction, self._head_dim, self._o = eviction, head_dim, options
        window = eviction.window
        self._ring = None if window is None else options.ring_groups(window)
        self._runs = PackedRuns(options.group, options.bits, self._ring)
        self._packed_end = self._tail_start = options.first
        self._first: Pair | None = None
        self._tail: Pair | None = None
        self._pending: _Pending | None = None
        self._reserved: int | None = None

    def reserve(self, tokens: int) -> None:
        """See `Storage`."""
        o = self._o
        self._reserved = tokens
        self._runs.reserve((o.border(tokens - 1) - o.first) // o.group)

    def bytes_for(self, tokens: int) -> int:
        """See `Storage`."""
        o, dim = self._o, self._head_dim
        if not tokens:
            return 0
        border = o.border(tokens - 1)
        groups = (border - o.first) // o.group
        groups = groups if self._ring is None else min(groups, self._ring)
        waiting = max(0, tokens - max(o.first, o.border(tokens - 1 - o.slack)))
        half = min(o.first, tokens) + (self._tail_capacity(waiting, tokens) if waiting else 0)
        key_bytes = dim * (o.group * o.bits // 8 + 4)  # a float16 scale and zero a group
        value_bytes = o.group * (dim * o.bits // 8 + 4 * dim // o.value_group)
        return 2 * half * dim * o.half.size + groups * (key_bytes + value_bytes)

    def arrays(self) -> dict[str, mx.array]:
        """See `Storage`."""
        pending = None if self._pending is None else self._pending.new
        pairs = {"first": self._first, "tail": self._tail, "pending": pending}
        return by_name(pairs) | self._runs.arrays()

    def undo(self, seen: int) -> None:
        """See `Storage`. A group that holds an undone token is packed anew when it is full."""
        o = self._o
        whole = o.first + o.group * (max(0, seen - o.first) // o.group)
        self._packed_end = min(self._packed_end, whole)

    def append(self, keys: mx.array, values: mx.array, step: Step) -> View:
        """See `Storage`."""
        self.commit()
        new = keys.astype(self._o.half), values.astype(self._o.half)
        self._write_first(new, step)
        self._pending = pending = _Pending(new, step, self._newly_packed(new, step))
        if step.count == 1:
            self.commit()
            own = self._waiting_part(step)
        else:
            own = self._chunk_parts(pending)
        return PartsView([*self._first_parts(step), *self._run_parts(step), *own])

    def commit(self) -> None:
        """See `Storage`."""
        if self._pending is None:
            return
        pending, self._pending = self._pending, None
        if pending.packed is not None:
            self._runs.write(self._group_of(self._packed_end), *pending.packed)
            self._packed_end = self._o.border(pending.step.end - 1)
        self._keep_tail(pending.new, pending.step)

    # --- what the queries of a step see -------------------------------------------------------

    def _first_parts(self, step: Step) -> list[Part]:
        """Sinks, and the other first tokens as long as some query sees them."""
        sink, end = self._eviction.sink, min(step.end, self._o.first)
        parts: list[Part] = []
        for low, high in ((0, min(sink, end)), (sink, end)):
            visible = self._eviction.visible(step.numbers, np.arange(low, high))
            if visible.any():
                assert self._first is not None
                mask = step.mask(("first", low), visible.copy)
                keys, values = (buffer[:, low:high] for buffer in self._first)
                parts.append(DensePart(keys, values, mask, sink=low < sink))
        return parts

    def _run_parts(self, step: Step) -> list[Part]:
        """The stored runs, each with the mask of the tokens that a query sees and reads packed."""
        return [
            PackedPart(run.keys, run.values, self._run_mask(at, step))
            for at, run in enumerate(self._runs.runs)
        ]

    def _run_mask(self, at: int, step: Step) -> mx.array | None:
        groups = self._group_of(self._packed_end)
        numbers = self._runs.numbers(self._runs.runs[at], groups)
        return step.mask(("run", at), lambda: self._reads_packed(step, numbers))

    def _waiting_part(self, step: Step) -> list[Part]:
        """The half-precision tokens that one query sees: those from its border on."""
        border = self._o.border(step.first)
        if border >= step.end:
            return []
        assert self._tail is not None
        low, high = border - self._tail_start, step.end - self._tail_start
        keys, values = (buffer[:, low:high] for buffer in self._tail)
        return [DensePart(keys, values)]

    def _chunk_parts(self, pending: _Pending) -> list[Part]:
        """Tokens that some queries read packed and others do not are there in both forms."""
        step, parts = pending.step, list[Part]()
        first, last = self._o.border(step.first), self._o.border(step.end - 1)
        if pending.packed is not None:
            groups = np.arange(self._group_of(self._packed_end), self._group_of(last))
            mask = step.mask("new", lambda: self._reads_packed(step, groups))
            parts.append(PackedPart(*pending.packed, mask))
        if step.end > first:
            numbers = np.arange(first, step.end)
            mask = step.mask("span", lambda: self._reads_half(step, numbers))
            parts.append(DensePart(*self._span(first, pending.new, step), mask))
        return parts

    def _reads_packed(self, step: Step, groups: np.ndarray) -> np.ndarray:
        """`[T, n]`: which tokens of the numbered `groups` (−1: none) a query reads packed."""
        o = self._o
        numbers = (o.first + o.group * groups[:, None] + np.arange(o.group)).reshape(-1)
        numbers = np.where(np.repeat(groups, o.group) < 0, -1, numbers)
        visible = self._eviction.visible(step.numbers, numbers)
        return visible & (numbers < o.borders(step.numbers)[:, None])

    def _reads_half(self, step: Step, numbers: np.ndarray) -> np.ndarray:
        """`[T, n]`: which tokens, the first left out, a query reads in half precision."""
        visible = self._eviction.visible(step.numbers, numbers)
        return visible & (numbers >= self._o.borders(step.numbers)[:, None])

    # --- what is kept -------------------------------------------------------------------------

    def _group_of(self, token: int) -> int:
        return (token - self._o.first) // self._o.group

    def _write_first(self, new: Pair, step: Step) -> None:
        end = min(step.end, self._o.first)
        if step.first >= end:
            return
        size = front(self._o.first, step.end, self._reserved)
        self._first = write_front(self._first, new, step, end, size)

    def _newly_packed(self, new: Pair, step: Step) -> tuple[Packed, Packed] | None:
        """The groups between what is packed and the last query's border."""
        o, start = self._o, self._packed_end
        count = o.border(step.end - 1) - start
        if count <= 0:
            return None
        keys, values = (array[:, :count] for array in self._span(start, new, step))
        return quantise_k(keys, o.group, o.bits), quantise_v(values, o.value_group, o.bits)

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
        start = max(self._tail_start, self._o.border(step.end - 1 - self._o.slack))
        count = step.end - start
        if count <= 0:
            return
        appended = step.count == 1 and start == self._tail_start and self._tail is not None
        if appended and self._tail is not None and count <= self._tail[0].shape[1]:
            for buffer, source in zip(self._tail, new, strict=True):
                write(buffer, 1, count - 1, source)
            return
        size = self._tail_capacity(count, step.end)
        keys, values = self._span(start, new, step)
        self._tail = widened(keys, 1, size), widened(values, 1, size)
        self._tail_start = start

    def _tail_capacity(self, count: int, end: int) -> int:
        """Room for `count` waiting tokens; a bounded cache's only grows, and is soon constant."""
        needed = count if self._ring is None else end - self._o.first
        return min(self._o.tail_tokens, -(-needed // TAIL_QUANTUM) * TAIL_QUANTUM)
