"""Groups of packed tokens in runs of at most 1,024: a growing list, or a ring.

A run's arrays are contiguous, so MLX multiplies with them where they lie (slices of packed arrays
would be copied at each step), and at most one run is unpacked at a time. A run that is full is
never copied again, and the words of a kept group are never rewritten.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import mlx.core as mx
import numpy as np

from tinygpt.cache.storage.base import grown, widened, write
from tinygpt.ops.quantize import Packed

RUN = 1024  # tokens


@dataclass(frozen=True, slots=True)
class Slab:
    """Along which axis groups follow each other, and how many entries a group takes there."""

    axis: int
    words: int
    scales: int

    def map(self, packed: Packed, change: Callable[[mx.array, int, int], mx.array]) -> Packed:
        """`packed` with each array replaced by `change(array, axis, entries per group)`."""
        return replace(
            packed,
            words=change(packed.words, self.axis, self.words),
            scales=change(packed.scales, self.axis, self.scales),
            zeros=change(packed.zeros, self.axis, self.scales),
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
        write(packed.words, self.axis, first * self.words, new.words)
        write(packed.scales, self.axis, first * self.scales, new.scales)
        write(packed.zeros, self.axis, first * self.scales, new.zeros)


@dataclass(slots=True)
class Run:
    """Keys `[N, D, tokens]` packed along tokens and values `[N, tokens, D]` along channels."""

    keys: Packed
    values: Packed
    first_slot: int  # of the run's first group
    groups: int  # allocated


class PackedRuns:
    """Packed groups of `group` tokens; group number k counts from the first packed token.

    `ring` is how many groups are kept, None for all. Slots are filled in order of k, modulo ring.
    """

    def __init__(self, group: int, bits: int, ring: int | None) -> None:
        self._keys = Slab(axis=2, words=group * bits // 32, scales=1)
        self._values = Slab(axis=1, words=group, scales=group)
        self._ring = ring
        self._limit = ring
        self._per_run = RUN // group
        self.runs: list[Run] = []

    def reserve(self, groups: int) -> None:
        """Expect no more than `groups` in all."""
        self._limit = groups if self._ring is None else min(self._ring, groups)

    def write(self, first: int, keys: Packed, values: Packed) -> None:
        """Store the groups `first`, `first + 1`, … that `keys` and `values` hold."""
        end = first + keys.scales.shape[-1]
        start = first if self._ring is None else max(first, end - self._ring)
        while start < end:
            slot = start if self._ring is None else start % self._ring
            at, offset = divmod(slot, self._per_run)
            count = min(end - start, self._per_run - offset)
            if self._ring is not None:
                count = min(count, self._ring - slot)
            run = self._with_room(at, offset + count, keys, values)
            for buffer, slab, new in (
                (run.keys, self._keys, keys),
                (run.values, self._values, values),
            ):
                slab.assign(buffer, offset, slab.piece(new, start - first, count))
            start += count

    def _with_room(self, at: int, needed: int, keys: Packed, values: Packed) -> Run:
        """The run number `at`, with room for `needed` groups like those of `keys` and `values`."""
        if at == len(self.runs):
            empty = self._keys.piece(keys, 0, 0), self._values.piece(values, 0, 0)
            self.runs.append(Run(*empty, at * self._per_run, 0))
        run = self.runs[at]
        if needed > run.groups:
            run.groups = self._capacity(run, needed)
            run.keys = self._keys.resized(run.keys, run.groups)
            run.values = self._values.resized(run.values, run.groups)
        return run

    def _capacity(self, run: Run, needed: int) -> int:
        """Growth is a share of all groups, not of this run's; a run never passes its own size."""
        before = run.first_slot
        total = grown(before + run.groups, before + needed, 1, self._limit)
        return min(total - before, self._per_run)

    def numbers(self, run: Run, groups: int) -> np.ndarray:
        """The group in each slot of `run` once `groups` have been written; −1 where none is."""
        slots = run.first_slot + np.arange(run.groups)
        if self._ring is None or groups <= self._ring:
            return np.where(slots < groups, slots, -1)
        return groups - 1 - (groups - 1 - slots) % self._ring

    def arrays(self) -> dict[str, mx.array]:
        """Every allocated buffer by name."""
        return {
            f"packed_{what}_{name}_{at}": getattr(packed, name)
            for at, run in enumerate(self.runs)
            for what, packed in (("keys", run.keys), ("values", run.values))
            for name in ("words", "scales", "zeros")
        }
