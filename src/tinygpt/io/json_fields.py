"""Typed fields out of a JSON header that may lie. Every refusal names the file and the field."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import NoReturn

from tinygpt.errors import CheckpointError
from tinygpt.io.checkpoint import shown

LARGEST = 2**31 - 1  # no size or offset in a header is larger


@dataclass(frozen=True, slots=True)
class Fields:
    """A JSON object and where it stands, e.g. "model.tinygpt: config". Null counts as absent."""

    where: str
    values: dict[str, object]

    def integer(self, key: str, default: int | None = None, low: int = 1) -> int:
        """An integer from `low` to 2³¹ − 1; CheckpointError if absent without a default."""
        value = self.values.get(key)
        value = default if value is None else value
        if type(value) is not int or not low <= value <= LARGEST:  # a bool is an int, not this one
            self.refuse(key, value, f"an integer from {low} to {LARGEST}")
        return value

    def optional_integer(self, key: str, low: int = 0) -> int | None:
        return None if self.values.get(key) is None else self.integer(key, low=low)

    def flag(self, key: str, default: bool = False) -> bool:
        value = self.values.get(key)
        value = default if value is None else value
        if not isinstance(value, bool):
            self.refuse(key, value, "true or false")
        return value

    def text(self, key: str) -> str | None:
        value = self.values.get(key)
        if value is not None and not isinstance(value, str):
            self.refuse(key, value, "a string")
        return value

    def refuse(self, key: str, value: object, expected: str) -> NoReturn:
        found = "missing" if value is None else shown(value)
        raise CheckpointError(f"{self.where} {key} is {found}, expected {expected}")


def parse_object(where: str, text: bytes) -> dict[str, object]:
    """A JSON object from untrusted bytes; numbers must be finite and keys unique."""
    try:
        value = json.loads(
            text.decode("utf-8"), parse_constant=_no_constant, object_pairs_hook=_unique
        )
    except RecursionError as error:
        raise CheckpointError(f"{where} is nested too deeply to be a header") from error
    except ValueError as error:
        reason = " ".join(str(error).split())
        raise CheckpointError(f"{where} is not UTF-8 JSON ({reason})") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{where} is a JSON {type(value).__name__}, expected an object")
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    values = dict(pairs)
    if len(values) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"key {shown(twice)} occurs twice in one object")
    return values
