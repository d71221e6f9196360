"""Attention in blocks that a CPU's cache holds, for many queries and many kept tokens.

The softmax is corrected from block to block (Milakov and Gimelshein, 2018, arXiv 1805.02867; as in
FlashAttention, Dao et al., 2022, arXiv 2205.14135). A part is unpacked once for all queries, and no
more memory is needed than for one part in float32 and one block of scores, however long the text.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import mlx.core as mx

from tinygpt.ops.exponential import LOG2_E, exp2
from tinygpt.ops.parts import DensePart, Part, capped_and_masked

QUERIES = 32  # tokens of a block; with these and 3 × 3 heads the scores take 600 kB
KEPT = 512  # tokens of a block
UNSEEN = -1e30  # the largest score of a query that has seen nothing yet; finite, for differences


@dataclass(frozen=True, slots=True)
class State:
    """Of some queries, `[N, rows, …]`: largest score, sum of odds and mix of values so far.

    Scores are in units of log 2, and odds relative to the largest.
    """

    largest: mx.array  # [N, rows, 1]
    total: mx.array  # [N, rows, 1]
    mixed: mx.array  # [N, rows, D]

    def joined(self, later: State) -> State:
        """The state of both, where `later` counted in what is largest here."""
        share = mx.exp((self.largest - later.largest) * math.log(2))
        total = self.total * share + later.total
        return State(later.largest, total, self.mixed * share + later.mixed)


def attend_blocks(
    queries: mx.array, sink_queries: mx.array, parts: Sequence[Part], softcap: float | None
) -> mx.array:
    """As `attention.attend_parts`: float32 queries [N, G, T, D] over `parts`, `[N, G, T, D]`."""
    tokens = queries.shape[2]
    starts = range(0, tokens, QUERIES)
    states: list[State | None] = [None for _ in starts]
    for part in parts:
        last = states[-1]
        floats = part.floats(None if last is None else last.mixed)
        rows = (sink_queries if part.sink else queries) * LOG2_E
        for at, start in enumerate(starts):
            block = rows[:, :, start : start + QUERIES]
            for piece in _pieces(floats, start):
                states[at] = _seen(states[at], block, piece, softcap)
    outs = [state.mixed / state.total for state in states if state is not None]
    by_head = [out.reshape(*queries.shape[:2], -1, queries.shape[-1]) for out in outs]
    return mx.concatenate(by_head, axis=2)


def _pieces(part: DensePart, start: int) -> Iterator[DensePart]:
    """`part` in blocks of kept tokens, with the masks of the queries from `start` on."""
    for low in range(0, part.length, KEPT):
        keys, values = (array[:, low : low + KEPT] for array in (part.keys, part.values))
        allowed = part.allowed
        if allowed is not None:
            allowed = allowed[start : start + QUERIES, low : low + KEPT]
        yield DensePart(keys, values, allowed, part.sink)


def _seen(before: State | None, block: mx.array, part: DensePart, softcap: float | None) -> State:
    """The state of the queries `block` [N, G, T, D] once they have seen `part` too."""
    n_rows, heads, tokens, dim = block.shape
    scores = part.scores(block.reshape(n_rows, heads * tokens, dim), None)
    cap = None if softcap is None else softcap * LOG2_E
    scores = capped_and_masked(scores, part, (n_rows, heads, tokens), cap)
    largest = mx.maximum(scores.max(axis=-1, keepdims=True), UNSEEN)
    if before is not None:
        largest = mx.maximum(largest, before.largest)
    odds = exp2(scores - largest)
    total = odds @ mx.ones((part.length, 1))  # a product sums faster than a reduction
    now = State(largest, total, part.mix(odds, None))
    return now if before is None else before.joined(now)
