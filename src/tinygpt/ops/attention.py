"""Attention over one contiguous view, or over several parts under one softmax.

Shapes: N is batch × kv-heads, G query heads share a kv-head, T new tokens, n kept ones. Queries are
folded to rows `[N, G·T, D]`, so a kv-head's keys are read once for all the heads that share it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import mlx.core as mx

from tinygpt.ops.quantize import Packed, dequantise

# Above this many query rows, unpacking a block once beats multiplying with it packed: MLX's CPU
# kernel costs per row what unpacking costs for the whole block at about this number.
IN_PLACE_ROWS = 12
MANY = 512  # tokens; parts of that size are unpacked one after another


class Part(Protocol):
    """Some kept tokens, all in one form.

    `allowed` is a boolean mask `[T, n]`, or None where every query sees all of the part.
    `sink` says that the queries must be rotated to their position relative to the sinks.
    """

    @property
    def allowed(self) -> mx.array | None: ...
    @property
    def sink(self) -> bool: ...
    def scores(self, queries: mx.array, earlier: mx.array | None) -> mx.array:
        """`[N, rows, D]` to `[N, rows, n]`, float32; unpacks only once `earlier` is there."""
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

    def scores(self, queries: mx.array, earlier: mx.array | None) -> mx.array:
        """See Part."""
        return _times_packed(queries, self.keys, earlier)

    def mix(self, weights: mx.array, earlier: mx.array | None) -> mx.array:
        """See Part."""
        return _times_packed(weights, self.values, earlier)


def _floats(array: mx.array, earlier: mx.array | None) -> mx.array:
    return array if array.dtype == mx.float32 else _after(array, earlier).astype(mx.float32)


def _times_packed(rows: mx.array, packed: Packed, earlier: mx.array | None) -> mx.array:
    # float32 rows: MLX's CPU kernel accumulates in their type, and half precision loses digits.
    if rows.shape[-2] > IN_PLACE_ROWS:
        return rows @ dequantise(replace(packed, words=_after(packed.words, earlier)))
    return mx.quantized_matmul(
        rows,
        packed.words,
        packed.scales,
        packed.zeros,
        transpose=False,
        group_size=packed.group,
        bits=packed.bits,
    )


def _after(array: mx.array, earlier: mx.array | None) -> mx.array:
    """`array`, for use only once `earlier` is computed: MLX would unpack all parts at once."""
    return array if earlier is None else mx.depends(array, earlier)


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


def _if_large(scores: mx.array, result: mx.array | None = None) -> mx.array | None:
    """What to wait for, if a part's `scores` are those of many tokens: itself, or `result`."""
    if scores.shape[-1] < MANY:
        return None
    return scores if result is None else result


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

    def masked(part: Part, earlier: mx.array | None) -> mx.array:
        rows = sink_queries if part.sink else queries
        scores = part.scores(rows.reshape(n_rows, heads * tokens, dim), earlier)
        if softcap is not None:
            scores = softcap * mx.tanh(scores / softcap)
        if part.allowed is None:
            return scores
        by_head = scores.reshape(n_rows, heads, tokens, -1)
        return mx.where(part.allowed, by_head, -mx.inf).reshape(scores.shape)

    scores: list[mx.array] = []
    for part in view.parts:
        scores.append(masked(part, _if_large(scores[-1]) if scores else None))
    weights = mx.softmax(mx.concatenate(scores, axis=-1), axis=-1, precise=True)
    out, start = None, 0
    for part, of_part in zip(view.parts, scores, strict=True):
        end = start + of_part.shape[-1]
        earlier = None if out is None else _if_large(of_part, out)
        mixed = part.mix(weights[..., start:end], earlier)
        out, start = (mixed if out is None else out + mixed), end
    assert out is not None, "a query must see at least itself"
    return out.reshape(queries.shape)
