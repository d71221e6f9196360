"""Ids, bytes and text: a byte tokenizer, byte-level BPE and SentencePiece-like pieces."""

from __future__ import annotations

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from tinygpt.errors import ConfigError, UnsupportedError
from tinygpt.tokenizer import ByteTokenizer, HFTokenizer, TokenizerOptions, byte_alphabet, end_ids

TEXTS = ("", "plain", "Grüße 🙂 日本語", "\0\n\t \x7f", "e\u0301\u200d")


def byte_level(**options: object) -> HFTokenizer:
    """<|im_end|> = 0 (control), <tool> = 1 (text), "he" = 2, then the 256 bytes."""
    alphabet = sorted(byte_alphabet(), key=byte_alphabet().__getitem__)
    pieces = ["<|im_end|>", "<tool>", "he", *alphabet]
    inner = Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, [("h", "e")]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens(["<|im_end|>"])
    inner.add_tokens([AddedToken("<tool>", special=False, normalized=False)])
    return HFTokenizer(inner, TokenizerOptions(**options))


def metaspace(decoder: object) -> HFTokenizer:
    """<s> = 0, four bytes of an emoji as byte fallback, then words that begin at a space."""
    pieces = ["<s>", "<0xF0>", "<0x9F>", "<0x99>", "<0x82>", "▁good", "▁day", "s", "<0xZZ>"]
    inner = Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, []))
    inner.decoder = decoder
    inner.add_special_tokens(["<s>"])
    return HFTokenizer(inner, TokenizerOptions())


LLAMA_DECODER = decoders.Sequence(
    [
        decoders.Replace("▁", " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
        decoders.Strip(" ", 1, 0),
    ]
)


@pytest.mark.parametrize("text", TEXTS)
def test_bytes_are_their_own_ids(text: str) -> None:
    tokenizer = ByteTokenizer()
    ids = tokenizer.encode(text)
    assert ids == list(text.encode())
    assert tokenizer.decode(ids) == text
    assert b"".join(map(tokenizer.token_bytes, ids)) == text.encode()


def test_bytes_that_are_no_text_decode_to_replacement_characters() -> None:
    assert ByteTokenizer().decode([0x41, 0xFF, 0xF0, 0x9F]) == "A\ufffd\ufffd"


def test_a_byte_vocabulary_may_be_larger_and_not_smaller() -> None:
    assert ByteTokenizer(300).token_bytes(299) == b""
    with pytest.raises(ConfigError, match="255"):
        ByteTokenizer(255)


@pytest.mark.parametrize("token_id", [-1, 256, 10**9])
def test_an_id_outside_the_byte_vocabulary_is_refused(token_id: int) -> None:
    with pytest.raises(ConfigError, match="0 to 255"):
        ByteTokenizer().token_bytes(token_id)
    with pytest.raises(ConfigError, match=str(token_id)):
        ByteTokenizer().decode([65, token_id])


@pytest.mark.parametrize("tokenizer", [ByteTokenizer(), byte_level()])
def test_half_a_surrogate_pair_is_no_text(tokenizer: ByteTokenizer | HFTokenizer) -> None:
    with pytest.raises(ConfigError, match=r"U\+D83D at character 1"):
        tokenizer.encode("a\ud83d")


@pytest.mark.parametrize("text", TEXTS)
def test_byte_level_pieces_give_any_text_back(text: str) -> None:
    tokenizer = byte_level()
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert b"".join(map(tokenizer.token_bytes, ids)) == text.encode()


def test_every_byte_has_one_piece() -> None:
    tokenizer = byte_level()
    spelt = [tokenizer.token_bytes(3 + byte) for byte in range(256)]
    assert spelt == [bytes([byte]) for byte in range(256)]


def test_control_tokens_are_silent_and_added_text_is_not() -> None:
    tokenizer = byte_level()
    ids = tokenizer.encode("he<tool><|im_end|>")
    assert ids == [2, 1, 0]
    assert [tokenizer.token_bytes(i) for i in ids] == [b"he", b"<tool>", b""]
    assert tokenizer.decode(ids) == "he<tool>"


def test_a_bos_is_added_once_and_never_by_encode_plain() -> None:
    tokenizer = byte_level(bos_id=0, add_bos=True)
    assert tokenizer.encode("he") == [0, 2]
    assert tokenizer.encode_plain("he") == [2]
    assert tokenizer.bos_token == "<|im_end|>"
    assert byte_level(bos_id=0).encode("he") == [2]


def test_a_bos_that_the_text_begins_with_is_not_doubled() -> None:
    tokenizer = byte_level(bos_id=0, add_bos=True)
    assert tokenizer.encode("<|im_end|>he") == [0, 2]
    assert tokenizer.encode("<|im_end|>") == tokenizer.encode("") == [0]
    assert tokenizer.encode("he<|im_end|>") == [0, 2, 0]
    assert ByteTokenizer(257, bos_id=256, add_bos=True).encode("a") == [256, 97]


def test_a_padded_vocabulary_has_silent_ids_up_to_its_end() -> None:
    tokenizer = byte_level(vocab_size=300)
    assert tokenizer.vocab_size == 300
    assert tokenizer.token_bytes(299) == b""
    with pytest.raises(ConfigError, match="0 to 299"):
        tokenizer.token_bytes(300)
    assert byte_level().vocab_size == 259


def test_known_end_tokens_stop_only_as_control_tokens() -> None:
    assert end_ids(byte_level().inner) == {0}
    inner = Tokenizer(models.BPE({"</s>": 0}, []))
    assert end_ids(inner) == frozenset()


@pytest.mark.parametrize(
    "decoder", [LLAMA_DECODER, decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])]
)
def test_sentencepiece_like_pieces_spell_spaces_and_bytes(decoder: object) -> None:
    tokenizer = metaspace(decoder)
    assert [tokenizer.token_bytes(i) for i in range(9)] == [
        b"",
        b"\xf0",
        b"\x9f",
        b"\x99",
        b"\x82",
        b" good",
        b" day",
        b"s",
        b"<0xZZ>",
    ]
    assert tokenizer.decode([5, 6, 7, 1, 2, 3, 4]) == "good days🙂"


def test_pieces_of_another_kind_are_refused_by_name() -> None:
    with pytest.raises(UnsupportedError, match="WordPiece"):
        metaspace(decoders.WordPiece())
    with pytest.raises(UnsupportedError, match="no decoder"):
        HFTokenizer(Tokenizer(models.BPE({"a": 0}, [])), TokenizerOptions())


def test_the_tokenizer_json_text_makes_the_same_tokenizer() -> None:
    tokenizer = byte_level()
    again = HFTokenizer(Tokenizer.from_str(tokenizer.to_json()), TokenizerOptions())
    assert again.encode("he said ß") == tokenizer.encode("he said ß")
