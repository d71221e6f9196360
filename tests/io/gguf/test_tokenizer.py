"""The tokenizer in a GGUF file's metadata: pieces, control tokens, stop ids, template."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from oracles import gguf_writer
from tinygpt.chat import render_chat
from tinygpt.errors import CheckpointError, UnsupportedError
from tinygpt.io.gguf.tokenizer import read_gguf_tokenizer
from tinygpt.io.load import open_checkpoint
from tinygpt.tokenizer import HFTokenizer

VOCAB = 258 + 8 * 12
A, I = 2 + ord("a"), 2 + ord("i")  # noqa: E741  ids of single bytes in the writer's vocabulary
AI = 258  # the first merge, "a" + "i"


def metadata(**changes: object) -> dict[str, object]:
    """`tokenizer.ggml.*` as a header has it; None removes a key."""
    tokens, merges, types = gguf_writer.vocabulary(VOCAB)
    values: dict[str, object] = {
        "model": "gpt2",
        "pre": "smollm",
        "tokens": tokens,
        "merges": merges,
        "token_type": np.array(types, np.int32),
        "bos_token_id": 0,
        "eos_token_id": 1,
    }
    values |= changes
    return {f"tokenizer.ggml.{key}": value for key, value in values.items() if value is not None}


def read(extra: dict[str, object] | None = None, **changes: object) -> HFTokenizer:
    return read_gguf_tokenizer(Path("m.gguf"), {**metadata(**changes), **(extra or {})}, VOCAB)


def test_pieces_merge_and_spell_bytes() -> None:
    tokenizer = read()
    assert tokenizer.encode("ai") == [AI]
    assert tokenizer.encode("ia") == [I, A]
    assert [tokenizer.token_bytes(byte + 2) for byte in range(256)] == [
        bytes([byte]) for byte in range(256)
    ]


def test_control_tokens_are_parsed_and_have_no_bytes() -> None:
    tokenizer = read()
    assert tokenizer.encode("<|im_start|>ai<|im_end|>") == [0, AI, 1]
    assert tokenizer.token_bytes(0) == b""
    assert tokenizer.decode([0, AI, 1]) == "ai"


def test_user_defined_tokens_are_text() -> None:
    types = np.array([3, 4, *[1] * (VOCAB - 2)], np.int32)
    tokenizer = read(token_type=types)
    assert tokenizer.encode("a<|im_end|>") == [A, 1]
    assert tokenizer.token_bytes(1) == b"<|im_end|>"


def test_bos_is_added_only_where_the_file_says_so() -> None:
    assert read().encode("a") == [A]
    assert read(add_bos_token=False).encode("a") == [A]
    tokenizer = read(add_bos_token=True)
    assert tokenizer.encode("a") == [0, A]
    assert tokenizer.encode_plain("a") == [A]
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<|im_start|>", "<|im_end|>")


@pytest.mark.parametrize(
    ("changes", "stops"),
    [
        ({"eos_token_id": None}, {1}),  # <|im_end|> is a control token
        ({"eos_token_id": A}, {1, A}),
        ({"eot_token_id": 7}, {1, 7}),
        ({"token_type": np.ones(VOCAB, np.int32), "eos_token_id": A}, {A}),
    ],
)
def test_stop_ids_are_all_that_the_file_and_its_control_tokens_name(
    changes: dict[str, object], stops: set[int]
) -> None:
    assert read(**changes).eos_ids == stops


def test_a_file_that_names_no_pre_tokenizer_has_the_default_one() -> None:
    inner = read(pre=None).inner
    cut = inner.pre_tokenizer.pre_tokenize_str("a1234 b!?  c")
    pieces = ["a1234 b!?  c"[start:end] for _, (start, end) in cut]
    assert pieces == ["a", "123", "4", " b", "!?", " ", " c"]


LIES = {
    "model missing": ({"model": None}, "model"),
    "model as number": ({"model": 3}, "model is 3"),
    "tokens missing": ({"tokens": None}, "tokens is missing"),
    "tokens as numbers": ({"tokens": [1, 2]}, "tokens is"),
    "a token twice": ({"tokens": ["a"] * VOCAB}, "'a' twice"),
    "merges missing": ({"merges": None}, "merges is missing"),
    "a merge of one piece": ({"merges": ["ai"]}, "merges holds 'ai'"),
    "a merge of three pieces": ({"merges": ["a i j"]}, "merges holds"),
    "a merge of unknown pieces": ({"merges": ["zz yy"]}, "merges do not fit"),
    "a merge into no token": ({"merges": ["a a"]}, "merges do not fit"),
    "types too few": ({"token_type": np.ones(3, np.int32)}, "token_type"),
    "types as text": ({"token_type": "x"}, "token_type"),
    "types as floats": ({"token_type": np.ones(VOCAB, np.float32)}, "token_type"),
    "bos past the vocabulary": ({"bos_token_id": VOCAB}, "bos_token_id"),
    "eos negative": ({"eos_token_id": -1}, "eos_token_id is -1"),
    "bos wanted and missing": ({"bos_token_id": None, "add_bos_token": True}, "bos_token_id"),
    "eos as boolean": ({"eos_token_id": True}, "eos_token_id is True"),
    "eot as text": ({"eot_token_id": "1"}, "eot_token_id"),
    "add_bos as number": ({"add_bos_token": 1}, "add_bos_token is 1"),
    "pre as number": ({"pre": 4}, "pre is 4"),
}


@pytest.mark.parametrize("case", LIES)
def test_a_vocabulary_that_lies_is_refused(refused: object, case: str) -> None:
    changes, named = LIES[case]
    assert named in refused(CheckpointError, lambda: read(**changes))


def test_a_template_that_is_no_text_is_refused(refused: object) -> None:
    extra = {"tokenizer.chat_template": ["x"]}
    assert "chat_template" in refused(CheckpointError, lambda: read(extra))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"model": "bert"}, "'bert'"),
        ({"pre": "kimi-k2"}, "'kimi-k2'"),
        ({"add_eos_token": True}, "add_eos_token"),
    ],
)
def test_another_vocabulary_is_refused_by_its_name(
    refused: object, changes: dict[str, object], named: str
) -> None:
    assert named in refused(UnsupportedError, lambda: read(**changes))


SMOLLM2_IDS = {
    "Hello world": [19556, 905],
    "2024": [34, 32, 34, 36],
    "<|im_start|>user\n": [1, 4093, 198],
    "": [],
}
ROUND_TRIPS = ("Grüße 🙂 日本語", "  indented\n\n\tline ", "x=12345;", "e\u0301 \u200d", "\0\x7f")


@pytest.fixture(scope="module")
def smollm2_tokenizer(smollm2: Path) -> HFTokenizer:
    return open_checkpoint(smollm2).read_tokenizer(None)


@pytest.mark.real
@pytest.mark.parametrize("text", SMOLLM2_IDS)
def test_smollm2_encodes_as_its_vocabulary_says(smollm2_tokenizer: HFTokenizer, text: str) -> None:
    """Ids read off the vocabulary: ĠHello words, single digits, control tokens 0 to 16."""
    assert smollm2_tokenizer.encode(text) == SMOLLM2_IDS[text]


@pytest.mark.real
@pytest.mark.parametrize("text", ROUND_TRIPS)
def test_smollm2_gives_any_text_back(smollm2_tokenizer: HFTokenizer, text: str) -> None:
    ids = smollm2_tokenizer.encode(text)
    assert smollm2_tokenizer.decode(ids) == text
    assert b"".join(map(smollm2_tokenizer.token_bytes, ids)) == text.encode()


@pytest.mark.real
def test_smollm2_stops_at_the_end_of_a_turn_and_of_a_text(smollm2_tokenizer: HFTokenizer) -> None:
    assert smollm2_tokenizer.eos_ids == {0, 2}
    assert smollm2_tokenizer.bos_id == 1
    assert not smollm2_tokenizer.add_bos
    assert smollm2_tokenizer.vocab_size == 49152


@pytest.mark.real
def test_smollm2_renders_its_chat_template(smollm2_tokenizer: HFTokenizer) -> None:
    plain = render_chat(smollm2_tokenizer, None, "Hi")
    assert plain == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
        "<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    told = render_chat(smollm2_tokenizer, "Be brief.", "Hi")
    assert told == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert smollm2_tokenizer.encode_plain(told).count(1) == 3
