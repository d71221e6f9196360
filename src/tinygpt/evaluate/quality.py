"""Texts, teacher-forced through a cache, in lockstep with the full cache of the same weights.

Chunk by chunk, so that the logits of two runs are held for one chunk only. A text of n tokens has
n − 1 to predict; the last is not fed. An unbounded cache stops at the model's context.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import mlx.core as mx
import numpy as np

from tinygpt.cache import CacheSpec, KVCache
from tinygpt.engine import Engine
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
from tinygpt.models.transformer import Transformer

CHUNK = 256  # tokens; the logits of 256 × 49,152 are 50 MB


class Runner(Protocol):
    """Anything that keeps texts' keys and values while the texts are fed to it: an `Engine`."""

    def feed(self, rows: Sequence[Sequence[int]]) -> list[mx.array]:
        """Logits [n, V], evaluated, for the next n tokens of each text; n may be 0."""
        ...

    @property
    def row_bytes(self) -> list[int]:
        """Bytes held now for each text."""
        ...


@dataclass(frozen=True, slots=True)
class Text:
    """Token ids, and how many bytes of text each stands for."""

    ids: tuple[int, ...]
    widths: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A cache by name: how to make a runner, and where it must stop, if it must.

    `make` takes how many tokens each text is going to get, and at most how many at once; `limit` is
    tokens fed, None for no end.
    """

    name: str
    make: Callable[[Sequence[int], int], Runner]
    limit: int | None

    def reach(self, text: Text) -> int:
        """How many tokens of `text` are fed."""
        most = max(0, len(text.ids) - 1)
        return most if self.limit is None else min(most, self.limit)


def candidate(model: Transformer, name: str, spec: CacheSpec) -> Candidate:
    """One of our caches on `model`."""

    def make(tokens: Sequence[int], chunk: int) -> Runner:
        caches = [KVCache(spec, model.cache_layout()) for _ in tokens]
        engine = Engine(model, caches, chunk=chunk)
        engine.expect(tokens)
        return engine

    return Candidate(name, make, model.config.context if spec.held is None else None)


class Metrics:
    """One cache's figures. `result` may be asked for at any time."""

    def __init__(self, one: Candidate, reference: Candidate) -> None:
        self.one, self._reference = one, reference
        self.fed = 0
        self._positions: list[np.ndarray] = []
        self._scores: list[Scores] = []
        self._width = 0
        self._bytes = self._bytes_at = self._peak = 0
        self._vocab, self._seconds = 0, 0.0

    def feed(self, runner: Runner, rows: Sequence[Sequence[int]], others: int) -> list[np.ndarray]:
        """Logits [n, V] for `rows`; `others` bytes are of other caches, and no part of the peak."""
        mx.reset_peak_memory()
        started = time.perf_counter()
        logits = runner.feed(rows)
        self._seconds += time.perf_counter() - started
        self._peak = max(self._peak, mx.get_peak_memory() - others)
        return [np.asarray(of_row) for of_row in logits]

    def hold(self, nbytes: int, tokens: int) -> None:
        """The bytes of one text's cache after `tokens`; those of the longest text count."""
        if tokens >= self._bytes_at:
            self._bytes, self._bytes_at = nbytes, tokens

    def score(
        self, text: Text, start: int, logits: np.ndarray, expected: np.ndarray | None
    ) -> None:
        """Take the figures of one text's part of a chunk, which may be none of it.

        `expected` may be shorter than `logits`: the reference may have had to stop.
        """
        count = len(logits)
        if not count:
            return
        targets = np.array(text.ids[start + 1 : start + 1 + count])
        scores = score(logits, targets, None if expected is None else expected[:count])
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
        self, ones: Sequence[Candidate], reference: Candidate, *, chunk: int, batch: int
    ) -> None:
        self._reference = reference
        self._chunk, self._batch = chunk, batch
        self._metrics = [Metrics(one, reference) for one in ones]

    @property
    def results(self) -> list[Result]:
        """The figures of what has been scored so far, in the order of the caches."""
        return [one.result for one in self._metrics]

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
        reference = self._made(self._reference, texts)
        runners = [
            reference if one.one is self._reference else self._made(one.one, texts)
            for one in self._metrics
        ]
        longest = max(one.one.reach(text) for one in self._metrics for text in texts)
        for start in range(0, longest, self._chunk):
            expected = self._expected(reference, runners, self._rows(self._reference, texts, start))
            held = 0 if expected is None else sum(logits.nbytes for logits in expected)
            for one, runner in zip(self._metrics, runners, strict=True):
                rows = self._rows(one.one, texts, start)
                if not any(rows):
                    continue
                logits = expected
                if logits is None or runner is not reference:
                    logits = one.feed(runner, rows, held + _others(runner, reference, runners))
                for row, text in enumerate(texts):
                    one.score(text, start, logits[row], None if expected is None else expected[row])
                    if rows[row]:
                        one.hold(runner.row_bytes[row], start + len(rows[row]))
                report(sum(each.fed for each in self._metrics))

    def _made(self, one: Candidate, texts: Sequence[Text]) -> Runner:
        return one.make([one.reach(text) for text in texts], self._chunk)

    def _rows(self, one: Candidate, texts: Sequence[Text], start: int) -> list[tuple[int, ...]]:
        """The next ids of each text, none where `one` has reached the end."""
        end = start + self._chunk
        return [text.ids[start : max(start, min(end, one.reach(text)))] for text in texts]

    def _expected(
        self, reference: Runner, runners: Sequence[Runner], rows: Sequence[Sequence[int]]
    ) -> list[np.ndarray] | None:
        """The reference's logits; timed, if it is one of those that are measured."""
        if not any(rows):
            return None
        for one, runner in zip(self._metrics, runners, strict=True):
            if runner is reference:
                return one.feed(reference, rows, _others(reference, reference, runners))
        return [np.asarray(logits) for logits in reference.feed(rows)]


def _others(one: Runner, reference: Runner, runners: Sequence[Runner]) -> int:
    """Bytes of all caches but that of `one`."""
    others = {id(runner): runner for runner in (reference, *runners) if runner is not one}
    return sum(sum(runner.row_bytes) for runner in others.values())
