"""Attention in blocks, for many queries and many kept tokens.

The softmax is corrected from block to block (Milakov and Gimelshein, 2018, arXiv 1805.02867; as in
FlashAttention, Dao et al., 2022, arXiv 2205.14135). A run is unpacked once for all queries, and no
more memory is needed than for one run in float32 and one block of scores, however long the text.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import mlx.core as mx

from tinygpt.ops.backend import block_sizes
from tinygpt.ops.exponential import LOG2_E, powers
from tinygpt.ops.parts import DensePart, Part, capped_and_masked
from tinygpt.ops.scoring import Scoring

UNSEEN = -1e30  # the largest score of a query that has seen nothing yet; finite, for differences


@dataclass(frozen=True, slots=True)
class State:
    """A softmax so far, of some queries `[N, rows, …]`. Scores are in units of log 2.

    `denominator` is the sum of 2^(score − maximum), `numerator` the sum of the values so weighted.
    """

    maximum: mx.array  # [N, rows, 1]
    denominator: mx.array  # [N, rows, 1]
    numerator: mx.array  # [N, rows, D_v]

    def joined(self, later: State) -> State:
        """The state of both, where `later` counted in the maximum of this one."""
        share = mx.exp((self.maximum - later.maximum) * math.log(2))
        return State(
            later.maximum,
            self.denominator * share + later.denominator,
            self.numerator * share + later.numerator,
        )


class Blocks:
    """Float32 `queries` [N, G, T, D] over `parts`; the arguments are those of `attention.attend`.

    `attend` reads every part once; `mass` reads them again, for the queries that are observed.
    """

    def __init__(
        self, queries: mx.array, sink_queries: mx.array, parts: Sequence[Part], how: Scoring
    ) -> None:
        self._rows = queries * LOG2_E
        self._sink_rows = sink_queries if sink_queries is queries else sink_queries * LOG2_E
        if sink_queries is queries:
            self._sink_rows = self._rows
        self._parts, self._how = parts, how
        self._cap = None if how.softcap is None else how.softcap * LOG2_E
        self._sizes = block_sizes()
        self._starts = range(0, queries.shape[2], self._sizes.queries)
        self._states: list[State | None] = [self._at_first(start) for start in self._starts]

    def attend(self) -> mx.array:
        """`[N, G, T, D_v]`."""
        for part in self._parts:
            for piece in part.pieces():
                last = self._states[-1]
                floats = piece.floats(None if last is None else last.numerator)
                for at, start in enumerate(self._starts):
                    for block in self._blocks(floats, start):
                        self._states[at] = self._seen(self._states[at], start, block)
        outs = [state.numerator / state.denominator for state in self._states if state is not None]
        by_head = [out.reshape(*self._rows.shape[:2], -1, out.shape[-1]) for out in outs]
        return mx.concatenate(by_head, axis=2)

    def mass(self, after: mx.array) -> mx.array:
        """The weights of the observed queries, summed over them or not: see `Observe`.

        It comes after `attend`, whose result is `after`.
        """
        first = self._how.first_observed(self._rows.shape[2])
        found: list[list[mx.array]] = [[] for _ in self._starts]
        for part in self._parts:
            for piece in part.pieces():
                floats = piece.floats(after)
                for at, start in enumerate(self._starts):
                    for block in self._blocks(floats, start):
                        if start + self._sizes.queries > first:
                            found[at].append(self._weights(at, start, block, max(0, first - start)))
        joined = [mx.concatenate(pieces, axis=-1) for pieces in found if pieces]
        return self._how.reduced(joined)

    def _at_first(self, start: int) -> State | None:
        """Without a key: nothing, or what the extra logit adds to the denominator."""
        if self._how.extra is None:
            return None
        n_rows, heads = self._rows.shape[:2]
        tokens = min(self._sizes.queries, self._rows.shape[2] - start)
        wide = mx.broadcast_to(self._how.extra * LOG2_E, (n_rows, heads, tokens, 1))
        maximum = wide.reshape(n_rows, heads * tokens, 1)
        return State(maximum, mx.ones_like(maximum), mx.zeros_like(maximum))

    def _blocks(self, part: DensePart, start: int) -> Iterator[DensePart]:
        """`part` in blocks of kept tokens, with the masks of the queries from `start` on."""
        if part.allowed is not None:
            rows = part.allowed[start : start + self._sizes.queries]
            part = DensePart(part.keys, part.values, rows, part.sink)
        for low in range(0, part.length, self._sizes.kept):
            yield part.cut(low, low + self._sizes.kept)

    def _scores(self, start: int, part: DensePart) -> mx.array:
        """Of the block of queries from `start` on, `[N, G·T, n]`, capped and masked."""
        block = (self._sink_rows if part.sink else self._rows)[
            :, :, start : start + self._sizes.queries
        ]
        n_rows, heads, tokens, dim = block.shape
        scores = part.scores(block.reshape(n_rows, heads * tokens, dim))
        return capped_and_masked(scores, part, (n_rows, heads, tokens), self._cap)

    def _seen(self, before: State | None, start: int, part: DensePart) -> State:
        """The state of the queries from `start` on once they have seen `part` too."""
        scores = self._scores(start, part)
        maximum = mx.maximum(scores.max(axis=-1, keepdims=True), UNSEEN)
        if before is not None:
            maximum = mx.maximum(maximum, before.maximum)
        weights = powers(scores - maximum)
        denominator = weights @ mx.ones((part.length, 1))  # a product sums faster than a reduction
        now = State(maximum, denominator, part.weighted(weights))
        return now if before is None else before.joined(now)

    def _weights(self, at: int, start: int, part: DensePart, skip: int) -> mx.array:
        """The final weights `[N, G, T − skip, n]` of a block of queries on `part`."""
        state = self._states[at]
        assert state is not None, "attend comes before mass"
        weights = powers(self._scores(start, part) - state.maximum) / state.denominator
        return weights.reshape(*self._rows.shape[:2], -1, part.length)[:, :, skip:]
