"""How long a prompt and each token after it take, and how much memory, by cache and length.

Runs of different caches alternate, so that a machine that slows down slows all of them, and every
figure is a median over repetitions.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import mlx.core as mx
import numpy as np

from tinygpt.cache import CacheSpec, KVCache
from tinygpt.generate import Generation
from tinygpt.models.transformer import Transformer

WARM_UP = 8  # tokens of a run that is not counted: the first pays for threads and kernels


@dataclass(frozen=True, slots=True)
class Timing:
    """One run: seconds to the first token and between tokens, bytes of the cache, peak bytes."""

    first: float
    between: tuple[float, ...]
    bytes: int
    peak: int

    @property
    def decode_rate(self) -> float:
        """Tokens a second after the first."""
        return len(self.between) / sum(self.between)


class Program(Protocol):
    """A program with a cache that can go on from a prompt."""

    def run(self, ids: Sequence[int], tokens: int) -> Timing:
        """Prefill `ids`, then decode `tokens` ≥ 2, greedily."""
        ...


def timed(start: Callable[[], Iterable[object]], nbytes: Callable[[], int], tokens: int) -> Timing:
    """The timing of the first `tokens` that `start()` gives; `nbytes` is asked after all.

    A program computes the next token while it hands one out, so the last of all costs nothing: let
    `start()` give one more where the program knows which is the last.
    """
    mx.clear_cache()
    mx.reset_peak_memory()
    began = time.perf_counter()
    stamps = [time.perf_counter() for _ in start()][:tokens]
    gaps = np.diff(stamps)
    return Timing(stamps[0] - began, tuple(map(float, gaps)), nbytes(), mx.get_peak_memory())


@dataclass(frozen=True, slots=True)
class Ours:
    """A `Program`: what `sample --temperature 0 --ignore-eos` runs."""

    model: Transformer
    spec: CacheSpec
    chunk: int | None = None

    def run(self, ids: Sequence[int], tokens: int) -> Timing:
        """See `Program`."""
        cache = KVCache(self.spec, self.model.cache_layout())
        generation = Generation(
            self.model, cache, ids, mx.argmax, tokens=tokens + 1, prefill_chunk=self.chunk
        )
        return timed(lambda: generation, lambda: cache.nbytes, tokens)


@dataclass(slots=True)
class Case:
    """All the runs of one program on one length; `rival` names the one it is paired with."""

    cache: str
    length: int
    program: Program
    rival: str | None = None
    timings: list[Timing] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class BenchResult:
    """Medians over `repetitions`; seconds, tokens per second, bytes. Latencies are per token."""

    cache: str
    length: int
    repetitions: int
    prefill_tokens_per_second: float
    first_token_seconds: float
    decode_tokens_per_second: float
    latency_p50: float
    latency_p90: float
    latency_p99: float
    bytes: int
    peak_bytes: int


@dataclass(frozen=True, slots=True)
class Pair:
    """How many times as fast as `rival` a cache was, one ratio for each pair of runs."""

    cache: str
    rival: str
    length: int
    prefill: tuple[float, ...]
    decode: tuple[float, ...]


def run_cases(
    cases: Sequence[Case],
    prompts: dict[int, list[int]],
    tokens: int,
    repetitions: int,
    report: Callable[[int], None],
) -> None:
    """Run all `cases` in turn, `repetitions` times, from the other end every second time.

    `prompts` are ids by length; `report` is told after each run how many tokens it took.
    """
    for case in cases:
        case.program.run(prompts[case.length][:WARM_UP], 2)
    for repetition in range(repetitions):
        for case in cases if repetition % 2 == 0 else reversed(cases):
            case.timings.append(case.program.run(prompts[case.length], tokens))
            report(case.length + tokens)


def summarise(case: Case) -> BenchResult:
    """The medians of a case with at least one run."""
    runs = case.timings
    between = np.array([gap for run in runs for gap in run.between])
    p50, p90, p99 = (float(value) for value in np.percentile(between, [50, 90, 99]))
    first = statistics.median(run.first for run in runs)
    return BenchResult(
        cache=case.cache,
        length=case.length,
        repetitions=len(runs),
        prefill_tokens_per_second=case.length / first,
        first_token_seconds=first,
        decode_tokens_per_second=statistics.median(run.decode_rate for run in runs),
        latency_p50=p50,
        latency_p90=p90,
        latency_p99=p99,
        bytes=max(run.bytes for run in runs),
        peak_bytes=max(run.peak for run in runs),
    )


def pairs(cases: Sequence[Case]) -> list[Pair]:
    """The ratios of each case to its rival's, run by run; runs without a partner are left out."""
    found = []
    by_name = {(case.cache, case.length): case for case in cases}
    for case in cases:
        other = by_name.get((case.rival or "", case.length))
        if other is None or not (case.timings and other.timings):
            continue
        both = list(zip(case.timings, other.timings, strict=False))
        prefill = tuple(theirs.first / ours.first for ours, theirs in both)
        decode = tuple(ours.decode_rate / theirs.decode_rate for ours, theirs in both)
        found.append(Pair(case.cache, other.cache, case.length, prefill, decode))
    return found
