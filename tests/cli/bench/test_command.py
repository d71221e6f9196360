"""`tinygpt bench` end to end on small models."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tinygpt.cli.main import run
from tinygpt.cli.signals import Interrupted, Signals
from tinygpt.evaluate import roofline

KEYS = {
    "cache",
    "length",
    "repetitions",
    "prefill_tokens_per_second",
    "first_token_seconds",
    "decode_tokens_per_second",
    "latency_p50",
    "latency_p90",
    "latency_p99",
    "bytes",
    "peak_bytes",
    "prefill_floor_seconds",
    "decode_floor_seconds",
}
SHORT = ("--lengths", "20,60", "--tokens", 5, "--repeat", 2)


@pytest.fixture(autouse=True)
def quick_roofline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roofline, "BYTES", 1 << 24)


def test_every_cache_is_measured_at_every_length(cli: Callable, rope: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    caches = ("--cache", "full", "int8,window=64", "--roofline", "--json", out)
    done = cli("bench", rope, *caches, *SHORT)
    assert done.status == 0, done.notes
    content = json.loads(out.read_text())
    assert [(one["length"], one["cache"]) for one in content["bench"]] == [
        (length, cache) for length in (20, 60) for cache in ("full", "int8,window=64")
    ]
    for one in content["bench"]:
        assert set(one) == KEYS and one["repetitions"] == 2
        assert 0 < one["latency_p50"] <= one["latency_p90"] <= one["latency_p99"]
        assert 0 < one["bytes"] < one["peak_bytes"]
        assert 0 < one["decode_floor_seconds"] < one["prefill_floor_seconds"] * 2
    table = done.text.decode()
    assert len([line for line in table.splitlines() if line.startswith("int8,window=64")]) == 2
    assert "≥ token ms" in table and "memory bandwidth:" in table


def test_ctrl_c_prints_what_has_been_run(rope: Path, capfd: pytest.CaptureFixture[str]) -> None:
    class StopsAfterThree(Signals):
        runs = 0

        def check(self) -> None:
            self.runs += 1
            if self.runs == 3:
                self.received = 2
                raise Interrupted(2)

    line = ["bench", str(rope), "--cache", "full", "int8", *map(str, SHORT)]
    assert run(line, StopsAfterThree()) == 130
    table, notes = capfd.readouterr()
    assert "interrupted; what is done follows" in notes
    assert [line.split()[:2] for line in table.splitlines()[1:]] == [
        ["full", "20"],
        ["int8", "20"],
        ["full", "60"],
    ]


def test_what_cannot_be_run_is_refused_first(
    refused: Callable, rope: Path, learned: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "no MODEL given" in refused("bench")
    assert "there is no key 'bits'" in refused("bench", rope, "--cache", "bits=8")
    assert "--lengths is 'many'" in refused("bench", rope, "--lengths", "many")
    long = ("--lengths", "250", "--tokens", 7)
    assert "full holds at most this model's 256 learned" in refused("bench", learned, *long)
    monkeypatch.setattr("tinygpt.evaluate.mlx_lm.util.find_spec", lambda name: None)
    assert "mlx-lm is not installed" in refused("bench", rope, "--versus", "mlx-lm")


def test_mlx_lm_runs_alternately_and_the_ratios_are_printed(
    cli: Callable, rope: Path, tmp_path: Path
) -> None:
    pytest.importorskip("mlx_lm")
    out = tmp_path / "out.json"
    caches = ("full", "int8", "int8,window=64")
    done = cli("bench", rope, "--cache", *caches, *SHORT, "--versus", "mlx-lm", "--json", out)
    assert done.status == 0, done.notes
    assert done.notes.count("int8,window=64: mlx-lm cannot quantise a bounded cache") == 1
    content = json.loads(out.read_text())
    assert [(one["cache"], one["length"]) for one in content["pairs"]] == [
        (cache, length) for length in (20, 60) for cache in ("full", "int8")
    ]
    assert all(len(one["decode"]) == 2 and min(one["decode"]) > 0 for one in content["pairs"])
    assert "times as fast as" in done.text.decode()
