"""Texts, teacher-forced through a cache, in lockstep with the full cache of the same weights.

Chunk by chunk, so that the logits of two runs are held for one chunk only. A text of n tokens has
n − 1 to predict; the last is not fed. An unbounded cache stops at the model's context.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from tinygpt.cache import CacheSpec, KVCache
from tinygpt.errors import GenerationError
from tinygpt.evaluate.scores import Scores, joined, score
from tinygpt.evaluate.summary import (
    Result,
    bits_per_byte,
    by_position,
    mean_or_none,
    perplexity,
    perplexity_se,
)
from tinygpt.evaluate.text_feed import Runner, TextFeed
from tinygpt.models.transformer import Transformer

CHUNK = 256  # tokens; the logits of 256 × 49,152 are 50 MB
MakeRunner = Callable[[int], Runner]


@dataclass(frozen=True, slots=True)
class Text:
    """Token ids, and how many bytes of text each stands for."""

    ids: tuple[int, ...]
    widths: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Contestant:
    """A cache by name: how to make a runner for so many tokens, and where it must stop, if it must.

    `limit` is tokens fed, None for no end.
    """

    name: str
    make: MakeRunner
    limit: int | None

    def reach(self, text: Text) -> int:
        """How many tokens of `text` are fed."""
        most = max(0, len(text.ids) - 1)
        return most if self.limit is None else min(most, self.limit)


def contestant(model: Transformer, name: str, spec: CacheSpec) -> Contestant:
    """One of our caches on `model`."""

    def make(tokens: int) -> Runner:
        return TextFeed(model, KVCache(spec, model.cache_layout()), tokens)

    return Contestant(name, make, model.config.context if spec.held is None else None)


class Tally:
    """One cache's figures. `result` may be asked for at any time."""

    def __init__(self, one: Contestant, reference: Contestant) -> None:
        self.one, self._reference = one, reference
        self.fed = 0
        self._positions: list[np.ndarray] = []
        self._scores: list[Scores] = []
        self._width = 0
        self._bytes = self._bytes_at = self._peak = 0
        self._vocab, self._seconds = 0, 0.0

    def feed(self, runner: Runner, ids: np.ndarray, others: int) -> np.ndarray:
        """Logits for `ids` [B, T]; `others` bytes are of other caches, and no part of the peak."""
        mx.reset_peak_memory()
        started = time.perf_counter()
        logits = runner.feed(ids)
        self._seconds += time.perf_counter() - started
        self._peak = max(self._peak, mx.get_peak_memory() - others)
        return np.asarray(logits)

    def hold(self, nbytes: int, tokens: int) -> None:
        """The bytes of one text's cache after `tokens`; those of the longest text count."""
        if tokens >= self._bytes_at:
            self._bytes, self._bytes_at = nbytes, tokens

    def score(
        self, text: Text, start: int, logits: np.ndarray, expected: np.ndarray | None
    ) -> None:
        """Take the figures of one text's part of a chunk; past its end there is padding."""
        count = min(len(logits), self.one.reach(text) - start)
        if count <= 0:
            return
        targets = np.array(text.ids[start + 1 : start + 1 + count])
        if expected is not None:
            expected = expected[: max(0, min(count, self._reference.reach(text) - start))]
        scores = score(logits[:count], targets, expected)
        if not np.isfinite(scores.nll).all():
            at = start + 1 + int(np.argmin(np.isfinite(scores.nll)))
            raise GenerationError(
                f"{self.one.name}: the logits for position {at} are not finite: the weights are "
                "damaged, or a value passed the range of the cache's type; try fp32"
            )
        self._vocab = logits.shape[-1]
        self._scores.append(scores)
        self._positions.append(np.arange(start + 1, start + 1 + count))
        self._width += sum(text.widths[start + 1 : start + 1 + count])
        self.fed += count

    @property
    def result(self) -> Result:
        """The figures of what has been scored so far."""
        scores = joined(self._scores)
        nll, vocab = scores.nll, self._vocab
        known = scores.kl[~np.isnan(scores.kl)]
        positions = np.concatenate([np.zeros(0), *self._positions])
        return Result(
            cache=self.one.name,
            tokens=len(nll),
            perplexity=perplexity(nll, vocab),
            perplexity_se=perplexity_se(nll, vocab),
            bits_per_byte=bits_per_byte(nll, self._width),
            kl_mean=mean_or_none(known),
            kl_p99=float(np.percentile(known, 99)) if len(known) else None,
            kl_max=float(known.max()) if len(known) else None,
            top1=mean_or_none(scores.agree[~np.isnan(scores.agree)]),
            bytes=self._bytes,
            bytes_per_token=self._bytes / self._bytes_at if self._bytes_at else None,
            peak_bytes=self._peak,
            tokens_per_second=self.fed / self._seconds if self.fed else None,
            by_position=by_position(positions, scores, vocab),
        )


