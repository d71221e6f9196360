"""The tokenizer inside a GGUF file: its metadata becomes a `tokenizers.Tokenizer`.

Byte-level BPE only (model "gpt2"); the pre-tokenizers are those of llama.cpp, by their names.
"""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import numpy as np
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Inner

from tinygpt.errors import CheckpointError, UnsupportedError
from tinygpt.io.checkpoint import shown
from tinygpt.tokenizer import HFTokenizer, TokenizerOptions, end_ids

_PREFIX = "tokenizer.ggml."
_CONTROL, _USER_DEFINED = 3, 4
_STOP_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")


def read_gguf_tokenizer(path: Path, metadata: dict[str, object], vocab_size: int) -> HFTokenizer:
    """The tokenizer that a GGUF file's metadata describes.

    Raises:
        CheckpointError: a key is missing, of the wrong type, or contradicts another.
        UnsupportedError: a vocabulary or pre-tokenizer that this version does not read.
    """
    keys = _Keys(path, metadata)
    model = keys.text("model")
    if model is None:
        raise CheckpointError(f"{path}: {_PREFIX}model is missing; give a tokenizer by --tokenizer")
    if model != "gpt2":
        raise UnsupportedError(
            f"{path}: {_PREFIX}model {shown(model)} is not supported, this version reads 'gpt2'; "
            "give a tokenizer by --tokenizer DIR"
        )
    inner = _byte_level_bpe(keys)
    bos, eos = keys.token_id("bos_token_id", vocab_size), keys.token_id("eos_token_id", vocab_size)
    stops = {keys.token_id(key, vocab_size) for key in _STOP_KEYS} - {None}
    options = TokenizerOptions(
        vocab_size=vocab_size,
        bos_id=bos,
        add_bos=keys.flag("add_bos_token") and bos is not None,
        eos_ids=end_ids(inner) | {stop for stop in stops if stop is not None},
        chat_template=_chat_template(path, metadata),
        eos_id=eos,
    )
    return HFTokenizer(inner, options)


class _Keys:
    """Typed `tokenizer.ggml.*` metadata."""

    def __init__(self, path: Path, metadata: dict[str, object]) -> None:
        self.path = path
        self._metadata = metadata

    def text(self, name: str) -> str | None:
        value = self._metadata.get(_PREFIX + name)
        if value is not None and not isinstance(value, str):
            self.refuse(name, value, "a string")
        return value

    def flag(self, name: str) -> bool:
        value = self._metadata.get(_PREFIX + name, False)
        if not isinstance(value, bool):
            self.refuse(name, value, "true or false")
        return value

    def token_id(self, name: str, vocab_size: int) -> int | None:
        value = self._metadata.get(_PREFIX + name)
        if value is not None and (type(value) is not int or not 0 <= value < vocab_size):
            self.refuse(name, value, f"an id below {vocab_size}")
        return value

    def texts(self, name: str) -> list[str]:
        value = self._metadata.get(_PREFIX + name)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            self.refuse(name, value, "a list of strings")
        return value

    def token_types(self, count: int) -> list[int]:
        value = self._metadata.get(_PREFIX + "token_type")
        if value is None:
            return [1] * count
        if not isinstance(value, np.ndarray) or value.dtype.kind not in "iu" or len(value) != count:
            self.refuse("token_type", value, f"a list of {count} integers, one for each token")
        return [int(item) for item in value]

    def refuse(self, name: str, value: object, expected: str) -> NoReturn:
        found = "missing" if value is None else shown(value)
        raise CheckpointError(f"{self.path}: {_PREFIX}{name} is {found}, expected {expected}")


def _byte_level_bpe(keys: _Keys) -> Inner:
    tokens = keys.texts("tokens")
    vocabulary = {token: i for i, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        twice = next(token for i, token in enumerate(tokens) if vocabulary[token] != i)
        raise CheckpointError(f"{keys.path}: {_PREFIX}tokens has {shown(twice)} twice")
    merges = [_pair(keys, merge) for merge in keys.texts("merges")]
    try:
        inner = Inner(models.BPE(vocab=vocabulary, merges=merges, fuse_unk=False))
    except Exception as error:  # the library raises bare Exception, e.g. for an unknown token
        reason = " ".join(str(error).split())
        raise CheckpointError(f"{keys.path}: {_PREFIX}merges do not fit ({reason})") from error
    inner.pre_tokenizer = _pre_tokenizer(keys)
    inner.decoder = decoders.ByteLevel()
    types = keys.token_types(len(tokens))
    inner.add_tokens(
        [
            _added(token, kind)
            for token, kind in zip(tokens, types, strict=True)
            if kind in (_CONTROL, _USER_DEFINED)
        ]
    )
    return inner


def _pair(keys: _Keys, merge: str) -> tuple[str, str]:
    left, space, right = merge.partition(" ")
    if not (left and space and right) or " " in right:
        raise CheckpointError(
            f"{keys.path}: {_PREFIX}merges holds {shown(merge)}, expected two pieces and one space"
        )
    return left, right


def _added(token: str, kind: int) -> AddedToken:
    return AddedToken(token, special=kind == _CONTROL, normalized=False)


def _pre_tokenizer(keys: _Keys) -> pre_tokenizers.PreTokenizer:
    name = keys.text("pre") or "default"
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if name == "smollm":
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
    if name in ("gpt-2", "gpt2"):
        return byte_level
    if name == "default":
        return _default_pre_tokenizer()
    raise UnsupportedError(
        f"{keys.path}: {_PREFIX}pre {shown(name)} is not supported, this version reads 'smollm', "
        "'gpt-2' and 'default'; give a tokenizer by --tokenizer DIR"
    )


def _default_pre_tokenizer() -> pre_tokenizers.PreTokenizer:
    """llama.cpp's rules for files that name none: GPT-2's, with punctuation and digits apart."""
    gpt2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
    rules = (r"[\p{P}\$\+<=>\^~\|]+", gpt2, r"\p{N}+", "[0-9][0-9][0-9]")
    splits = [pre_tokenizers.Split(Regex(rule), "isolated") for rule in rules]
    last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([*splits, last])


def _chat_template(path: Path, metadata: dict[str, object]) -> str | None:
    template = metadata.get("tokenizer.chat_template")
    if template is not None and not isinstance(template, str):
        raise CheckpointError(
            f"{path}: tokenizer.chat_template is {shown(template)}, expected a string"
        )
    return template
