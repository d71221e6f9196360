"""One benchmark: measure the caches, print what was run, also after Ctrl-C."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import cast

import mlx.core as mx
import numpy as np

from tinygpt import __version__
from tinygpt.cache import CacheSpec
from tinygpt.cli.caches import read_caches
from tinygpt.cli.device import advise
from tinygpt.cli.options import check_model
from tinygpt.cli.output import TextOutput, interruption, note, write_json
from tinygpt.cli.progress import Progress, stderr_is_terminal
from tinygpt.cli.signals import Interrupted, Signals
from tinygpt.cli.table import NONE, aligned
from tinygpt.errors import ConfigError
from tinygpt.evaluate.bench import BenchResult, Case, Ours, Pair, pairs, run_cases, summarise
from tinygpt.evaluate.mlx_lm import MlxLm
from tinygpt.evaluate.roofline import bandwidth, decode_floor, prefill_floor, weight_bytes
from tinygpt.io.load import layout_of, load_model, open_checkpoint
from tinygpt.ops.backend import block_sizes
from tinygpt.units import size

CACHES = ("full", "int8", "int4")


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """One `tinygpt bench` command line; lengths are tokens."""

    model: Path
    cache: tuple[str, ...]
    lengths: tuple[int, ...]
    tokens: int
    repeat: int
    versus: str | None
    roofline: bool
    json: Path | None
    seed: int
    device: str | None
    weights_dtype: str | None


def build_options(values: Mapping[str, object]) -> BenchOptions:
    """The options of a parsed command line; ConfigError without a model."""
    check_model(cast("Path | None", values["model"]), "tinygpt bench model.tinygpt")
    return BenchOptions(**{field.name: values[field.name] for field in fields(BenchOptions)})  # type: ignore[arg-type]


class BenchRun:
    """Races what one command line asks for. `go` is called once.

    Raises:
        TinyGPTError: the request or the model is refused; nothing has been run.
    """

    def __init__(self, options: BenchOptions, signals: Signals) -> None:
        self._options, self._signals = options, signals
        checkpoint = open_checkpoint(options.model)
        config = checkpoint.config
        layout = layout_of(checkpoint, options.weights_dtype)
        caches = read_caches(options.cache or CACHES, False, layout, config, note)
        longest = max(options.lengths) + options.tokens
        for name, spec in caches.items():
            if config.rope is None and spec.held is None:
                _check_length(name, longest, config.context)
        self._model = load_model(checkpoint, options.weights_dtype)
        self._cases = self._line_up(caches)
        if longest > config.context and any(spec.held is None for spec in caches.values()):
            note(f"{longest} tokens are more than this model's context of {config.context}")
        rng = np.random.default_rng(options.seed)
        self._prompts = {
            length: [int(token) for token in rng.integers(0, config.vocab_size, length)]
            for length in options.lengths
        }
        self._done = 0
        total = sum(case.length + options.tokens for case in self._cases) * options.repeat
        advise(note)
        self._progress = Progress("bench", total, stderr_is_terminal())

    def go(self, output: TextOutput) -> int:
        """Run, print, and return the exit status."""
        options = self._options
        rate = bandwidth() if options.roofline else None
        try:
            run_cases(self._cases, self._prompts, options.tokens, options.repeat, self._reach)
        except Interrupted:  # at once, in the middle of a run: it may take minutes, and is lost
            note(interruption(any(case.timings for case in self._cases)))
        finally:
            self._signals.patient = True  # from here on there is only printing
            self._progress.close()
        if rate is not None:
            rate = max(rate, bandwidth())  # the machine may have been busy with something else
        results = [summarise(case) for case in self._cases if case.timings]
        compared = pairs(self._cases)
        if results:
            output.write(bench_table(results, self._floors(results, rate)))
        if compared:
            output.write("\n" + pair_table(compared))
        if rate is not None:
            output.write(
                f"\nmemory bandwidth: {size(rate)}/s, the best of products before and after\n"
            )
        if options.json is not None:
            write_json(options.json, self._json(results, compared, rate))
        return self._signals.status

    def _line_up(self, caches: Mapping[str, CacheSpec]) -> list[Case]:
        """A case for each length and cache, its rival's right after it."""
        peer = MlxLm(self._model) if self._options.versus else None
        cases = []
        for length in self._options.lengths:
            for name, spec in caches.items():
                case = Case(name, length, Ours(self._model, spec))
                cases.append(case)
                reason = None if peer is None else peer.refuses(spec)
                if peer is not None and reason is None:
                    case.rival = f"mlx-lm {name}"
                    cases.append(Case(case.rival, length, peer.program(spec)))
                elif reason is not None and length == self._options.lengths[0]:
                    note(f"{name}: mlx-lm {reason}")
        return cases

    def _reach(self, tokens: int) -> None:
        self._done += tokens
        self._progress.reach(self._done)
        self._signals.check()

    def _floors(
        self, results: list[BenchResult], rate: float | None
    ) -> list[tuple[float, float]] | None:
        """Seconds for the prefill and for one token that the bandwidth allows, for each result."""
        if rate is None:
            return None
        weights, chunk = weight_bytes(self._model), block_sizes().prefill_chunk
        return [
            (
                prefill_floor(weights, one.bytes, rate, -(-one.length // chunk)),
                decode_floor(weights, one.bytes, rate),
            )
            for one in results
        ]

    def _json(
        self, results: list[BenchResult], compared: list[Pair], rate: float | None
    ) -> dict[str, object]:
        floors = self._floors(results, rate)
        on_gpu = mx.default_device() == mx.Device(mx.gpu)
        return {
            "version": __version__,
            "model": str(self._options.model),
            "device": "gpu" if on_gpu else "cpu",
            "tokens": self._options.tokens,
            "bandwidth": rate,
            "bench": [
                {
                    **asdict(one),
                    "prefill_floor_seconds": floors[at][0] if floors else None,
                    "decode_floor_seconds": floors[at][1] if floors else None,
                }
                for at, one in enumerate(results)
            ],
            "pairs": [asdict(pair) for pair in compared],
        }


def bench_table(results: list[BenchResult], floors: list[tuple[float, float]] | None) -> str:
    """A line for each cache and length; times in milliseconds."""
    head = ["cache", "prompt", "prefill tok/s", "first ms", "decode tok/s", "p50 ms", "p90", "p99"]
    rows = [[*head, "bytes", "peak", *(["≥ first ms", "≥ token ms"] if floors else [])]]
    for at, one in enumerate(results):
        latencies = (one.latency_p50, one.latency_p90, one.latency_p99)
        rows.append(
            [
                one.cache,
                str(one.length),
                f"{one.prefill_tokens_per_second:.1f}",
                f"{1000 * one.first_token_seconds:.1f}",
                f"{one.decode_tokens_per_second:.1f}",
                *(f"{1000 * seconds:.2f}" for seconds in latencies),
                size(one.bytes),
                size(one.peak_bytes),
                *(f"{1000 * seconds:.2f}" for seconds in (floors[at] if floors else ())),
            ]
        )
    return aligned(rows)


def pair_table(compared: list[Pair]) -> str:
    """How many times as fast each pair of runs was, and the median."""
    rows = [["times as fast as", "prompt", "prefill", "decode", "pairs of decode"]]
    for pair in compared:
        each = " ".join(f"{ratio:.2f}" for ratio in pair.decode) or NONE
        medians = (statistics.median(ratios) for ratios in (pair.prefill, pair.decode))
        rows.append([pair.rival, str(pair.length), *(f"{middle:.2f}" for middle in medians), each])
    return aligned(rows)


def _check_length(name: str, tokens: int, context: int) -> None:
    if tokens > context:
        raise ConfigError(
            f"--lengths and --tokens make {tokens}, and {name} holds at most this model's "
            f"{context} learned positions; take fewer, or a cache with a window"
        )
