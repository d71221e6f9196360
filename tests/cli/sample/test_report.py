"""The figures on stderr and in --stats-json are true, and are written whole or not at all."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import pytest

from tinygpt import __version__
from tinygpt.cache import CacheLayout, CacheSpec, LayerLayout
from tinygpt.cli import output
from tinygpt.cli.output import OutputError, write_json
from tinygpt.cli.sample.report import Figures, report_line
from tinygpt.cli.sample.session import memory_warning

PLAIN = CacheLayout((LayerLayout(kv_heads=8, head_dim=32, rope=None),) * 12)
FULL_BYTES_PER_TOKEN = 12 * 8 * 32 * 4 * 2


def test_stats_say_what_was_run_and_what_it_took(cli: Callable, rope: Path, tmp_path: Path) -> None:
    stats = tmp_path / "stats.json"
    cache = ("--kv-quantize", "int4", "--streaming-llm-window", 64)
    run = ("sample", rope, "--prompt", "x" * 100, "--tokens", 50, "--seed", 3, "--ignore-eos")
    done = cli(*run, *cache, "--stats-json", stats)
    figures = json.loads(stats.read_text())
    expected = {
        "version": __version__,
        "model": str(rope),
        "device": "gpu" if mx.default_device() == mx.Device(mx.gpu) else "cpu",
        "seed": 3,
        "finish_reason": "length",
        "prompt_tokens": 100,
        "prefill_tokens": 100,
        "generated_tokens": 50,
    }
    assert expected.items() <= figures.items()
    held = figures["cache"]
    assert (held["seen"], held["held"]) == (149, 68)
    assert held["spec"]["precision"] == "int4" and held["spec"]["window"] == 64
    assert held["spec"]["sink"] is None, "as asked for"
    assert held["resolved"] == {
        "precision": "int4",
        "group": 32,
        "residual": 8,
        "first_fp": 4,
        "sink": 4,
        "window": 64,
        "positions": "rolling",
    }
    assert 0 < held["bytes"] < figures["peak_memory"]
    rate = figures["generated_tokens"] / figures["decode_seconds"]
    assert figures["decode_tokens_per_second"] == pytest.approx(rate)
    assert "KV cache: 149 tokens" in done.notes and "stored 68" in done.notes


def test_stats_of_an_unpacked_cache_name_the_type_it_is_stored_in(
    cli: Callable, rope: Path, tmp_path: Path
) -> None:
    stats = tmp_path / "stats.json"
    for asked, stored in (("full", "fp32"), ("bf16", "bf16")):
        cli("sample", rope, "--tokens", 1, "--kv-quantize", asked, "--stats-json", stats)
        cache = json.loads(stats.read_text())["cache"]
        assert cache["spec"]["precision"] == asked
        assert cache["resolved"] == {
            "precision": stored,
            "group": None,
            "residual": None,
            "first_fp": None,
            "sink": 0,
            "window": None,
            "positions": "rolling",
        }


def test_the_unseeded_seed_is_in_the_stats_and_greedy_has_none(
    cli: Callable, rope: Path, tmp_path: Path
) -> None:
    stats = tmp_path / "stats.json"
    done = cli("sample", rope, "--tokens", 2, "--stats-json", stats)
    assert f"--seed {json.loads(stats.read_text())['seed']} " in done.notes
    cli("sample", rope, "--tokens", 2, "--temp", 0, "--stats-json", stats)
    assert json.loads(stats.read_text())["seed"] is None


def test_the_report_counts_tokens_seconds_and_rates() -> None:
    figures = Figures(
        prompt_tokens=100,
        prefill_tokens=100,
        prefill_seconds=0.5,
        generated_tokens=30,
        decode_seconds=2.0,
    )
    line = report_line(figures, cached=True)
    assert line == (
        "(30 tokens in 2.00 s — 15.0 tok/s · KV-cached · "
        "prefill 100 tokens in 0.50 s — 200.0 tok/s)"
    )


def test_the_report_has_two_lines_and_quiet_none(cli: Callable, rope: Path) -> None:
    run = ("sample", rope, "--prompt", "a", "--tokens", 5, "--seed", 1, "--ignore-eos")
    lines = cli(*run).notes.splitlines()
    assert re.fullmatch(r"\(5 tokens in [\d.]+ s — [\d.]+ tok/s · .*\)", lines[-2])
    assert lines[-1].startswith("KV cache: 5 tokens · ")
    assert cli(*run, "--quiet").notes == ""


def test_a_file_is_replaced_whole_and_keeps_the_umask(tmp_path: Path) -> None:
    target = tmp_path / "stats.json"
    target.write_text("old")
    link = tmp_path / "link.json"
    link.symlink_to(target)
    before = os.umask(0o027)
    try:
        write_json(link, {"größe": 1})
    finally:
        os.umask(before)
    assert json.loads(target.read_text()) == {"größe": 1} and link.is_symlink()
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link.json", "stats.json"]


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "stats.json"
    target.write_text("old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(output.os, "replace", full)
    with pytest.raises(OutputError, match="No space left"):
        write_json(target, {"a": 1})
    assert target.read_text() == "old" and list(tmp_path.iterdir()) == [target]


def test_a_device_is_written_to_and_not_replaced(cli: Callable, rope: Path) -> None:
    done = cli("sample", rope, "--tokens", 1, "--stats-json", "/dev/null")
    assert done.status == 0 and stat.S_ISCHR(os.stat("/dev/null").st_mode)


def test_a_prompt_that_does_not_fit_in_memory_is_warned_of_with_flags_that_fit() -> None:
    tokens = 10_000
    fits = memory_warning(CacheSpec(), PLAIN, tokens, FULL_BYTES_PER_TOKEN * tokens * 2)
    assert fits == [] == memory_warning(CacheSpec(), PLAIN, tokens, None)
    (half,) = memory_warning(CacheSpec(), PLAIN, tokens, FULL_BYTES_PER_TOKEN * tokens // 2)
    assert "--kv-quantize int8" in half and "10000 prompt tokens" in half
    (tenth,) = memory_warning(CacheSpec(), PLAIN, tokens, FULL_BYTES_PER_TOKEN * tokens // 20)
    assert "--streaming-llm-window" in tenth
    (none,) = memory_warning(CacheSpec(), PLAIN, tokens, 1_000)
    assert "nothing fits" in none


def test_a_long_prompt_names_what_makes_it_faster_once_and_a_short_one_does_not(
    cli: Callable, rope: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tinygpt.cli.sample.session.advice", lambda: "install something")
    run = ("sample", rope, "--device", "cpu", "--tokens", 1, "--prompt")
    assert cli(*run, "x" * 300).notes.count("install something") == 1
    assert "install something" not in cli(*run, "x" * 256).notes
