"""Groups of packed tokens in runs of at most 1,024: full ones stacked, and the newest.

A run's arrays are contiguous, so MLX multiplies with them where they lie (slices of packed arrays
would be copied at each step), and a prefill unpacks one run at a time. Runs that are full lie in
one stack, which one product reads: a decode step has as many operations after 128,000 tokens as
after 2,000. The stack grows by one run, once in 1,024 tokens, so copying it costs a thousandth of
reading it. The words of a kept group are never rewritten.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import mlx.core as mx

from tinygpt.cache.storage.base import grown, widened, write
from tinygpt.ops.quantize import Packed

RUN = 1024  # tokens: a row of scores of that length stays in a core's first cache
_ARRAYS = ("words", "scales", "zeros")


@dataclass(frozen=True, slots=True)
class GroupAxis:
    """Along which axis of a run groups follow each other, and how many entries a group takes."""

    axis: int  # counted from the last
    words: int
    scales: int

    def map(self, packed: Packed, change: Callable[[mx.array, int, int], mx.array]) -> Packed:
        """`packed` with each array replaced by `change(array, axis, entries per group)`."""
        axis = packed.words.ndim + self.axis
        return replace(
            packed,
            words=change(packed.words, axis, self.words),
            scales=change(packed.scales, axis, self.scales),
            zeros=change(packed.zeros, axis, self.scales),
        )

    def piece(self, packed: Packed, first: int, count: int) -> Packed:
        """The `count` groups from number `first` on."""

        def cut(array: mx.array, axis: int, unit: int) -> mx.array:
            return array[(slice(None),) * axis + (slice(first * unit, (first + count) * unit),)]

        return self.map(packed, cut)

    def resized(self, packed: Packed, groups: int) -> Packed:
        """The same groups in a new buffer that has room for `groups`."""
        return self.map(packed, lambda array, axis, unit: widened(array, axis, groups * unit))

    def assign(self, packed: Packed, first: int, new: Packed) -> None:
        """Overwrite the groups from number `first` on with `new`, in place."""
        for name, unit in zip(_ARRAYS, (self.words, self.scales, self.scales), strict=True):
            buffer = getattr(packed, name)
            write(buffer, buffer.ndim + self.axis, first * unit, getattr(new, name))


@dataclass(frozen=True, slots=True)
class PackedPair:
    """Keys `[N, D, tokens]` packed along tokens and values `[N, tokens, D_v]` along channels.

    With an axis of runs in front of that where runs are stacked.
    """

    keys: Packed
    values: Packed

    def map(self, change: Callable[[Packed], Packed]) -> PackedPair:
        """Both changed."""
        return PackedPair(change(self.keys), change(self.values))


class PackedRuns:
    """Packed groups of `group` tokens; group number k counts from the first packed token.

    `ring` is how many groups are kept, None for all. Slots are filled in order of k, modulo ring.
    """

    def __init__(self, group: int, bits: int, ring: int | None) -> None:
        self._axes = (
            GroupAxis(axis=-1, words=group * bits // 32, scales=1),
            GroupAxis(axis=-2, words=group, scales=group),
        )
        self._group, self._bits = group, bits
        self._ring = self._limit = ring
        self.per_run = RUN // group
        self.full: PackedPair | None = None  # stacked, [R, N, …]
        self.newest: PackedPair | None = None
        self._room = 0  # groups that fit into the newest run

    @property
    def full_runs(self) -> int:
        """R."""
        return 0 if self.full is None else int(self.full.keys.words.shape[0])

    @property
    def newest_groups(self) -> int:
        """How many groups are allocated in the newest run."""
        return self._room

    def reserve(self, groups: int | None) -> None:
        """Expect no more than `groups` in all."""
        known = [limit for limit in (self._ring, groups) if limit is not None]
        self._limit = min(known, default=None)

    def write(self, first: int, new: PackedPair) -> None:
        """Store the groups `first`, `first + 1`, … that `new` holds."""
        end = first + new.keys.scales.shape[-1]
        start = first if self._ring is None else max(first, end - self._ring)
        while start < end:
            slot = start if self._ring is None else start % self._ring
            run, offset = divmod(slot, self.per_run)
            count = min(end - start, self.per_run - offset)
            if self._ring is not None:
                count = min(count, self._ring - slot)
            self._write_run(run, offset, self._piece(new, start - first, count))
            start += count

    def arrays(self) -> dict[str, mx.array]:
        """Every allocated buffer by name."""
        return {
            f"packed_{what}_{name}_{where}": getattr(packed, name)
            for where, pair in (("full", self.full), ("newest", self.newest))
            if pair is not None
            for what, packed in (("keys", pair.keys), ("values", pair.values))
            for name in _ARRAYS
        }

    def load(self, arrays: Mapping[str, mx.array], value_group: int) -> None:
        """Take the buffers that `arrays` of another gave."""
        groups = {"keys": self._group, "values": value_group}

        def pair(where: str) -> PackedPair | None:
            if f"packed_keys_words_{where}" not in arrays:
                return None
            both = []
            for what in ("keys", "values"):
                words, scales, zeros = (arrays[f"packed_{what}_{n}_{where}"] for n in _ARRAYS)
                both.append(Packed(words, scales, zeros, groups[what], self._bits))
            return PackedPair(both[0], both[1])

        self.full, self.newest = pair("full"), pair("newest")
        self._room = 0 if self.newest is None else int(self.newest.keys.scales.shape[-1])

    def _piece(self, pair: PackedPair, first: int, count: int) -> PackedPair:
        keys, values = self._axes
        return PackedPair(
            keys.piece(pair.keys, first, count), values.piece(pair.values, first, count)
        )

    def _write_run(self, run: int, offset: int, new: PackedPair) -> None:
        """Overwrite groups of the run number `run` from `offset` on; the newest may grow."""
        count = new.keys.scales.shape[-1]
        if run < self.full_runs:
            assert self.full is not None
            for axis, stack, source in zip(self._axes, _both(self.full), _both(new), strict=True):
                for name, unit in zip(_ARRAYS, (axis.words, axis.scales, axis.scales), strict=True):
                    low, high = offset * unit, (offset + count) * unit
                    here = (run, slice(None), *(slice(None),) * (2 + axis.axis), slice(low, high))
                    getattr(stack, name)[here] = getattr(source, name)
            return
        self._make_room(offset + count, new)
        assert self.newest is not None
        for axis, buffer, source in zip(self._axes, _both(self.newest), _both(new), strict=True):
            axis.assign(buffer, offset, source)
        if offset + count == self.per_run:
            self._stack_newest()

    def _make_room(self, needed: int, like: PackedPair) -> None:
        """Room for `needed` groups in the newest run.

        Growth is a share of all groups, not of this run's; a run never passes its own size.
        """
        if self.newest is None:
            self.newest, self._room = self._piece(like, 0, 0), 0
        if needed <= self._room:
            return
        before = self.full_runs * self.per_run
        total = grown(before + self._room, before + needed, 1, self._limit)
        self._room = min(total - before, self.per_run)
        keys, values = self._axes
        self.newest = PackedPair(
            keys.resized(self.newest.keys, self._room),
            values.resized(self.newest.values, self._room),
        )

    def _stack_newest(self) -> None:
        """The newest run is full: it joins the stack."""
        assert self.newest is not None
        newest = self.newest.map(lambda packed: packed.each(lambda array: array[None]))
        if self.full is not None:
            newest = PackedPair(
                _joined(self.full.keys, newest.keys), _joined(self.full.values, newest.values)
            )
        self.full, self.newest, self._room = newest, None, 0


def _both(pair: PackedPair) -> tuple[Packed, Packed]:
    return pair.keys, pair.values


def _joined(first: Packed, second: Packed) -> Packed:
    """The runs of both, one after another."""
    words, scales, zeros = (
        mx.concatenate([getattr(first, name), getattr(second, name)]) for name in _ARRAYS
    )
    return replace(first, words=words, scales=scales, zeros=zeros)