class Quality:
    """Runs caches over texts, `chunk` tokens at a time, `batch` texts in step.

    All `ones` go in lockstep, so the reference is computed once for all; one of them may be the
    reference itself. `results` may be asked for at any time, also after `run` was interrupted.
    """

    def __init__(
        self, ones: Sequence[Contestant], reference: Contestant, *, chunk: int, batch: int
    ) -> None:
        self._reference = reference
        self._chunk, self._batch = chunk, batch
        self._tallies = [Tally(one, reference) for one in ones]

    @property
    def results(self) -> list[Result]:
        """The figures of what has been scored so far, in the order of the caches."""
        return [tally.result for tally in self._tallies]

    def run(self, texts: Sequence[Text], report: Callable[[int], None]) -> None:
        """Score `texts`; `report` is told after each cache's chunk how many tokens all were fed.

        What `report` raises ends the run; some caches may then be one chunk further than others.

        Raises:
            GenerationError: logits that are not finite.
        """
        for low in range(0, len(texts), self._batch):
            together = [text for text in texts[low : low + self._batch] if len(text.ids) > 1]
            if together:
                self._run_in_step(together, report)

    def _run_in_step(self, texts: Sequence[Text], report: Callable[[int], None]) -> None:
        lengths = [max(map(tally.one.reach, texts)) for tally in self._tallies]
        common = max(map(self._reference.reach, texts))
        reference = self._reference.make(common)
        runners = [
            reference if tally.one is self._reference else tally.one.make(length)
            for tally, length in zip(self._tallies, lengths, strict=True)
        ]
        ids = _padded(texts)
        for start in range(0, max(lengths), self._chunk):
            piece = ids[:, start : start + self._chunk]
            expected = self._expected(reference, runners, piece[:, : max(0, common - start)])
            for tally, runner, length in zip(self._tallies, runners, lengths, strict=True):
                own = piece[:, : max(0, length - start)]
                if not own.shape[1]:
                    continue
                logits = expected
                if logits is None or runner is not reference:
                    held = 0 if expected is None else expected.nbytes
                    logits = tally.feed(runner, own, held + _others(runner, reference, runners))
                for row, text in enumerate(texts):
                    theirs = None if expected is None else expected[row]
                    tally.score(text, start, logits[row], theirs)
                tally.hold(runner.nbytes // len(texts), start + own.shape[1])
                report(sum(one.fed for one in self._tallies))

    def _expected(
        self, reference: Runner, runners: Sequence[Runner], ids: np.ndarray
    ) -> np.ndarray | None:
        """The reference's logits; timed, if it is one of those that are measured."""
        if not ids.shape[1]:
            return None
        for tally, runner in zip(self._tallies, runners, strict=True):
            if runner is reference:
                return tally.feed(reference, ids, _others(reference, reference, runners))
        return np.asarray(reference.feed(ids))


def _others(one: Runner, reference: Runner, runners: Sequence[Runner]) -> int:
    """Bytes of all caches but that of `one`."""
    return sum({id(r): r.nbytes for r in (reference, *runners) if r is not one}.values())


def _padded(texts: Sequence[Text]) -> np.ndarray:
    """Ids [B, longest]; a causal model never sees the zeros after a shorter text's end."""
    ids = np.zeros((len(texts), max(len(text.ids) for text in texts)), np.int32)
    for row, text in enumerate(texts):
        ids[row, : len(text.ids)] = text.ids
    return ids
