"""Text to ids and back. Knows bytes and tokenizer.json; knows nothing of models or caches."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import tokenizers

from tinygpt.errors import ConfigError, UnsupportedError

# Ends of a document or a turn in the models we know; each stops a generation where it is a control
# token, because files often name only one of them.
END_TOKENS = (
    "<|im_end|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|end_of_text|>",
    "<|eom_id|>",
    "<|end|>",
    "<end_of_turn>",
    "<eos>",
    "</s>",
)


class Tokenizer(Protocol):
    """Ids are 0 … vocab_size − 1; an id that stands for no text has no bytes.

    `chat_template` is Jinja source. `bos_token` and `eos_token` are the texts templates refer to.
    """

    @property
    def vocab_size(self) -> int: ...
    @property
    def bos_id(self) -> int | None: ...
    @property
    def add_bos(self) -> bool: ...
    @property
    def eos_ids(self) -> frozenset[int]: ...
    @property
    def chat_template(self) -> str | None: ...
    @property
    def bos_token(self) -> str | None: ...
    @property
    def eos_token(self) -> str | None: ...

    def encode(self, text: str) -> list[int]:
        """Ids of a text, which begin with a BOS if the model wants one.

        A BOS that the text already begins with, as some chat templates write it, is not doubled.

        Raises:
            ConfigError: not valid Unicode.
        """
        ...

    def encode_plain(self, text: str) -> list[int]:
        """As `encode` but never adds a BOS: for a piece of text that is not its beginning."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes one token adds to the text, b"" for a control token.

        Raises:
            ConfigError: an id outside the vocabulary.
        """
        ...

    def decode(self, ids: Iterable[int]) -> str:
        """The text of some ids; bytes that are not UTF-8 become U+FFFD."""
        ...


@dataclass(frozen=True, slots=True)
class ByteTokenizer:
    """One byte is one token; ids from 256 on, BOS and ends of text stand for nothing."""

    vocab_size: int = 256
    bos_id: int | None = None
    add_bos: bool = False
    eos_ids: frozenset[int] = frozenset()
    chat_template: str | None = None
    bos_token: str | None = None
    eos_token: str | None = None

    def __post_init__(self) -> None:
        if self.vocab_size < 256:
            raise ConfigError(
                f"a byte-level tokenizer needs a vocabulary of at least 256 ids, this model has "
                f"{self.vocab_size}; give the tokenizer it was trained with by --tokenizer DIR"
            )

    def encode(self, text: str) -> list[int]:
        return _begin_with_bos(self, self.encode_plain(text))

    def encode_plain(self, text: str) -> list[int]:
        return list(_utf8(text))

    def token_bytes(self, token_id: int) -> bytes:
        _check_id(token_id, self.vocab_size)
        is_text = token_id < 256 and token_id != self.bos_id and token_id not in self.eos_ids
        return bytes([token_id]) if is_text else b""

    def decode(self, ids: Iterable[int]) -> str:
        return b"".join(map(self.token_bytes, ids)).decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class TokenizerOptions:
    """What a tokenizer.json does not say. `vocab_size` None: as many ids as it has."""

    vocab_size: int | None = None
    bos_id: int | None = None
    add_bos: bool = False
    eos_ids: frozenset[int] = frozenset()
    chat_template: str | None = None
    eos_id: int | None = None  # the one that templates call eos_token


class HFTokenizer:
    """A `tokenizers.Tokenizer` whose pieces are byte-level or SentencePiece-like.

    Raises:
        UnsupportedError: pieces of another kind, whose bytes we would have to guess.
    """

    def __init__(self, inner: tokenizers.Tokenizer, options: TokenizerOptions) -> None:
        self.inner = inner
        self._pieces = _Pieces.of(inner)
        self._added = inner.get_added_tokens_decoder()
        ids = inner.get_vocab(with_added_tokens=True).values()
        self._options = options
        self.vocab_size = max(options.vocab_size or 0, max(ids, default=-1) + 1)
        self.bos_id = options.bos_id
        self.add_bos = options.add_bos
        self.eos_ids = options.eos_ids
        self.chat_template = options.chat_template
        self.bos_token = self._text_of(options.bos_id)
        self.eos_token = self._text_of(options.eos_id)

    def encode(self, text: str) -> list[int]:
        return _begin_with_bos(self, self.encode_plain(text))

    def encode_plain(self, text: str) -> list[int]:
        _utf8(text)
        ids: list[int] = self.inner.encode(text, add_special_tokens=False).ids
        return ids

    def token_bytes(self, token_id: int) -> bytes:
        _check_id(token_id, self.vocab_size)
        added = self._added.get(token_id)
        if added is not None:
            return b"" if added.special else str(added.content).encode()
        piece = self.inner.id_to_token(token_id)
        return b"" if piece is None else self._pieces.to_bytes(piece)

    def decode(self, ids: Iterable[int]) -> str:
        text = b"".join(map(self.token_bytes, ids)).decode("utf-8", "replace")
        return text[1:] if self._pieces.strips_space and text.startswith(" ") else text

    def to_json(self) -> str:
        """The tokenizer.json text, for tools that take one."""
        return str(self.inner.to_str())

    def _text_of(self, token_id: int | None) -> str | None:
        return None if token_id is None else self.inner.id_to_token(token_id)


@dataclass(frozen=True, slots=True)
class _Pieces:
    """How the pieces of a vocabulary spell bytes, read off the decoder."""

    byte_level: bool
    strips_space: bool = False

    @classmethod
    def of(cls, inner: tokenizers.Tokenizer) -> _Pieces:
        steps = _decoder_steps(inner)
        kinds = {str(step.get("type")) for step in steps}
        if "ByteLevel" in kinds:
            return cls(byte_level=True)
        if kinds & {"Metaspace", "ByteFallback"}:
            strips = any(
                step.get("prepend_scheme") in ("first", "always") or step.get("type") == "Strip"
                for step in steps
            )
            return cls(byte_level=False, strips_space=strips)
        found = ", ".join(sorted(kinds)) or "no decoder"
        raise UnsupportedError(
            f"a tokenizer with {found} is not supported; byte-level and Metaspace/ByteFallback are"
        )

    def to_bytes(self, piece: str) -> bytes:
        if self.byte_level:
            table = byte_alphabet()
            known = all(character in table for character in piece)
            return bytes(table[character] for character in piece) if known else piece.encode()
        if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
            try:
                return bytes.fromhex(piece[3:5])
            except ValueError:
                pass
        return piece.replace("\u2581", " ").encode()


@lru_cache(maxsize=1)
def byte_alphabet() -> dict[str, int]:
    """GPT-2's printable character for each byte, as character → byte."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in plain}
    others = [byte for byte in range(256) if byte not in set(plain)]
    return table | {chr(256 + i): byte for i, byte in enumerate(others)}


