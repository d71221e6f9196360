"""The command on a real pretrained model: SmolLM2-135M-Instruct."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.real


def test_a_chat_answers_and_does_not_echo_the_template(cli: Callable, smollm2: Path) -> None:
    run = ("sample", smollm2, "--chat", "--prompt", "What is the capital of France?")
    done = cli(*run, "--temp", 0, "--tokens", 30)
    assert done.text.decode() == "The capital of France is Paris."
    assert done.status == 0


def test_a_chat_prompt_has_its_first_token_once(
    cli: Callable, smollm2: Path, tmp_path: Path
) -> None:
    """The template writes <|im_start|>, which is also the BOS: nothing may add another."""
    stats = tmp_path / "stats.json"
    run = ("sample", smollm2, "--tokens", 1, "--temp", 0, "--stats-json", stats)
    cli(*run, "--chat", "--system", "Be brief.", "--prompt", "Hi")
    chat = json.loads(stats.read_text())["prompt_tokens"]
    text = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
    prompt = tmp_path / "prompt"
    prompt.write_text(text + "<|im_start|>assistant\n")
    cli(*run, "--prompt-file", prompt)
    assert json.loads(stats.read_text())["prompt_tokens"] == chat


def test_the_main_job_runs_on_a_real_model(cli: Callable, smollm2: Path, tmp_path: Path) -> None:
    stats = tmp_path / "stats.json"
    job = ("--kv-quantize", "int8", "--streaming-llm-sink", 4, "--streaming-llm-window", 64)
    run = ("sample", smollm2, "--prompt", "The quick brown fox", *job, "--ignore-eos")
    done = cli(*run, "--temp", 0, "--tokens", 100, "--stats-json", stats)
    figures = json.loads(stats.read_text())
    assert figures["generated_tokens"] == 100 and figures["cache"]["held"] == 68
    window_in_fp32 = 30 * 3 * 64 * 2 * 4 * 68  # what is kept, unpacked
    # int8 with scales is 0.28 of it; whole groups, half-precision tail and sinks add to that
    assert figures["cache"]["bytes"] < 0.6 * window_in_fp32
    assert done.text.startswith(b"The quick brown fox")
