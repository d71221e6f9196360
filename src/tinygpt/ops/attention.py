"""Attention over one contiguous view, or over several parts under one softmax.

Shapes: N is batch × kv-heads, G query heads share a kv-head, T new tokens, n kept ones. Queries are
folded to rows `[N, G·T, D]`, so a kv-head's keys are read once for all the heads that share it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from tinygpt.ops.backend import prefers_plain
from tinygpt.ops.blockwise import Blocks
from tinygpt.ops.exponential import LEAST, LOG2_E, exp2
from tinygpt.ops.parts import DensePart, Part, capped_and_masked
from tinygpt.ops.scoring import PLAIN, Scoring

Numbers = Callable[[], np.ndarray]  # the number of each key's token [n], −1 for none; on demand


@dataclass(frozen=True, slots=True)
class DenseView:
    """All visible tokens in one array, the last T the queries': keys `[N, n, D]`, values alike."""

    keys: mx.array
    values: mx.array
    numbers: Numbers


@dataclass(frozen=True, slots=True)
class PartsView:
    """The visible tokens in several forms; every query sees at least one of them."""

    parts: Sequence[Part]
    numbers: Numbers


View = DenseView | PartsView


def attend(
    queries: mx.array, sink_queries: mx.array, view: View, how: Scoring = PLAIN
) -> tuple[mx.array, mx.array | None]:
    """Attention of scaled `queries` [N, G, T, D]: `[N, G, T, D_v]`, and what `how` observes.

    `sink_queries` are the same queries, rotated for the parts that are sinks. A query of a dense
    view sees all up to itself; parts bring the masks of as many queries or of more before them.
    """
    if isinstance(view, PartsView):
        parts = [part.for_last(queries.shape[2]) for part in view.parts]
        return _attend_parts(queries, sink_queries, parts, how)
    n_rows, heads, tokens, _ = queries.shape
    queries = queries.astype(view.keys.dtype)
    scores = n_rows * heads * tokens * view.keys.shape[1]
    is_fused = how.is_plain and not (queries.dtype == mx.float32 and prefers_plain(scores, LEAST))
    if is_fused:
        return _attend_fused(queries, view), None
    return _attend_parts(queries, queries, _causal_parts(view, tokens), how)


def _attend_fused(queries: mx.array, view: DenseView) -> mx.array:
    n_rows, heads, tokens, dim = queries.shape
    if tokens == 1:  # fold the heads into rows: one pass over the keys instead of G
        rows = queries.reshape(1, n_rows, heads, dim)
        out = mx.fast.scaled_dot_product_attention(
            rows, view.keys[None], view.values[None], scale=1.0
        )
        return out.reshape(n_rows, heads, tokens, -1)
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


def _attend_parts(
    queries: mx.array, sink_queries: mx.array, parts: Sequence[Part], how: Scoring
) -> tuple[mx.array, mx.array | None]:
    """As `attend`, over parts: in float32, at once for one query or few scores, else in blocks."""
    wide = queries.astype(mx.float32)
    turned = wide if sink_queries is queries else sink_queries.astype(mx.float32)
    n_rows, heads, tokens, _ = queries.shape
    size = n_rows * heads * tokens * sum(part.length for part in parts)
    if tokens > 1 and (size >= LEAST or prefers_plain(size, LEAST)):
        blocks = Blocks(wide, turned, parts, how)
        out = blocks.attend()
        return out, None if how.observe is None else blocks.mass(out)
    return _attend_at_once(wide, turned, parts, how, plain=prefers_plain(size, LEAST))


def _attend_at_once(
    queries: mx.array, sink_queries: mx.array, parts: Sequence[Part], how: Scoring, *, plain: bool
) -> tuple[mx.array, mx.array | None]:
    """One softmax over the scores of all parts. Its operations do not grow with the text."""
    n_rows, heads, tokens, dim = queries.shape
    shape = n_rows, heads, tokens
    unit = LOG2_E if plain else 1.0  # of the scores
    folded = n_rows, heads * tokens, dim
    rows = (queries * unit if plain else queries).reshape(folded)
    turned = rows
    if any(part.sink for part in parts) and sink_queries is not queries:
        turned = (sink_queries * unit if plain else sink_queries).reshape(folded)
    cap = None if how.softcap is None else how.softcap * unit
    each = [
        capped_and_masked(part.scores(turned if part.sink else rows), part, shape, cap)
        for part in parts
    ]
    scores = each[0] if len(each) == 1 else mx.concatenate(each, axis=-1)
    weights, total = softmax(scores, _extra_rows(how, shape, unit), plain)
    out, start = None, 0
    for part, of_part in zip(parts, each, strict=True):
        end = start + of_part.shape[-1]
        mine = weights if len(each) == 1 else weights[..., start:end]
        more = part.weighted(mine)
        out, start = (more if out is None else out + more), end
    assert out is not None, "a query must see at least itself"
    out = (out if total is None else out / total).reshape(*shape, -1)
    if how.observe is None:
        return out, None
    final = (weights if total is None else weights / total).reshape(*shape, -1)
    return out, how.reduced([final[:, :, how.first_observed(tokens) :]])


def _extra_rows(how: Scoring, shape: tuple[int, int, int], unit: float) -> mx.array | None:
    """The extra logit of each row, `[N, G·T, 1]`."""
    if how.extra is None:
        return None
    n_rows, heads, tokens = shape
    wide = mx.broadcast_to(how.extra * unit, (n_rows, heads, tokens, 1))
    return wide.reshape(n_rows, heads * tokens, 1)


def softmax(
    scores: mx.array, extra: mx.array | None, plain: bool
) -> tuple[mx.array, mx.array | None]:
    """Weights `[N, rows, n]`, and what they must still be divided by (None: they add up to one).

    In plain operations `scores` and `extra` are in units of log 2. Dividing the few results instead
    of the many weights saves a pass.
    """
    if not plain:
        if extra is None:
            return mx.softmax(scores, axis=-1, precise=True), None
        both = mx.concatenate([scores, extra], axis=-1)
        return mx.softmax(both, axis=-1, precise=True)[..., :-1], None
    largest = scores.max(axis=-1, keepdims=True)
    if extra is not None:
        largest = mx.maximum(largest, extra)
    weights = exp2(scores - largest)
    total = weights.sum(axis=-1, keepdims=True)
    return weights, total if extra is None else total + exp2(extra - largest)
