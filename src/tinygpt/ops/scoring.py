"""How the products of queries and keys become weights, and what of the weights is reported."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx


@dataclass(frozen=True, slots=True)
class Observe:
    """Report the weights that keys get from the last `last` queries, None for all.

    `[N, G, n]`, summed over these queries; with `per_query` `[N, G, w, n]`, a row for each.
    """

    last: int | None = None
    per_query: bool = False


@dataclass(frozen=True, slots=True)
class Scoring:
    """`softcap` c turns a score s into c · tanh(s / c) before the mask (Gemma 2, arXiv 2408.00118).

    `extra` [N, G, 1, 1], float32, is a logit beyond all keys: it takes part in the softmax's
    denominator and has no value (gpt-oss, arXiv 2508.10925).
    """

    softcap: float | None = None
    extra: mx.array | None = None
    observe: Observe | None = None

    @property
    def is_plain(self) -> bool:
        """Whether a fused attention computes just this."""
        return self.softcap is None and self.extra is None and self.observe is None

    def first_observed(self, tokens: int) -> int:
        """Which of the `tokens` queries is the first that is observed."""
        assert self.observe is not None, "nothing is observed"
        last = self.observe.last
        return 0 if last is None else max(0, tokens - last)

    def reduced(self, weights: Sequence[mx.array]) -> mx.array:
        """The report from the observed queries' weights, each `[N, G, T, n]`, in order."""
        assert self.observe is not None, "nothing is observed"
        if self.observe.per_query:
            return weights[0] if len(weights) == 1 else mx.concatenate(list(weights), axis=2)
        total = weights[0].sum(axis=2)
        for more in weights[1:]:
            total = total + more.sum(axis=2)
        return total


PLAIN = Scoring()
