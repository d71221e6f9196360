"""Frozen dataclasses as JSON and back, by their type hints. Knows no field of any of them.

A key is the field's name in camel case. What a class adds later is written and read without a
change here; a key that no field has is refused, because it would change what the others mean.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing

from tinygpt.errors import CheckpointError, ConfigError
from tinygpt.io.checkpoint import shown
from tinygpt.io.json_fields import LARGEST, Fields


def camel_case(name: str) -> str:
    """`norm_eps` is "normEps"."""
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def to_json(value: object) -> object:
    """A field's value as JSON; fields of an inner dataclass that have their default are left out.

    Raises:
        ConfigError: a number that is not finite, which JSON cannot hold.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            camel_case(field.name): to_json(getattr(value, field.name))
            for field in dataclasses.fields(value)
            if getattr(value, field.name) != field.default
        }
    if isinstance(value, (tuple, list)):
        return [to_json(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{value} cannot be written into a .tinygpt header; it must be finite")
    return value


def from_json(fields: Fields, key: str, hint: object, value: object) -> object:
    """`value`, found at `key`, as the type that `hint` says.

    Raises:
        CheckpointError: it is of another type, naming the key.
    """
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):  # X | None; null never gets here
        (hint,) = (member for member in arguments if member is not type(None))
        return from_json(fields, key, hint, value)
    if origin is typing.Literal:
        if type(value) is not str or value not in arguments:
            fields.refuse(key, value, "one of " + ", ".join(map(repr, arguments)))
        return value
    if origin is tuple:
        if not isinstance(value, list):
            fields.refuse(key, value, "a list")
        kinds = arguments[:1] * len(value) if arguments[-1] is Ellipsis else arguments
        if len(kinds) != len(value):
            fields.refuse(key, value, f"a list of {len(kinds)}")
        pairs = zip(kinds, value, strict=True)
        return tuple(from_json(fields, f"{key}[{i}]", *pair) for i, pair in enumerate(pairs))
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return _of_class(fields, key, hint, value)
    return _scalar(fields, key, hint, value)


def _of_class(fields: Fields, key: str, kind: type, value: object) -> object:
    if not isinstance(value, dict):
        fields.refuse(key, value, "an object")
    inner = Fields(f"{fields.where} {key}", value)
    try:
        return kind(**field_values(inner, kind))
    except ConfigError as error:
        raise CheckpointError(f"{inner.where}: {error}") from error


def field_values(fields: Fields, kind: type) -> dict[str, object]:
    """Arguments for the dataclass `kind` from a JSON object; null counts as absent.

    Raises:
        CheckpointError: a value of the wrong type, a field that is missing, a key with no field.
    """
    hints = typing.get_type_hints(kind)
    keys = {camel_case(field.name): field for field in dataclasses.fields(kind)}
    for key in fields.values:
        if key not in keys:
            raise CheckpointError(
                f"{fields.where} has the key {shown(key)}, this version knows {', '.join(keys)}"
            )
    found: dict[str, object] = {}
    for key, field in keys.items():
        value = fields.values.get(key)
        if value is not None:
            found[field.name] = from_json(fields, key, hints[field.name], value)
        elif _is_required(field):
            fields.refuse(key, None, "a value")
    return found


def _is_required(field: dataclasses.Field[object]) -> bool:
    missing = dataclasses.MISSING
    return field.default is missing and field.default_factory is missing


def _scalar(fields: Fields, key: str, hint: object, value: object) -> object:
    if hint is bool:
        right, expected = isinstance(value, bool), "true or false"
    elif hint is int:
        right = type(value) is int and -LARGEST <= value <= LARGEST
        expected = f"an integer of at most {LARGEST}"
    elif hint is float:
        right = type(value) in (int, float) and math.isfinite(_as_float(value))
        expected = "a finite number"
    else:
        right, expected = isinstance(value, str), "a string"
    if not right:
        fields.refuse(key, value, expected)
    return _as_float(value) if hint is float else value


def _as_float(value: object) -> float:
    """Infinity for an integer that is too large for a float."""
    assert isinstance(value, (int, float))
    try:
        return float(value)
    except OverflowError:
        return math.inf
