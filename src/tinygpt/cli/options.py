"""Options of more than one command: their values, their parsing, what is wrong with them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import click

from tinygpt.cache.spec import PRECISIONS
from tinygpt.errors import ConfigError

# What is used where no MODEL is given: a small model of novels, inside the package.
DEMO_MODEL = Path(__file__).parents[1] / "data" / "demo.tinygpt"
WEIGHTS_DTYPES = ("fp32", "fp16", "bf16", "packed")
LISTS = ("--text", "--cache")  # options that take several values in a row


class ListsCommand(click.Command):
    """A command whose options in `LISTS` take every value up to the next option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        args, last = repeat_lists(args)
        if last is not None and not self._names_model(ctx, args):
            del args[last]  # `--text a MODEL`: the last value is no text
        return super().parse_args(ctx, args)

    def _names_model(self, ctx: click.Context, args: list[str]) -> bool:
        values, _, _ = self.make_parser(ctx).parse_args(list(args))
        return isinstance(values.get("model"), str)


def repeat_lists(arguments: list[str]) -> tuple[list[str], int | None]:
    """`--text a b` as `--text a --text b`, and where the last flag that was added is."""
    out: list[str] = []
    flag, added = None, None
    for before, item in zip(["", *arguments], arguments, strict=False):
        if item.startswith("-") and item != "-":
            flag = item if item in LISTS else None
        elif flag is not None and before != flag:
            added = len(out)
            out.append(flag)
        out.append(item)
    return out, added


Number = TypeVar("Number", int, float)


def parse_numbers(kind: type[Number], flag: str) -> Callable[[object], tuple[Number, ...]]:
    """A parser for numbers apart by commas: lengths from 1 on, depths from 0 to 1."""

    def parse(text: object) -> tuple[Number, ...]:
        try:
            values = tuple(kind(part) for part in str(text).split(","))
        except ValueError:
            values = ()
        good = all(value >= 1 if kind is int else 0 <= value <= 1 for value in values)
        if not values or not good:
            allowed = "whole numbers from 1 on" if kind is int else "numbers from 0 to 1"
            raise ConfigError(f"{flag} is {str(text)!r}; it must be {allowed}, apart by commas")
        return values

    return parse


def check_model(model: Path | None, example: str) -> None:
    """Raise ConfigError without a MODEL, also where the last value of a list was taken for it."""
    if model is None:
        raise ConfigError(f"no MODEL given; name a .tinygpt or .gguf file: {example}")
    first = str(model).partition(",")[0]
    if not model.exists() and ("=" in first or first in PRECISIONS):
        raise ConfigError(
            f"no MODEL given: {model} looks like a cache, and there is no such file; name a "
            f".tinygpt or .gguf file: {example}"
        )
