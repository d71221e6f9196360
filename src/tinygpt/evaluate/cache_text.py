"""Caches as text, `int8,sink=4,window=256`: the options of `tinygpt sample` by their keys."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tinygpt.cache.layout import CacheLayout
from tinygpt.cache.resolve import resolve_spec
from tinygpt.cache.spec import FLAGS, PRECISIONS, CacheSpec
from tinygpt.errors import ConfigError

FULL = "full"
GRID = (
    FULL,
    "fp16",
    "int8",
    "int4",
    "int3",
    "int2",
    "sink=0,window=256",
    "sink=4,window=256",
    "sink=4,window=256,positions=absolute",
    "int8,sink=4,window=256",
    "int4,sink=4,window=256",
)
_PARSERS = {flag.key: flag.parse for flag in FLAGS if flag.key != "prefill_chunk"}


def parse_cache(text: str) -> dict[str, object]:
    """The cache flags by key that `text` gives: a precision without a key, then `key=value`.

    Raises:
        ConfigError: an unknown or repeated key, or a value that `sample` would refuse as well.
    """
    given: dict[str, object] = {}
    for item in (part.strip() for part in text.split(",")):
        if not item and text.strip():
            raise ConfigError(
                f"--cache {text!r}: there is nothing after a comma or before one; write a "
                "cache without spaces, for instance int8,sink=4,window=256"
            )
        key, equals, value = item.partition("=")
        if not equals:
            key, value = "precision", item
        if key not in _PARSERS:
            raise ConfigError(
                f"--cache {text!r}: there is no key {key!r}; the keys are {', '.join(_PARSERS)}"
            )
        if key in given:
            raise ConfigError(f"--cache {text!r}: {key} is given twice; give it once")
        if not equals and item not in PRECISIONS:
            raise ConfigError(
                f"--cache {text!r}: {item!r} is neither key=value nor one of the precisions "
                f"{', '.join(PRECISIONS)}"
            )
        with _naming(text):
            given[key] = _PARSERS[key](value)
    return given


def read_cache(text: str, layout: CacheLayout, context: int) -> tuple[CacheSpec, tuple[str, ...]]:
    """The cache that `text` asks of a model, and notes; a file header's hints play no part.

    Raises:
        ConfigError: `parse_cache` refuses it, or it cannot be right with this model.
    """
    given = parse_cache(text)
    with _naming(text):
        resolved = resolve_spec(given, {}, layout, context=context)
    return resolved.spec, tuple(map(_by_keys, resolved.notes))


@contextmanager
def _naming(text: str) -> Iterator[None]:
    """A refusal names the cache it is of."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"--cache {text!r}: {_by_keys(str(error))}") from error


def _by_keys(message: str) -> str:
    """`message` with the keys of a cache's text instead of the flags of `sample`."""
    for flag in FLAGS:
        message = message.replace(flag.flag, flag.key)
    return message
