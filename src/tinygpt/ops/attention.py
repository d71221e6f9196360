"""Attention over one contiguous view, or over several parts under one softmax.

Shapes: N is batch × kv-heads, G query heads share a kv-head, T new tokens, n kept ones. Queries are
folded to rows `[N, G·T, D]`, so a kv-head's keys are read once for all the heads that share it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import mlx.core as mx

from tinygpt.ops.quantize import Packed, dequantise

# Above this many query rows, unpacking a block once beats multiplying with it packed: MLX's CPU
# kernel costs per row what unpacking costs for the whole block at about this number.
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
    def scores(self, queries: mx.array) -> mx.array:
        """`[N, rows, D]` to `[N, rows, n]`, float32."""
        ...

    def mix(self, weights: mx.array) -> mx.array:
        """`[N, rows, n]` to `[N, rows, D]`, float32."""
        ...


@dataclass(frozen=True, slots=True)
class DensePart:
    """Keys and values `[N, n, D]` in any float type; they are read in float32."""

    keys: mx.array
    values: mx.array
    allowed: mx.array | None = None
    sink: bool = False

    def scores(self, queries: mx.array) -> mx.array:
        """See Part."""
        return queries @ self.keys.astype(mx.float32).swapaxes(1, 2)

    def mix(self, weights: mx.array) -> mx.array:
        """See Part."""
        return weights @ self.values.astype(mx.float32)


@dataclass(frozen=True, slots=True)
class PackedPart:
    """Keys packed along tokens, values packed along channels: see `ops.quantize`."""

    keys: Packed
    values: Packed
    allowed: mx.array | None = None
    sink: bool = False

    def scores(self, queries: mx.array) -> mx.array:
        """See Part."""
        return _times_packed(queries, self.keys)

    def mix(self, weights: mx.array) -> mx.array:
        """See Part."""
        return _times_packed(weights, self.values)


def _times_packed(rows: mx.array, packed: Packed) -> mx.array:
    # float32 rows: MLX's CPU kernel accumulates in their type, and half precision loses digits.
    if rows.shape[-2] > IN_PLACE_ROWS:
        return rows @ dequantise(packed)
    return mx.quantized_matmul(
        rows,
        packed.words,
        packed.scales,
        packed.zeros,
        transpose=False,
        group_size=packed.group,
        bits=packed.bits,
    )


@dataclass(frozen=True, slots=True)
class DenseView:
    """All visible tokens in one array, keys and values `[N, n, D]`; the last T are the queries'."""

    keys: mx.array
    values: mx.array


@dataclass(frozen=True, slots=True)
class PartsView:
    """The visible tokens in several forms; every query sees at least one of them."""

    parts: Sequence[Part]


View = DenseView | PartsView


def attend_dense(queries: mx.array, view: DenseView) -> mx.array:
    """Causal attention of scaled `queries` [N, G, T, D] in the view's own type: `[N, G, T, D]`."""
    n_rows, heads, tokens, dim = queries.shape
    queries = queries.astype(view.keys.dtype)
    if tokens == 1:  # fold the heads into rows: one pass over the keys instead of G
        rows = queries.reshape(1, n_rows, heads, dim)
        out = mx.fast.scaled_dot_product_attention(
            rows, view.keys[None], view.values[None], scale=1.0
        )
        return out.reshape(queries.shape)
    return mx.fast.scaled_dot_product_attention(
        queries, view.keys[:, None], view.values[:, None], scale=1.0, mask="causal"
    )


def attend_parts(
    queries: mx.array,
    sink_queries: mx.array,
    view: PartsView,
    softcap: float | None = None,
) -> mx.array:
    """Attention of scaled `queries` [N, G, T, D] over all parts, one softmax: `[N, G, T, D]`.

    `sink_queries` are the same queries, rotated for the parts that are sinks. With `softcap` c a
    score s becomes c · tanh(s / c) before the mask.
    """
    n_rows, heads, tokens, dim = queries.shape
    queries, sink_queries = queries.astype(mx.float32), sink_queries.astype(mx.float32)

    def masked(part: Part) -> mx.array:
        rows = sink_queries if part.sink else queries
        scores = part.scores(rows.reshape(n_rows, heads * tokens, dim))
        if softcap is not None:
            scores = softcap * mx.tanh(scores / softcap)
        if part.allowed is None:
            return scores
        by_head = scores.reshape(n_rows, heads, tokens, -1)
        return mx.where(part.allowed, by_head, -mx.inf).reshape(scores.shape)

    scores = [masked(part) for part in view.parts]
    weights = mx.softmax(mx.concatenate(scores, axis=-1), axis=-1, precise=True)
    out, start = None, 0
    for part, of_part in zip(view.parts, scores, strict=True):
        end = start + of_part.shape[-1]
        mixed = part.mix(weights[..., start:end])
        out, start = (mixed if out is None else out + mixed), end
    assert out is not None, "a query must see at least itself"
    return out.reshape(queries.shape)
