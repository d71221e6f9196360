"""From figures at each position to the figures of a table. Formats nothing."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tinygpt.evaluate.scores import Scores

FIRST_EDGES = (0, 256, 1024)  # later ranges double: 1k–2k, 2k–4k, …


@dataclass(frozen=True, slots=True)
class Range:
    """Figures of the predicted tokens at positions `start` ≤ p < `stop`; KL None: no reference."""

    start: int
    stop: int
    tokens: int
    perplexity: float
    perplexity_se: float | None
    compared: int
    kl_mean: float | None
    top1: float | None


@dataclass(frozen=True, slots=True)
class Result:
    """One cache over some texts: what `--json` writes, under these names and in this order.

    Nats for KL, shares for `top1`, bytes per sequence. None: there is nothing to say it from.
    """

    cache: str
    tokens: int
    perplexity: float | None
    perplexity_se: float | None
    bits_per_byte: float | None
    kl_mean: float | None
    kl_p99: float | None
    kl_max: float | None
    top1: float | None
    bytes: int
    bytes_per_token: float | None
    peak_bytes: int
    tokens_per_second: float | None
    by_position: tuple[Range, ...]

    @property
    def compared(self) -> int:
        """Over how many positions KL and agreement were taken."""
        return sum(part.compared for part in self.by_position)


def perplexity(nll: np.ndarray, vocab: int) -> float | None:
    """exp of the mean surprise in nats; None without tokens.

    Counted from a blind guess among `vocab` tokens, so that such a guess scores exactly `vocab`.
    """
    if not len(nll):
        return None
    return vocab * _exp(math.fsum(nll - np.log(vocab)) / len(nll))


def perplexity_se(nll: np.ndarray, vocab: int) -> float | None:
    """Its standard error: perplexity times that of the mean (delta method); None below 2 tokens.

    Tokens are taken as independent; neighbours are not quite, so this is a little small.
    """
    mean = perplexity(nll, vocab)
    if mean is None or len(nll) < 2:
        return None
    return mean * float((nll - np.log(vocab)).std(ddof=1)) / math.sqrt(len(nll))


def bits_per_byte(nll: np.ndarray, nbytes: int) -> float | None:
    """Bits that the scored tokens cost, over the bytes of text they stand for."""
    return math.fsum(nll) / math.log(2) / nbytes if len(nll) and nbytes else None


def by_position(positions: np.ndarray, scores: Scores, vocab: int) -> tuple[Range, ...]:
    """The figures apart by `positions` [n], ranges without tokens left out."""
    nll, kl, agree = scores.nll, scores.kl, scores.agree
    ranges, start, stop = [], *FIRST_EDGES[:2]
    last = int(positions.max()) if len(positions) else -1
    while start <= last:
        here = (positions >= start) & (positions < stop)
        mean = perplexity(nll[here], vocab)
        if mean is not None:
            known = here & ~np.isnan(kl)
            ranges.append(
                Range(
                    start,
                    stop,
                    int(here.sum()),
                    mean,
                    perplexity_se(nll[here], vocab),
                    int(known.sum()),
                    mean_or_none(kl[known]),
                    mean_or_none(agree[known]),
                )
            )
        start, stop = stop, FIRST_EDGES[2] if stop < FIRST_EDGES[2] else 2 * stop
    return tuple(ranges)


def mean_or_none(values: np.ndarray) -> float | None:
    """The mean, None of nothing."""
    return float(values.mean()) if len(values) else None


def _exp(nats: float) -> float:
    """A model that is sure of the wrong token can be worse than any float."""
    try:
        return math.exp(nats)
    except OverflowError:
        return math.inf
