"""Attention over one contiguous view, or over several parts under one softmax.

Shapes: N is batch × kv-heads, G query heads share a kv-head, T new tokens, n kept ones. Queries are
folded to rows `[N, G·T, D]`, so a kv-head's keys are read once for all the heads that share it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

from tinygpt.ops.backend import prefers_plain
from tinygpt.ops.blockwise import attend_blocks
from tinygpt.ops.exponential import LEAST, LEAST_ALONE, softmax
from tinygpt.ops.parts import DensePart, Part, capped_and_masked

MANY = 512  # tokens; parts of that size are unpacked one after another


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
    scores = n_rows * heads * tokens * view.keys.shape[1]
    least = LEAST if tokens > 1 else LEAST_ALONE
    if queries.dtype == mx.float32 and prefers_plain(scores, least):
        return attend_parts(queries, queries, PartsView(_causal_parts(view, tokens)))
    if tokens == 1:  # fold the heads into rows: one pass over the keys instead of G
        rows = queries.reshape(1, n_rows, heads, dim)
        out = mx.fast.scaled_dot_product_attention(
            rows, view.keys[None], view.values[None], scale=1.0
        )
        return out.reshape(queries.shape)
    return mx.fast.scaled_dot_product_attention(
        queries, view.keys[:, None], view.values[:, None], scale=1.0, mask="causal"
    )


def _causal_parts(view: DenseView, tokens: int) -> list[Part]:
    """The view as what all of the `tokens` queries see, and the queries' own tokens."""
    if tokens == 1:
        return [DensePart(view.keys, view.values)]
    own = view.keys.shape[1] - tokens
    mask = mx.tri(tokens, dtype=mx.bool_)
    fresh = DensePart(view.keys[:, own:], view.values[:, own:], mask)
    return [DensePart(view.keys[:, :own], view.values[:, :own]), fresh] if own else [fresh]


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
    kept = sum(part.length for part in view.parts)
    if tokens > 1 and prefers_plain(n_rows * heads * tokens * kept, LEAST):
        return attend_blocks(queries, sink_queries, view.parts, softcap)

    def masked(part: Part, earlier: mx.array | None) -> mx.array:
        rows = sink_queries if part.sink else queries
        scores = part.scores(rows.reshape(n_rows, heads * tokens, dim), earlier)
        return capped_and_masked(scores, part, (n_rows, heads, tokens), softcap)

    scores: list[mx.array] = []
    for part in view.parts:
        scores.append(masked(part, _if_large(scores[-1]) if scores else None))
    weights = softmax(mx.concatenate(scores, axis=-1))
    out, start = None, 0
    for part, of_part in zip(view.parts, scores, strict=True):
        end = start + of_part.shape[-1]
        earlier = None if out is None else _if_large(of_part, out)
        mixed = part.mix(weights[..., start:end], earlier)
        out, start = (mixed if out is None else out + mixed), end
    assert out is not None, "a query must see at least itself"
    return out.reshape(queries.shape)
