"""Kept tokens in one form: what attention needs of them, whatever that form is.

Shapes: N is batch × kv-heads, `rows` query heads × new tokens, n kept tokens, D channels.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import mlx.core as mx

from tinygpt.ops.quantize import Packed, dequantise

# Above this many query rows, unpacking a part once beats multiplying with it packed: MLX's CPU
# kernel costs per row what unpacking costs for the whole part at about this number.
IN_PLACE_ROWS = 12


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

    def floats(self, earlier: mx.array | None) -> DensePart:
        """The same in float32; what has to be unpacked waits for `earlier` to be computed.

        MLX would unpack all parts at once.
        """
        ...

    def scores(self, queries: mx.array, earlier: mx.array | None) -> mx.array:
        """`[N, rows, D]` to `[N, rows, n]`, float32; `earlier` as above."""
        ...

    def mix(self, weights: mx.array, earlier: mx.array | None) -> mx.array:
        """`[N, rows, n]` to `[N, rows, D]`, float32; `earlier` as above."""
        ...


@dataclass(frozen=True, slots=True)
class DensePart:
    """Keys and values `[N, n, D]` in any float type; they are read in float32."""

    keys: mx.array
    values: mx.array
    allowed: mx.array | None = None
    sink: bool = False

    @property
    def length(self) -> int:
        """See Part."""
        return int(self.keys.shape[1])

    def floats(self, earlier: mx.array | None) -> DensePart:
        """See Part."""
        keys, values = (_floats(array, earlier) for array in (self.keys, self.values))
        return replace(self, keys=keys, values=values)

    def scores(self, queries: mx.array, earlier: mx.array | None) -> mx.array:
        """See Part."""
        return queries @ _floats(self.keys, earlier).swapaxes(1, 2)

    def mix(self, weights: mx.array, earlier: mx.array | None) -> mx.array:
        """See Part."""
        return weights @ _floats(self.values, earlier)


@dataclass(frozen=True, slots=True)
class PackedPart:
    """Keys packed along tokens, values packed along channels: see `ops.quantize`."""

    keys: Packed
    values: Packed
    allowed: mx.array | None = None
    sink: bool = False

    @property
    def length(self) -> int:
        """See Part."""
        return int(self.values.words.shape[1])

    def floats(self, earlier: mx.array | None) -> DensePart:
        """See Part."""
        keys = _unpacked(self.keys, earlier).swapaxes(1, 2)
        return DensePart(keys, _unpacked(self.values, earlier), self.allowed, self.sink)

    def scores(self, queries: mx.array, earlier: mx.array | None) -> mx.array:
        """See Part."""
        return _times_packed(queries, self.keys, earlier)

    def mix(self, weights: mx.array, earlier: mx.array | None) -> mx.array:
        """See Part."""
        return _times_packed(weights, self.values, earlier)


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
    if rows.shape[-2] > IN_PLACE_ROWS:
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
