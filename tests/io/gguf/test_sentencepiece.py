"""SentencePiece vocabularies of GGUF files segment as llama.cpp and as sentencepiece do."""

from __future__ import annotations

import io
import random
from pathlib import Path

import numpy as np
import pytest

from oracles import gguf_spm
from oracles.gguf_spm import BYTE, CONTROL, NORMAL, SPACE, UNKNOWN
from tinygpt.errors import CheckpointError, UnsupportedError
from tinygpt.io.gguf.tokenizer import read_gguf_tokenizer
from tinygpt.tokenizer import HFTokenizer

VOCABULARY = gguf_spm.vocabulary()
TOKENS: list[str] = VOCABULARY["tokens"]
SIZE = len(TOKENS)
BOS, EOS, END_OF_TURN = (TOKENS.index(token) for token in ("<s>", "</s>", "<end_of_turn>"))
ROUNDS = 300


def read(**changes: object) -> HFTokenizer:
    """The tokenizer of a file; None removes a key."""
    values: dict[str, object] = {
        "model": "llama",
        "pre": "default",
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "unknown_token_id": 0,
        **VOCABULARY,
        **changes,
    }
    keys = {f"tokenizer.ggml.{key}": value for key, value in values.items() if value is not None}
    return read_gguf_tokenizer(Path("m.gguf"), keys, len(values["tokens"] or ()) or SIZE)


def pieces(tokenizer: HFTokenizer, text: str) -> list[str]:
    return [TOKENS[i] for i in tokenizer.encode_plain(text)]


def random_text(rng: random.Random, *, special: bool) -> str:
    words = ["the", "cat", "ban", "ana", "ab", "ha", "a", " ", " ", "é", "🙂", SPACE, "."]
    words += ["<b>", "\n", "\n\n\n", "  ", "   ", "<s>"] if special else []
    return "".join(rng.choice(words) for _ in range(rng.randint(1, 30)))


@pytest.mark.parametrize("prefix", [True, False])
def test_segments_are_those_of_llama_cpp(prefix: bool) -> None:
    rng, tokenizer = random.Random(1), read(add_space_prefix=prefix)
    for _ in range(ROUNDS):
        text = random_text(rng, special=True)
        expected = gguf_spm.encode(
            text, TOKENS, VOCABULARY["scores"], VOCABULARY["token_type"], prefix=prefix
        )
        assert tokenizer.encode_plain(text) == expected, repr(text)


@pytest.mark.parametrize("letters", ["ab", "abn", "ah ", "a"])
def test_repeated_letters_join_from_the_left(letters: str) -> None:
    """Where unions overlap, the order of equal neighbours decides."""
    rng, tokenizer = random.Random(2), read(add_space_prefix=False)
    for _ in range(ROUNDS):
        text = "".join(rng.choice(letters) for _ in range(rng.randint(1, 24)))
        expected = gguf_spm.encode(
            text, TOKENS, VOCABULARY["scores"], VOCABULARY["token_type"], prefix=False
        )
        assert tokenizer.encode_plain(text) == expected, repr(text)


@pytest.mark.parametrize("prefix", [True, False])
def test_segments_are_those_of_the_sentencepiece_package(prefix: bool) -> None:
    spm = pytest.importorskip("sentencepiece", reason="sentencepiece is not installed")
    model = io.BytesIO()
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(gguf_spm.TEXT.splitlines() * 5),
        model_writer=model,
        model_type="bpe",
        vocab_size=360,
        hard_vocab_limit=False,
        byte_fallback=True,
        add_dummy_prefix=prefix,
        remove_extra_whitespaces=False,
        normalization_rule_name="identity",
        minloglevel=2,
    )
    theirs = spm.SentencePieceProcessor(model_proto=model.getvalue())
    ids = range(theirs.get_piece_size())
    kinds = [
        UNKNOWN if theirs.is_unknown(i)
        else CONTROL if theirs.is_control(i)
        else BYTE if theirs.is_byte(i)
        else NORMAL
        for i in ids
    ]  # fmt: skip
    ours = read(
        tokens=[theirs.id_to_piece(i) for i in ids],
        scores=np.array([theirs.get_score(i) for i in ids], np.float32),
        token_type=np.array(kinds, np.int32),
        add_space_prefix=prefix,
    )
    rng = random.Random(3)
    for _ in range(ROUNDS):
        text = random_text(rng, special=False)
        assert ours.encode_plain(text) == theirs.encode(text), repr(text)


def test_what_no_piece_spells_becomes_bytes() -> None:
    tokenizer = read(add_space_prefix=False)
    assert pieces(tokenizer, "🙂") == ["<0xF0>", "<0x9F>", "<0x99>", "<0x82>"]
    assert pieces(tokenizer, "\0\t") == ["<0x00>", "<0x09>"]
    ids = tokenizer.encode_plain("é🙂")
    assert b"".join(map(tokenizer.token_bytes, ids)) == "é🙂".encode()
    assert tokenizer.decode(ids) == "é🙂"


