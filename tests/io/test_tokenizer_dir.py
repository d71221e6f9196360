"""A directory with tokenizer.json: what stands beside it decides BOS, stops and the template."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer, processors

from tinygpt.errors import CheckpointError
from tinygpt.io.tokenizer_dir import load_tokenizer_dir

# The fixture's ids: <s> 0, </s> 1, "ab" 2.


def beside(directory: Path, name: str, value: object) -> Path:
    (directory / name).write_text(value if isinstance(value, str) else json.dumps(value))
    return directory


def with_bos_processor(directory: Path) -> Path:
    path = str(directory / "tokenizer.json")
    inner = Tokenizer.from_file(path)
    inner.post_processor = processors.TemplateProcessing("<s> $A", None, [("<s>", 0)])
    inner.save(path)
    return directory


def test_a_lone_tokenizer_json_is_enough(word_tokenizer: Path) -> None:
    tokenizer = load_tokenizer_dir(word_tokenizer)
    assert tokenizer.encode("ab") == [2]
    assert tokenizer.bos_id is None
    assert not tokenizer.add_bos
    assert tokenizer.eos_ids == {1}  # </s> is a well-known control token
    assert tokenizer.chat_template is None
    assert load_tokenizer_dir(word_tokenizer, 512).vocab_size == 512


def test_the_post_processor_tells_that_a_bos_is_wanted(word_tokenizer: Path) -> None:
    tokenizer = load_tokenizer_dir(with_bos_processor(word_tokenizer))
    assert tokenizer.encode("ab") == [0, 2]
    assert tokenizer.encode_plain("ab") == [2]


@pytest.mark.parametrize("says", [True, False])
def test_add_bos_token_overrules_the_post_processor(word_tokenizer: Path, says: bool) -> None:
    directory = word_tokenizer if says else with_bos_processor(word_tokenizer)
    beside(directory, "tokenizer_config.json", {"bos_token": "<s>", "add_bos_token": says})
    assert load_tokenizer_dir(directory).encode("ab") == ([0, 2] if says else [2])


@pytest.mark.parametrize("listed", [2, [2, 1]])
def test_stop_ids_are_the_union_of_both_files(word_tokenizer: Path, listed: object) -> None:
    beside(word_tokenizer, "generation_config.json", {"eos_token_id": listed})
    beside(word_tokenizer, "tokenizer_config.json", {"eos_token": {"content": "<s>"}})
    tokenizer = load_tokenizer_dir(word_tokenizer)
    assert tokenizer.eos_ids == {0, 1, 2}
    assert tokenizer.eos_token == "<s>"


def test_the_template_is_found_wherever_it_may_be(word_tokenizer: Path) -> None:
    named = [{"name": "rag", "template": "R"}, {"name": "default", "template": "D"}]
    beside(word_tokenizer, "tokenizer_config.json", {"chat_template": named})
    assert load_tokenizer_dir(word_tokenizer).chat_template == "D"
    beside(word_tokenizer, "tokenizer_config.json", {"chat_template": "C"})
    assert load_tokenizer_dir(word_tokenizer).chat_template == "C"
    beside(word_tokenizer, "chat_template.jinja", "J")
    assert load_tokenizer_dir(word_tokenizer).chat_template == "J"


def test_damage_that_makes_the_library_panic_is_refused(
    word_tokenizer: Path, refused: object
) -> None:
    """A post-processor that names a token it does not define passes the library's own checks."""
    path = with_bos_processor(word_tokenizer) / "tokenizer.json"
    text = json.loads(path.read_text())
    text["post_processor"]["special_tokens"] = {}
    path.write_text(json.dumps(text))
    assert str(path) in refused(CheckpointError, lambda: load_tokenizer_dir(word_tokenizer))


DAMAGE = {
    "tokenizer.json": ["", "{", "[]", "\0", '{"model": {"type": "BPE"}}', '{"version": "1.0"}'],
    "tokenizer_config.json": ["{", "[]", "[" * 10**5, "NaN"],
    "generation_config.json": ["x", "3"],
}


@pytest.mark.parametrize(("name", "text"), [(n, t) for n, texts in DAMAGE.items() for t in texts])
def test_a_damaged_file_is_refused_by_its_name(
    word_tokenizer: Path, refused: object, name: str, text: str
) -> None:
    beside(word_tokenizer, name, text)
    message = refused(CheckpointError, lambda: load_tokenizer_dir(word_tokenizer))
    assert str(word_tokenizer / name) in message


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"])
def test_a_file_that_is_not_utf8_is_refused(
    word_tokenizer: Path, refused: object, name: str
) -> None:
    (word_tokenizer / name).write_bytes(b'{"a": "\xff"}')
    message = refused(CheckpointError, lambda: load_tokenizer_dir(word_tokenizer))
    assert name in message


def test_a_missing_directory_or_tokenizer_json_is_refused(tmp_path: Path, refused: object) -> None:
    gone = refused(CheckpointError, lambda: load_tokenizer_dir(tmp_path / "gone"))
    assert "no such" in gone
    empty = refused(CheckpointError, lambda: load_tokenizer_dir(tmp_path))
    assert "tokenizer.json" in empty


def test_a_tokenizer_with_more_ids_than_the_model_is_refused(
    word_tokenizer: Path, refused: object
) -> None:
    message = refused(CheckpointError, lambda: load_tokenizer_dir(word_tokenizer, 258))
    assert "259" in message


@pytest.mark.parametrize("highest", [2**24, 2**31 - 1])
def test_an_id_that_the_library_would_count_up_to_is_refused_at_once(
    word_tokenizer: Path, refused: Callable, highest: int
) -> None:
    path = word_tokenizer / "tokenizer.json"
    values = json.loads(path.read_text())
    values["model"]["vocab"]["a"] = highest
    path.write_text(json.dumps(values))
    assert str(highest) in refused(CheckpointError, lambda: load_tokenizer_dir(word_tokenizer))


def test_a_panic_in_the_library_is_one_line(
    word_tokenizer: Path, refused: Callable, capfd: pytest.CaptureFixture[str]
) -> None:
    path = word_tokenizer / "tokenizer.json"
    values = json.loads(path.read_text())
    values["model"]["continuing_subword_prefix"] = "longer than a piece"
    path.write_text(json.dumps(values))
    refused(CheckpointError, lambda: load_tokenizer_dir(word_tokenizer))
    assert capfd.readouterr().err == ""