def end_ids(inner: tokenizers.Tokenizer) -> frozenset[int]:
    """Ids of the well-known end tokens that are control tokens of this vocabulary."""
    added = inner.get_added_tokens_decoder()
    return frozenset(
        i for i, token in added.items() if token.special and token.content in END_TOKENS
    )


def _decoder_steps(inner: tokenizers.Tokenizer) -> list[dict[str, object]]:
    decoder = json.loads(inner.decoder.__getstate__()) if inner.decoder else {}
    steps = decoder.get("decoders", [decoder]) if decoder else []
    return [step for step in steps if isinstance(step, dict)]


def _begin_with_bos(tokenizer: Tokenizer, ids: list[int]) -> list[int]:
    bos = tokenizer.bos_id
    if bos is None or not tokenizer.add_bos or ids[:1] == [bos]:
        return ids
    return [bos, *ids]


def _utf8(text: str) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"the text holds U+{ord(text[error.start]):04X} at character {error.start}, half of a "
            "surrogate pair, which is not valid Unicode; give the text as UTF-8"
        ) from error


def _check_id(token_id: int, vocab_size: int) -> None:
    if not 0 <= token_id < vocab_size:
        raise ConfigError(f"token id {token_id} is outside the vocabulary, 0 to {vocab_size - 1}")