def test_a_space_goes_before_the_text_and_after_each_special_token() -> None:
    tokenizer = read()  # the default of such files
    assert pieces(tokenizer, "cat<s>cat") == [f"{SPACE}cat", "<s>", f"{SPACE}cat"]
    assert pieces(tokenizer, " cat")[0] == SPACE
    assert tokenizer.decode(tokenizer.encode_plain("the cat")) == "the cat"
    bare = read(add_space_prefix=False)
    assert pieces(bare, " cat<s>") == [f"{SPACE}cat", "<s>"]
    assert bare.decode(bare.encode_plain(" the cat")) == " the cat"


def test_user_defined_pieces_are_found_first_and_are_text() -> None:
    tokenizer = read(add_space_prefix=False)
    assert pieces(tokenizer, "a<b>\n\n\n  a") == ["a", "<b>", "\n\n", "\n", "  ", "a"]
    assert tokenizer.token_bytes(TOKENS.index("<b>")) == b"<b>"
    assert tokenizer.token_bytes(TOKENS.index("\n\n")) == b"\n\n"


def test_control_and_unknown_tokens_have_no_bytes() -> None:
    tokenizer = read(add_space_prefix=False)
    assert pieces(tokenizer, "<unk></s>") == ["<unk>", "</s>"]
    assert [tokenizer.token_bytes(i) for i in range(4)] == [b""] * 4


def test_the_text_of_a_byte_token_is_not_that_byte() -> None:
    tokenizer = read(add_space_prefix=False)
    assert TOKENS.index("<0x0A>") not in tokenizer.encode_plain("<0x0A>")
    assert tokenizer.decode(tokenizer.encode_plain("<0x0A>")) == "<0x0A>"


@pytest.mark.parametrize(
    ("changes", "first"),
    [({}, BOS), ({"add_bos_token": True}, BOS), ({"add_bos_token": False}, None)],
)
def test_bos_is_added_unless_the_file_says_no(
    changes: dict[str, object], first: int | None
) -> None:
    tokenizer = read(**changes)
    assert tokenizer.encode("cat")[0] == (TOKENS.index(f"{SPACE}cat") if first is None else first)
    assert BOS not in tokenizer.encode_plain("cat")


def test_stops_are_the_end_of_the_text_and_of_a_turn() -> None:
    assert read().eos_ids == {EOS, END_OF_TURN}
    assert read(eos_token_id=None, eot_token_id=7).eos_ids == {EOS, END_OF_TURN, 7}


def test_without_bytes_the_unknown_token_stands_in() -> None:
    kept = [i for i, kind in enumerate(VOCABULARY["token_type"]) if kind != BYTE]
    tokenizer = read(
        tokens=[TOKENS[i] for i in kept],
        scores=VOCABULARY["scores"][kept],
        token_type=VOCABULARY["token_type"][kept],
        add_space_prefix=False,
    )
    assert tokenizer.encode_plain("a🙂🙂a").count(0) == 1, "one for a run, as sentencepiece has it"


def scores(**changes: float) -> np.ndarray:
    changed = VOCABULARY["scores"].copy()
    for token, score in changes.items():
        changed[TOKENS.index(token)] = score
    return changed


LIES = {
    "scores missing": ({"scores": None}, "scores is missing"),
    "scores as text": ({"scores": "x"}, "scores is 'x'"),
    "scores too few": ({"scores": VOCABULARY["scores"][:-1]}, "scores is"),
    "scores as booleans": ({"scores": np.ones(SIZE, np.bool_)}, "scores is"),
    "a score NaN": ({"scores": scores(ha=np.nan)}, "finite"),
    "a score infinite": ({"scores": scores(ha=-np.inf)}, "finite"),
    "add_space_prefix as number": ({"add_space_prefix": 1}, "add_space_prefix is 1"),
    "a token twice": ({"tokens": ["a"] * SIZE}, "'a' twice"),
    "types too few": ({"token_type": np.ones(3, np.int32)}, "token_type"),
    "bos wanted and missing": ({"bos_token_id": None, "add_bos_token": True}, "bos_token_id"),
    "unknown past the vocabulary": ({"bos_token_id": SIZE}, "bos_token_id"),
}
UNSUPPORTED = {
    "equal scores": ({"scores": scores(ha=-1.0)}, "have one score, -1.0"),
    "no bytes and no unknown": (
        {"token_type": np.ones(SIZE, np.int32), "scores": -np.arange(SIZE, dtype=np.float32)},
        "neither 256 byte tokens",
    ),
    "spaces that are folded": ({"remove_extra_whitespaces": True}, "remove_extra_whitespaces"),
    "an end after each text": ({"add_eos_token": True}, "add_eos_token"),
    "another model": ({"model": "t5"}, "'t5'"),
}


@pytest.mark.parametrize("case", LIES)
def test_a_vocabulary_that_lies_is_refused(refused: object, case: str) -> None:
    changes, named = LIES[case]
    assert named in refused(CheckpointError, lambda: read(**changes))


@pytest.mark.parametrize("case", UNSUPPORTED)
def test_another_vocabulary_is_refused_by_its_name(refused: object, case: str) -> None:
    changes, named = UNSUPPORTED[case]
    message = refused(UnsupportedError, lambda: read(**changes))
    assert named in message
    assert "--tokenizer DIR" in message
