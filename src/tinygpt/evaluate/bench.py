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
from tinygpt.cache.spec import PREFILL_CHUNK
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


class Racer(Protocol):
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
    """A `Racer`: what `sample --temperature 0 --ignore-eos` runs."""

    model: Transformer
    spec: CacheSpec
    chunk: int = PREFILL_CHUNK

    def run(self, ids: Sequence[int], tokens: int) -> Timing:
        """See `Racer`."""
        cache = KVCache(self.spec, self.model.cache_layout())
        generation = Generation(
            self.model, cache, ids, mx.argmax, tokens=tokens + 1, prefill_chunk=self.chunk
        )
        return timed(lambda: generation, lambda: cache.nbytes, tokens)


@dataclass(slots=True)
class Race:
    """All the runs of one racer on one length; `rival` names the racer that it is paired with."""

    cache: str
    length: int
    racer: Racer
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


def run_races(
    races: Sequence[Race],
    prompts: dict[int, list[int]],
    tokens: int,
    repetitions: int,
    report: Callable[[int], None],
) -> None:
    """Run all `races` in turn, `repetitions` times, from the other end every second time.

    `prompts` are ids by length; `report` is told after each run how many tokens it took.
    """
    for race in races:
        race.racer.run(prompts[race.length][:WARM_UP], 2)
    for repetition in range(repetitions):
        for race in races if repetition % 2 == 0 else reversed(races):
            race.timings.append(race.racer.run(prompts[race.length], tokens))
            report(race.length + tokens)


def summarise(race: Race) -> BenchResult:
    """The medians of a race with at least one run."""
    runs = race.timings
    between = np.array([gap for run in runs for gap in run.between])
    p50, p90, p99 = (float(value) for value in np.percentile(between, [50, 90, 99]))
    first = statistics.median(run.first for run in runs)
    return BenchResult(
        cache=race.cache,
        length=race.length,
        repetitions=len(runs),
        prefill_tokens_per_second=race.length / first,
        first_token_seconds=first,
        decode_tokens_per_second=statistics.median(run.decode_rate for run in runs),
        latency_p50=p50,
        latency_p90=p90,
        latency_p99=p99,
        bytes=max(run.bytes for run in runs),
        peak_bytes=max(run.peak for run in runs),
    )


def pairs(races: Sequence[Race]) -> list[Pair]:
    """The ratios of each race to its rival's, run by run; runs without a partner are left out."""
    found = []
    by_name = {(race.cache, race.length): race for race in races}
    for race in races:
        other = by_name.get((race.rival or "", race.length))
        if other is None or not (race.timings and other.timings):
            continue
        both = list(zip(race.timings, other.timings, strict=False))
        prefill = tuple(theirs.first / ours.first for ours, theirs in both)
        decode = tuple(ours.decode_rate / theirs.decode_rate for ours, theirs in both)
        found.append(Pair(race.cache, other.cache, race.length, prefill, decode))
    return found
