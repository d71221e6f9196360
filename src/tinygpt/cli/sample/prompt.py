"""Where the prompt comes from, and the ids it becomes.

One source: `--prompt`, `--prompt-file`, `--prompt-ids`, or, when none of them is given, stdin if it
is a pipe or a regular file (so a terminal, /dev/null or a socket is never waited for). Text is
taken exactly as it is, a last newline included. No prompt, or an empty text, starts from the
model's BOS; a model without one starts from its first end token, and a byte-level model, which
has neither, from a newline.
"""

from __future__ import annotations

import json
import os
import re
import stat
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tinygpt.cli.reading import STDIN, decode_utf8
from tinygpt.errors import ConfigError

if TYPE_CHECKING:
    from tinygpt.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class PromptSource:
    """What the command line says about the prompt; files are still to be read."""

    prompt: str | None = None
    prompt_file: str | None = None
    prompt_ids: str | None = None
    chat: bool = False
    system: str | None = None

    def __post_init__(self) -> None:
        given = {
            "--prompt": self.prompt,
            "--prompt-file": self.prompt_file,
            "--prompt-ids": self.prompt_ids,
        }
        flags = [flag for flag, value in given.items() if value is not None]
        if len(flags) > 1:
            raise ConfigError(f"{flags[0]} and {flags[1]} both give the prompt; use one of them")
        if self.chat and self.prompt_ids is not None:
            raise ConfigError("--chat needs text, --prompt-ids are already tokens; leave out one")
        if self.system is not None and not self.chat:
            raise ConfigError("--system is a part of the chat template; add --chat")


@dataclass(frozen=True, slots=True)
class Prompt:
    """The prompt as given: `text`, or `ids` that need no tokenizer. Both empty: there is none."""

    text: str = ""
    ids: tuple[int, ...] = ()


def read_prompt(source: PromptSource) -> Prompt:
    """Read the prompt, from stdin only where the module's docstring says so.

    Raises:
        ConfigError: a file that cannot be read, text that is not UTF-8, ids that are not numbers.
    """
    if source.prompt_ids is not None:
        return Prompt(ids=parse_ids(_read(source.prompt_ids, "--prompt-ids"), source.prompt_ids))
    if source.prompt is not None:
        text = decode_utf8(os.fsencode(source.prompt), "--prompt")
    elif source.prompt_file is not None:
        text = decode_utf8(_read(source.prompt_file, "--prompt-file"), source.prompt_file)
    elif stdin_is_data():
        text = decode_utf8(sys.stdin.buffer.read(), "stdin")
    else:
        text = ""
    if source.system is not None:
        decode_utf8(os.fsencode(source.system), "--system")
    if source.chat and not text:
        raise ConfigError("--chat needs something to say; give it with --prompt")
    return Prompt(text=text)


def stdin_is_data() -> bool:
    """True when stdin is a pipe or a regular file."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (OSError, ValueError, AttributeError):
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)


def parse_ids(data: bytes, name: str) -> tuple[int, ...]:
    """At least one token id: a JSON list, or numbers apart by spaces, commas or lines."""
    text = decode_utf8(data, name).strip()
    if text.startswith("["):
        try:
            items = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{name} begins like a JSON list but is not one: {error}") from error
        for index, item in enumerate(items):
            if type(item) is not int:
                raise ConfigError(f"{name}: item {index} is {str(item)[:40]!r}, not a whole number")
        return _at_least_one(items, name)
    words = text.replace(",", " ").split()
    for index, word in enumerate(words):
        if not re.fullmatch(r"-?[0-9]{1,18}", word):
            raise ConfigError(f"{name}: item {index} is {word[:40]!r}, not a whole number")
    return _at_least_one(map(int, words), name)


def _at_least_one(items: Iterable[int], name: str) -> tuple[int, ...]:
    ids = tuple(items)
    if not ids:
        raise ConfigError(
            f"--prompt-ids {name} holds no token id; give at least one, or leave out --prompt-ids "
            "to start from the model's start token"
        )
    return ids


def encode_prompt(
    prompt: Prompt, source: PromptSource, tokenizer: Tokenizer, vocab_size: int
) -> list[int]:
    """The ids to prefill, never none.

    Raises:
        ConfigError: an id outside the vocabulary, a model without a chat template.
    """
    if prompt.ids:
        ids = list(prompt.ids)
    elif source.chat:
        from tinygpt.chat import render_chat

        ids = tokenizer.encode(render_chat(tokenizer, source.system, prompt.text))
    else:
        ids = tokenizer.encode(prompt.text) if prompt.text else [start_id(tokenizer)]
    _check_ids(ids, vocab_size, source.prompt_ids or "the prompt")
    return ids


def start_id(tokenizer: Tokenizer) -> int:
    """The token that stands for an empty prompt: see the module's docstring."""
    if tokenizer.bos_id is not None:
        return tokenizer.bos_id
    if tokenizer.eos_ids:
        return min(tokenizer.eos_ids)
    newline = tokenizer.encode("\n")
    if not newline:
        raise ConfigError("this model has no token to start an empty prompt from; give a --prompt")
    return newline[0]


def _check_ids(ids: list[int], vocab_size: int, name: str) -> None:
    for index, token in enumerate(ids):
        if not 0 <= token < vocab_size:
            raise ConfigError(
                f"{name}: id {token} at index {index} is outside the vocabulary "
                f"of {vocab_size}; ids go from 0 to {vocab_size - 1}"
            )


def _read(path: str, flag: str) -> bytes:
    if path == STDIN:
        if sys.stdin is None:
            raise ConfigError(f"{flag} - reads stdin, which is closed")
        return sys.stdin.buffer.read()
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"{flag} {path}: {error.strerror}") from error
