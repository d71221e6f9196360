"""Typed `tokenizer.ggml.*` metadata, and the vocabulary in it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import numpy as np

from tinygpt.errors import CheckpointError
from tinygpt.io.checkpoint import shown

PREFIX = "tokenizer.ggml."
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)  # token types


@dataclass(frozen=True, slots=True)
class TokenizerKeys:
    """Typed `tokenizer.ggml.*` metadata."""

    path: Path
    metadata: dict[str, object]

    def text(self, name: str) -> str | None:
        value = self.metadata.get(PREFIX + name)
        if value is not None and not isinstance(value, str):
            self.refuse(name, value, "a string")
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.metadata.get(PREFIX + name, default)
        if not isinstance(value, bool):
            self.refuse(name, value, "true or false")
        return value

    def token_id(self, name: str, vocab_size: int) -> int | None:
        value = self.metadata.get(PREFIX + name)
        if value is not None and (type(value) is not int or not 0 <= value < vocab_size):
            self.refuse(name, value, f"an id below {vocab_size}")
        return value

    def texts(self, name: str) -> list[str]:
        value = self.metadata.get(PREFIX + name)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            self.refuse(name, value, "a list of strings")
        return value

    def token_types(self, count: int) -> list[int]:
        value = self.metadata.get(PREFIX + "token_type")
        if value is None:
            return [NORMAL] * count
        if not isinstance(value, np.ndarray) or value.dtype.kind not in "iu" or len(value) != count:
            self.refuse("token_type", value, f"a list of {count} integers, one for each token")
        return [int(item) for item in value]

    def scores(self, count: int) -> list[float]:
        value = self.metadata.get(PREFIX + "scores")
        expected = f"a list of {count} finite numbers, one for each token"
        if not isinstance(value, np.ndarray) or value.dtype.kind not in "fi" or len(value) != count:
            self.refuse("scores", value, expected)
        if not np.isfinite(value).all():
            self.refuse("scores", value, expected)
        return [float(item) for item in value]

    def refuse(self, name: str, value: object, expected: str) -> NoReturn:
        found = "missing" if value is None else shown(value)
        raise CheckpointError(f"{self.path}: {PREFIX}{name} is {found}, expected {expected}")


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Tokens and their types, by id; no token occurs twice."""

    keys: TokenizerKeys
    tokens: list[str]
    types: list[int]

    @classmethod
    def of(cls, keys: TokenizerKeys) -> Vocabulary:
        tokens = keys.texts("tokens")
        ids = {token: i for i, token in enumerate(tokens)}
        if len(ids) != len(tokens):
            twice = next(token for i, token in enumerate(tokens) if ids[token] != i)
            raise CheckpointError(f"{keys.path}: {PREFIX}tokens has {shown(twice)} twice")
        return cls(keys, tokens, keys.token_types(len(tokens)))
