"""What `tinygpt sample` prints on stdout, byte for byte."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from oracles import tinygpt_writer
from tinygpt.cache import CacheSpec, KVCache
from tinygpt.generate import Generation
from tinygpt.io.load import load_model, open_checkpoint
from tinygpt.sampling import Sampler, SamplingOptions
from tinygpt.tokenizer import Tokenizer

PROMPT = "größte 🙂 "
GREEDY = ("--temperature", 0, "--ignore-eos")


@pytest.fixture(scope="module")
def greedy_ids(rope: Path, rope_tokenizer: Tokenizer) -> list[int]:
    """Sixty greedy tokens after PROMPT, from the engine itself."""
    model = load_model(open_checkpoint(rope))
    prompt = rope_tokenizer.encode(PROMPT)
    cache = KVCache(CacheSpec(), model.cache_layout())
    sampler = Sampler(SamplingOptions(temperature=0), prompt)
    return list(Generation(model, cache, prompt, sampler, tokens=60))


@pytest.mark.parametrize("tokens", range(1, 9))
def test_printed_bytes_are_the_decoding_of_all_ids(
    cli: Callable, rope: Path, rope_tokenizer: Tokenizer, greedy_ids: list[int], tokens: int
) -> None:
    done = cli("sample", rope, "--prompt", PROMPT, "--tokens", tokens, *GREEDY)
    assert done.status == 0, done.notes
    assert done.text.decode() == PROMPT + rope_tokenizer.decode(greedy_ids[:tokens])
    alone = cli("sample", rope, "--prompt", PROMPT, "--tokens", tokens, *GREEDY, "--no-echo")
    assert alone.text.decode() == rope_tokenizer.decode(greedy_ids[:tokens])


def test_without_a_cache_the_text_is_the_same(cli: Callable, learned: Path, rope: Path) -> None:
    for model in (learned, rope):
        run = ("sample", model, "--prompt", PROMPT, "--tokens", 40, *GREEDY)
        cached, uncached = cli(*run), cli(*run, "--no-cache")
        assert cached.text == uncached.text
        assert "KV-cached" in cached.notes and "KV cache:" in cached.notes
        assert "uncached" in uncached.notes and "KV cache:" not in uncached.notes


@pytest.mark.parametrize("model", ["learned", "rope"])
@pytest.mark.parametrize("precision", ["full", "fp16", "int8"])
def test_the_chunk_size_does_not_change_the_text(
    cli: Callable, request: pytest.FixtureRequest, model: str, precision: str
) -> None:
    path = request.getfixturevalue(model)
    window = ("--streaming-llm-window", 48, "--kv-quantize", precision)
    run = ("sample", path, "--prompt", PROMPT * 12, "--tokens", 40, *window, *GREEDY)
    texts = {cli(*run, "--prefill-chunk", chunk).text for chunk in (1, 7, 48, 1000)}
    assert len(texts) == 1


@pytest.mark.parametrize("model", ["learned", "rope"])
def test_the_main_job_runs_on_past_window_and_context(
    cli: Callable, request: pytest.FixtureRequest, tmp_path: Path, model: str
) -> None:
    path, stats = request.getfixturevalue(model), tmp_path / "stats.json"
    job = ("--kv-quantize", "int8", "--streaming-llm-sink", 4, "--streaming-llm-window", 64)
    done = cli(
        "sample", path, *job, "--tokens", 300, "--seed", 1, "--ignore-eos", "--stats-json", stats
    )
    assert done.status == 0, done.notes
    figures = json.loads(stats.read_text())
    assert figures["generated_tokens"] == 300 and figures["finish_reason"] == "length"
    assert figures["cache"]["seen"] == 300, "one start token and all generated ones but the last"
    assert figures["cache"]["held"] <= 68 and "(StreamingLLM cap)" in done.notes
    assert "KIVI: per-channel K + per-token V, 8-bit" in done.notes
    assert "StreamingLLM: sink=4 window=64" in done.notes


def test_zero_tokens_print_the_prompt_and_generate_nothing(cli: Callable, rope: Path) -> None:
    done = cli("sample", rope, "--prompt", PROMPT, "--tokens", 0)
    assert (done.status, done.text.decode()) == (0, PROMPT)
    assert "(0 tokens in" in done.notes


@pytest.mark.parametrize("model", ["learned", "rope"])
def test_an_empty_prompt_starts_from_the_start_token(
    cli: Callable, request: pytest.FixtureRequest, tmp_path: Path, model: str
) -> None:
    path = request.getfixturevalue(model)
    run = ("sample", path, "--tokens", 20, *GREEDY)
    start = tmp_path / "ids"
    start.write_text("10" if model == "learned" else "0")  # a newline; <|im_start|>
    expected = cli(*run, "--prompt-ids", start, "--no-echo")
    assert cli(*run, "--prompt", "").text == cli(*run).text == expected.text != b""


def test_a_character_that_prompt_ids_leave_unfinished_is_not_broken_by_the_echo(
    cli: Callable, learned: Path, tmp_path: Path
) -> None:
    ids = tmp_path / "ids.json"
    ids.write_text(json.dumps(list("ein 🙂".encode())[:-2]))
    run = ("sample", learned, "--prompt-ids", ids, *GREEDY, "--tokens")
    assert cli(*run, 0).text == "ein \ufffd".encode(), "one replacement for one cut character"
    text = cli(*run, 30).text
    assert text.startswith(b"ein ") and text.decode()


def test_a_seed_repeats_a_run_and_unseeded_runs_differ(cli: Callable, rope: Path) -> None:
    run = ("sample", rope, "--prompt", "a", "--tokens", 30, "--ignore-eos")
    assert cli(*run, "--seed", 7).text == cli(*run, "--seed", 7).text
    first, second = cli(*run), cli(*run)
    assert first.text != second.text
    seed = re.search(r"^seed (\d+) ", first.notes, re.MULTILINE)
    assert seed is not None, "an unseeded run must print its seed"
    assert cli(*run, "--seed", seed[1]).text == first.text


def test_no_seed_is_printed_where_none_is_used_or_it_was_given(cli: Callable, rope: Path) -> None:
    run = ("sample", rope, "--prompt", "a", "--tokens", 2)
    assert "seed" not in cli(*run, "--seed", 7).notes
    assert "seed" not in cli(*run, "--temp", 0).notes
    assert cli(*run, "--quiet").notes == ""


def test_a_stop_string_ends_the_text_before_it(
    cli: Callable, rope: Path, rope_tokenizer: Tokenizer, greedy_ids: list[int]
) -> None:
    whole = rope_tokenizer.decode(greedy_ids)
    stop = whole[9:13]  # four characters, so more than one token
    run = ("sample", rope, "--prompt", PROMPT, "--tokens", 60, *GREEDY, "--no-echo")
    assert (
        cli(*run, "--stop", "never there", "--stop", stop).text.decode()
        == (whole[: whole.index(stop)])
    )


def test_an_end_token_ends_the_text_and_is_not_printed(
    cli: Callable, rope: Path, tmp_path: Path
) -> None:
    """At this temperature all tokens of the random model are about equally likely."""
    stats = tmp_path / "stats.json"
    for seed in range(40):
        run = ("sample", rope, "--temp", 50, "--tokens", 200, "--seed", seed)
        done = cli(*run, "--stats-json", stats)
        figures = json.loads(stats.read_text())
        if figures["finish_reason"] == "stop":
            break
    assert figures["finish_reason"] == "stop" and figures["generated_tokens"] < 200
    on = cli(*run, "--ignore-eos", "--stats-json", stats)
    assert json.loads(stats.read_text())["generated_tokens"] == 200
    whole_characters = done.text.decode().rstrip("\ufffd")  # the last one may have been cut
    assert on.text.decode().startswith(whole_characters)


def test_learned_positions_end_the_text_with_a_note_unless_there_is_a_window(
    cli: Callable, learned: Path, tmp_path: Path
) -> None:
    stats = tmp_path / "stats.json"
    run = ("sample", learned, "--prompt", "ab", "--tokens", 400, *GREEDY, "--stats-json", stats)
    done = cli(*run)
    figures = json.loads(stats.read_text())
    assert (done.status, figures["finish_reason"]) == (0, "context")
    assert figures["generated_tokens"] == 256 - 2 + 1, "the last position still predicts a token"
    assert "--streaming-llm-window" in done.notes
    uncached = cli(*run, "--no-cache")
    assert uncached.text == done.text and uncached.status == 0
    assert "leave out --no-cache: --streaming-llm-window" in uncached.notes
    assert "--no-cache" not in done.notes
    cli(*run, "--streaming-llm-window", 32)
    assert json.loads(stats.read_text())["generated_tokens"] == 400


def test_a_rope_model_warns_once_that_a_text_passes_its_context(cli: Callable, rope: Path) -> None:
    run = ("sample", rope, "--prompt", "ab", "--temp", 0, "--tokens")
    assert cli(*run, 600).notes.count("512 tokens") == 1
    assert "512 tokens" not in cli(*run, 20).notes
    assert "512 tokens" not in cli(*run, 600, "--streaming-llm-window", 32).notes


@pytest.mark.parametrize("flags", [[], ["--kv-quantize", "int8"], ["--streaming-llm-window", "40"]])
def test_a_model_whose_layers_have_windows_of_their_own_runs(
    cli: Callable, tmp_path: Path, flags: list[str]
) -> None:
    config = {"vocabSize": 256, "ctx": 128, "layers": 2, "heads": 2, "dModel": 64, "dMlp": 64}
    config |= {"slidingWindow": 64}
    weights = tinygpt_writer.random_model(config)
    path = tinygpt_writer.write(tmp_path / "sliding.tinygpt", config, weights, "fp16")
    done = cli("sample", path, "--prompt", "hi", "--tokens", 90, "--seed", 1, *flags)
    assert done.status == 0, done.notes
    assert "90 tokens" in done.notes
