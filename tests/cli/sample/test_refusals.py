"""Bad input gets one line on stderr and status 2, before weights are read."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import pytest

Refused = Callable[..., str]


@pytest.fixture
def truncated(rope: Path, tmp_path: Path) -> Path:
    path = tmp_path / "short.gguf"
    path.write_bytes(rope.read_bytes()[:-100])
    return path


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--tokens", "-1"], ["--tokens", "'-1'", "unlimited"]),
        (["--tokens", "many"], ["--tokens", "'many'"]),
        (["--tokens", "1_0"], ["--tokens", "'1_0'"]),
        (["--tokens", " 10"], ["--tokens", "' 10'"]),
        (["--tokens", "٣"], ["--tokens", "'٣'"]),
        (["--temperature", "-1"], ["--temperature", "-1.0"]),
        (["--temp", "nan"], ["--temperature", "nan"]),
        (["--temp", "1e39"], ["--temperature", "1e+39", "1e+30"]),
        (["--top-k", "99999999999"], ["--top-k", "99999999999", "2147483647"]),
        (["--top-p", "0"], ["--top-p", "0.0"]),
        (["--min-p", "2"], ["--min-p", "2.0"]),
        (["--repetition-penalty", "0"], ["--repetition-penalty"]),
        (["--repetition-window", "-3"], ["--repetition-window", "-3"]),
        (["--repetition-window", "99999999999"], ["--repetition-window", "2147483647"]),
        (["--seed", "-1"], ["--seed", "-1"]),
        (["--stop", ""], ["--stop"]),
        (["--prompt", "a", "--prompt-file", "b"], ["--prompt", "--prompt-file"]),
        (["--prompt-file", "a", "--prompt-ids", "b"], ["--prompt-file", "--prompt-ids"]),
        (["--prompt-file", "/no/such/file"], ["--prompt-file", "/no/such/file"]),
        (["--prompt-ids", "/no/such/file"], ["--prompt-ids", "/no/such/file"]),
        (["--prompt", "a", "--system", "b"], ["--system", "--chat"]),
        (["--chat"], ["--chat", "--prompt"]),
        (["--chat", "--prompt", "a"], ["chat template"]),  # this model has none
        (["--tokenizer", "/no/such/directory"], ["--tokenizer", "/no/such/directory"]),
        (["--stats-json", "/no/such/directory/a.json"], ["--stats-json", "/no/such/directory"]),
        (["--stats-json", "/"], ["--stats-json", "directory"]),
        (["--kv-quantize", "int5"], ["--kv-quantize", "int5", "int8"]),
        (["--kv-group", "16"], ["--kv-group", "16"]),
        (["--streaming-llm-window", "0"], ["--streaming-llm-window", "0"]),
        (["--streaming-llm-sink", "4"], ["--streaming-llm-sink", "--streaming-llm-window"]),
        (["--kv-max-bytes", "10"], ["--kv-max-bytes", "10"]),
        (["--kv-max-bytes", "lots"], ["--kv-max-bytes", "lots"]),
        (["--no-cache", "--kv-quantize", "int8"], ["--no-cache", "--kv-quantize"]),
        (["--weights-dtype", "int7"], ["--weights-dtype", "int7"]),
        (["--nonsense"], ["--nonsense", "--help"]),
        (["another-model"], ["another-model"]),
    ],
    ids=str,
)
def test_a_wrong_option_is_refused_in_one_line_that_names_it(
    refused: Refused, rope: Path, arguments: list[str], said: list[str]
) -> None:
    message = refused("sample", rope, *arguments)
    for words in said:
        assert words in message


def test_a_model_that_cannot_be_read_is_refused_naming_it(
    refused: Refused, truncated: Path, tmp_path: Path
) -> None:
    text = tmp_path / "text"
    text.write_text("just text")
    for command in ("sample", "inspect"):
        for path in ("/no/such/model", tmp_path, text, truncated, "/dev/null"):
            assert str(path) in refused(command, path)


def test_an_unknown_command_is_refused_naming_the_known_ones(refused: Refused) -> None:
    assert "sample" in refused("smaple")


def test_a_prompt_that_is_not_utf8_is_refused_with_the_offset_of_the_byte(
    refused: Refused, rope: Path, tmp_path: Path
) -> None:
    bad = tmp_path / "latin1.txt"
    bad.write_bytes("größte".encode("latin-1"))
    message = refused("sample", rope, "--prompt-file", bad)
    assert str(bad) in message and "byte 2" in message and "0xf6" in message
    assert "byte 2" in refused("sample", rope, "--prompt", os.fsdecode(b"gr\xf6\xdfte"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1 2 320", ["320", "index 2", "vocabulary of 320"]),
        ("1,-1", ["-1", "index 1"]),
        ("[5, 99999999999999999999]", ["99999999999999999999", "index 1"]),
        ("1 2 three", ["item 2", "three"]),
        ("[1, 2.5]", ["item 1", "2.5"]),
        ("[1, true]", ["item 1", "True"]),
        ("[1, 2", ["JSON"]),
        ("[" * 100_000, ["JSON"]),
        ("--5", ["item 0"]),
        ("٣", ["item 0"]),
        ("", ["--prompt-ids", "no token id"]),
        (" \n,", ["--prompt-ids", "no token id"]),
        ("[]", ["--prompt-ids", "no token id"]),
    ],
    ids=lambda v: str(v)[:20],
)
def test_ids_that_are_no_tokens_are_refused_naming_id_index_and_vocabulary(
    refused: Refused, rope: Path, tmp_path: Path, text: str, said: list[str]
) -> None:
    ids = tmp_path / "ids"
    ids.write_text(text)
    message = refused("sample", rope, "--prompt-ids", ids)
    for words in said:
        assert words in message


def test_a_prompt_longer_than_the_learned_positions_is_refused_naming_the_flags(
    refused: Refused, learned: Path
) -> None:
    message = refused("sample", learned, "--prompt", "x" * 257)
    assert "257" in message and "256" in message and "--streaming-llm-window" in message


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_directory_that_is_not_writable_is_refused_before_loading(
    refused: Refused, tmp_path: Path
) -> None:
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    assert "--stats-json" in refused("sample", "no-model", "--stats-json", tmp_path / "a.json")


@pytest.mark.skipif(mx.is_available(mx.gpu), reason="there is a GPU here")
def test_a_gpu_is_refused_where_there_is_none(refused: Refused, rope: Path) -> None:
    assert "--device gpu" in refused("sample", rope, "--device", "gpu")
