"""Timings are medians of alternated runs; the floor counts the bytes that are read."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from oracles.small_models import small_model
from tinygpt.cache import CacheSpec
from tinygpt.evaluate import roofline
from tinygpt.evaluate.bench import Case, Ours, Timing, pairs, run_cases, summarise


class Scripted:
    """A program that takes as long as it is told, run after run, and notes who ran when."""

    def __init__(self, name: str, firsts: list[float], log: list[str]) -> None:
        self._name, self._firsts, self._log = name, firsts, log

    def run(self, ids: Sequence[int], tokens: int) -> Timing:
        self._log.append(f"{self._name}{len(ids)}")
        first = self._firsts.pop(0)
        return Timing(first, (first / 10,) * (tokens - 1), 100, 1000)


def measured(*names_and_firsts: tuple[str, list[float]]) -> tuple[list[Case], list[str]]:
    log: list[str] = []
    cases = [
        Case(name, 20, Scripted(name, [9.0, *firsts], log)) for name, firsts in names_and_firsts
    ]
    cases[0].rival = cases[-1].cache
    done: list[int] = []
    run_cases(cases, {20: list(range(20))}, 5, 3, done.append)
    assert done == [25] * 6
    return cases, log


def test_runs_alternate_and_the_first_is_not_counted() -> None:
    _, log = measured(("a", [1, 1, 1]), ("b", [1, 1, 1]))
    assert log == ["a8", "b8", "a20", "b20", "b20", "a20", "a20", "b20"]


def test_figures_are_medians_and_pairs_are_run_by_run() -> None:
    cases, _ = measured(("a", [1.0, 4.0, 2.0]), ("b", [3.0, 4.0, 5.0]))
    one = summarise(cases[0])
    assert (one.first_token_seconds, one.prefill_tokens_per_second) == (2.0, 10.0)
    assert one.decode_tokens_per_second == pytest.approx(1 / 0.2)
    assert (one.latency_p50, one.repetitions) == (pytest.approx(0.2), 3)
    (pair,) = pairs(cases)
    assert (pair.cache, pair.rival) == ("a", "b")
    assert pair.prefill == (3.0, 1.0, 2.5)
    assert pair.decode == pytest.approx((3.0, 1.0, 2.5))


def test_our_racer_generates_what_was_asked_and_measures_its_cache() -> None:
    model = small_model("rope gqa").build()
    timing = Ours(model, CacheSpec()).run(list(range(40)), 10)
    assert len(timing.between) == 9 and timing.first > 0 and min(timing.between) > 0
    assert timing.bytes == 51 * 2 * 2 * 2 * 32 * 4  # reserved for one more: see `timed`
    assert timing.peak > timing.bytes


@pytest.mark.parametrize("kind", ["mha", "untied"])
def test_the_floor_counts_what_a_token_reads(kind: str) -> None:
    small = small_model(kind)
    tables = {"position_embedding.weight"}
    if kind == "untied":
        tables.add("token_embedding.weight")
    expected = sum(w.nbytes for name, w in small.weights.items() if name not in tables)
    assert roofline.weight_bytes(small.build()) == expected
    assert roofline.decode_floor(expected, 1000, 2.0) == (expected + 1000) / 2
    assert roofline.prefill_floor(100, 30, 1.0, chunks=2) == 200 + 15 + 30


def test_the_bandwidth_is_one_that_a_machine_can_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roofline, "BYTES", 1 << 24)
    assert 1e8 < roofline.bandwidth() < 1e13
