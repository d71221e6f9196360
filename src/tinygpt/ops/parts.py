"""Kept tokens in one form: what attention needs of them, whatever that form is.

Shapes: N is batch × kv-heads, `rows` query heads × new tokens, n kept tokens, D channels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import mlx.core as mx

from tinygpt.ops.quantize import Packed, dequantise

# Above this many query rows, unpacking a part once beats multiplying with it packed: MLX's CPU
# kernel costs per row what unpacking costs for the whole part at about this number. A stack of runs
# is multiplied with where it lies for any number of heads: unpacked, it would fill the memory.
IN_PLACE_ROWS = 12
PIECE = 1024  # tokens that are made float32 together, so that a prefill's temporaries stay small


class Part(Protocol):
    """Some kept tokens, all in one form.

    `allowed` is a boolean mask `[T, n]`, or None where every query sees all of the part.
    `sink` says that the queries must be rotated to their position relative to the sinks.
    """

    @property
    def allowed(self) -> mx.array | None: ...
    @property
    def sink(self) -> bool: ...
    @property
    def length(self) -> int:
        """n."""
        ...

    def for_last(self, queries: int) -> Part:
        """The same with the mask of the last `queries` only."""
        ...

    def pieces(self) -> Iterator[Part]:
        """The same in parts of at most `PIECE` tokens, as far as something must be unpacked."""
        ...

    def floats(self, earlier: mx.array | None) -> DensePart:
        """The same in float32; what has to be unpacked waits for `earlier` to be computed.

        MLX would unpack all parts at once.
        """
        ...

    def scores(self, queries: mx.array) -> mx.array:
        """Products with the keys: `[N, rows, D]` to `[N, rows, n]`, float32."""
        ...

    def weighted(self, weights: mx.array) -> mx.array:
        """The values' weighted sums: `[N, rows, n]` to `[N, rows, D]`, float32."""
        ...


@dataclass(frozen=True, slots=True)
class DensePart:
    """Keys `[N, n, D]` and values `[N, n, D_v]` in any float type; they are read in float32."""

    keys: mx.array
    values: mx.array
    allowed: mx.array | None = None
    sink: bool = False

    @property
    def length(self) -> int:
        """See Part."""
        return int(self.keys.shape[1])

    def for_last(self, queries: int) -> Part:
        """See Part."""
        return self if self.allowed is None else replace(self, allowed=self.allowed[-queries:])

    def pieces(self) -> Iterator[Part]:
        """See Part."""
        if self.keys.dtype == self.values.dtype == mx.float32:
            yield self
            return
        for low in range(0, self.length, PIECE):
            yield self.cut(low, low + PIECE)

    def cut(self, low: int, high: int) -> DensePart:
        """The tokens in places `low` … `high − 1`."""
        allowed = None if self.allowed is None else self.allowed[:, low:high]
        return DensePart(self.keys[:, low:high], self.values[:, low:high], allowed, self.sink)

    def floats(self, earlier: mx.array | None) -> DensePart:
        """See Part."""
        keys, values = (_floats(array, earlier) for array in (self.keys, self.values))
        return replace(self, keys=keys, values=values)

    def scores(self, queries: mx.array) -> mx.array:
        """See Part."""
        return queries @ _floats(self.keys, None).swapaxes(1, 2)

    def weighted(self, weights: mx.array) -> mx.array:
        """See Part."""
        return weights @ _floats(self.values, weights)


@dataclass(frozen=True, slots=True)
class PackedPart:
    """Keys packed along tokens, values packed along channels (see `ops.quantize`), in runs or not.

    One run: keys' words `[N, D, n·bits/32]`, values' `[N, n, D_v·bits/32]`. Runs of equal length
    are stacked in front of that, `[R, N, …]`: one product reads them all, however many there are.
    """

    keys: Packed
    values: Packed
    allowed: mx.array | None = None
    sink: bool = False

    @property
    def is_stacked(self) -> bool:
        """Whether there is an axis of runs."""
        return self.keys.words.ndim == 4

    @property
    def length(self) -> int:
        """See Part."""
        shape = self.values.words.shape
        return int(shape[0] * shape[2] if self.is_stacked else shape[1])

    def for_last(self, queries: int) -> Part:
        """See Part."""
        return self if self.allowed is None else replace(self, allowed=self.allowed[-queries:])

    def pieces(self) -> Iterator[Part]:
        """See Part. One piece a run."""
        if not self.is_stacked:
            yield self
            return
        runs, tokens = self.values.words.shape[0], self.values.words.shape[2]
        for run in range(runs):
            here = slice(run * tokens, (run + 1) * tokens)
            allowed = None if self.allowed is None else self.allowed[:, here]
            keys, values = (
                packed.each(lambda array, run=run: array[run])  # type: ignore[misc]
                for packed in (self.keys, self.values)
            )
            yield PackedPart(keys, values, allowed, self.sink)

    def floats(self, earlier: mx.array | None) -> DensePart:
        """See Part; for one run."""
        keys = _unpacked(self.keys, earlier).swapaxes(1, 2)
        return DensePart(keys, _unpacked(self.values, earlier), self.allowed, self.sink)

    def scores(self, queries: mx.array) -> mx.array:
        """See Part."""
        if not self.is_stacked:
            return _times_packed(queries, self.keys, None)
        products = _times_packed(queries[None], self.keys, None)  # [R, N, rows, tokens]
        return mx.moveaxis(products, 0, 2).reshape(*queries.shape[:2], -1)

    def weighted(self, weights: mx.array) -> mx.array:
        """See Part."""
        if not self.is_stacked:
            return _times_packed(weights, self.values, weights)
        runs = self.values.words.shape[0]
        by_run = mx.moveaxis(weights.reshape(*weights.shape[:2], runs, -1), 2, 0)
        return _times_packed(by_run, self.values, weights).sum(axis=0)  # [R, N, rows, D_v] before


def capped_and_masked(
    scores: mx.array, part: Part, shape: tuple[int, int, int], softcap: float | None
) -> mx.array:
    """`scores` [N, G·T, n] of `part`, `shape` being (N, G, T): −∞ where a query does not see.

    With `softcap` c a score s becomes c · tanh(s / c) before the mask.
    """
    if softcap is not None:
        scores = softcap * mx.tanh(scores / softcap)
    if part.allowed is None:
        return scores
    by_head = scores.reshape(*shape, -1)
    return mx.where(part.allowed, by_head, -mx.inf).reshape(scores.shape)


def _floats(array: mx.array, earlier: mx.array | None) -> mx.array:
    return array if array.dtype == mx.float32 else _after(array, earlier).astype(mx.float32)


def _times_packed(rows: mx.array, packed: Packed, earlier: mx.array | None) -> mx.array:
    # float32 rows: MLX's CPU kernel accumulates in their type, and half precision loses digits.
    if rows.shape[-2] > IN_PLACE_ROWS and packed.words.ndim < 4:
        return rows @ _unpacked(packed, earlier)
    return mx.quantized_matmul(
        rows,
        packed.words,
        packed.scales,
        packed.zeros,
        transpose=False,
        group_size=packed.group,
        bits=packed.bits,
    )


def _unpacked(packed: Packed, earlier: mx.array | None) -> mx.array:
    return dequantise(replace(packed, words=_after(packed.words, earlier)))


def _after(array: mx.array, earlier: mx.array | None) -> mx.array:
    """`array`, for use only once `earlier` is computed."""
    return array if earlier is None else mx.depends(array, earlier)
