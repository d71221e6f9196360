"""What goes wrong while the text is made: status 1, the text so far, the report, one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from oracles import tinygpt_writer

CONFIG = {"vocabSize": 256, "ctx": 64, "layers": 1, "heads": 1, "dModel": 32, "dMlp": 48}
DAMAGED = 20  # the position whose embedding is not a number


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    weights = tinygpt_writer.random_model(CONFIG)
    weights["position_embedding.weight"][DAMAGED] = float("nan")
    return tinygpt_writer.write(tmp_path / "damaged.tinygpt", CONFIG, weights, "training")


def test_logits_that_are_not_finite_stop_the_run_naming_the_step(
    cli: Callable, damaged: Path, tmp_path: Path
) -> None:
    stats = tmp_path / "stats.json"
    run = ("sample", damaged, "--prompt", "abc", "--temp", 0, "--tokens")
    done = cli(*run, 60, "--stats-json", stats)
    figures = json.loads(stats.read_text())
    assert (done.status, figures["finish_reason"]) == (1, "error")
    assert figures["generated_tokens"] == DAMAGED - 3 + 1, "all tokens before the damage are good"
    assert done.text == cli(*run, figures["generated_tokens"]).text
    lines = done.notes.splitlines()
    assert lines[-1].startswith("tinygpt: error: ") and "not finite" in lines[-1]
    assert str(figures["generated_tokens"] + 1) in lines[-1], "the step is not named"
    assert lines[-2].startswith("KV cache:"), "the report is missing"


def test_without_a_cache_the_same_step_is_named_and_no_cache_flag(
    cli: Callable, damaged: Path
) -> None:
    run = ("sample", damaged, "--prompt", "abc", "--temp", 0, "--tokens", 60)
    cached, uncached = cli(*run), cli(*run, "--no-cache")
    assert (uncached.status, uncached.text) == (1, cached.text)
    last = uncached.notes.splitlines()[-1]
    assert f"token {DAMAGED - 3 + 2} (position {DAMAGED + 1})" in last, last
    assert last == cached.notes.splitlines()[-1], "the weights are to blame in both"


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("[malloc] Unable to allocate 8 bytes.")], ids=repr
)
def test_running_out_of_memory_is_one_line_that_says_what_takes_less(
    cli: Callable, damaged: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("tinygpt.cli.sample.session.load_model", fail)
    done = cli("sample", damaged)
    assert done.status == 1 and done.notes.count("\n") == 1
    assert "out of memory" in done.notes and "--streaming-llm-window" in done.notes


def test_an_error_that_is_ours_is_not_hidden(
    cli: Callable, damaged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr("tinygpt.cli.sample.session.load_model", fail)
    with pytest.raises(RuntimeError, match="a defect"):
        cli("sample", damaged)
