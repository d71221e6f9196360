"""Token bytes in, text that is safe to print out: knows UTF-8 and stop strings, no model.

A character may be spread over tokens, and so may a stop string; both are held back until decided.
All pieces joined equal the decoding of all tokens at once, cut before the stop string that ends
first, the longest of those: a rule that needs no text to come, so no token boundary changes it.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from typing import Protocol

from tinygpt.errors import ConfigError


class TokenBytes(Protocol):
    """What a text stream needs of a tokenizer."""

    def token_bytes(self, token: int, /) -> bytes:
        """The bytes of one token, none for a control token."""
        ...


class TextStream:
    """Turns tokens into text piece by piece; `stopped` says that a stop string was met.

    Bytes that are not UTF-8 become U+FFFD. The stop string itself is never part of the text.

    Raises:
        ConfigError: an empty stop string.
    """

    def __init__(self, tokenizer: TokenBytes, stop: Sequence[str] = ()) -> None:
        check_stop(stop)
        self._tokenizer = tokenizer
        self._stop = tuple(stop)
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._held = ""
        self.stopped = False

    def echo(self, tokens: Iterable[int]) -> str:
        """The text of prompt tokens; stop strings are not looked for in it."""
        return "".join(self._decoder.decode(self._tokenizer.token_bytes(t)) for t in tokens)

    def push(self, token: int) -> str:
        """What can be printed now that `token` has come."""
        if self.stopped:
            return ""
        return self._release(self._decoder.decode(self._tokenizer.token_bytes(token)))

    def finish(self) -> str:
        """What was still held back: an unfinished character as U+FFFD, the start of a stop."""
        if self.stopped:
            return ""
        text = self._release(self._decoder.decode(b"", final=True))
        held, self._held = self._held, ""
        return text + held

    def _release(self, new: str) -> str:
        text = self._held + new
        found = [(at + len(stop), at) for stop in self._stop if (at := text.find(stop)) >= 0]
        if found:
            self.stopped, self._held = True, ""
            return text[: min(found)[1]]
        keep = max((_overlap(text, stop) for stop in self._stop), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]


def check_stop(stop: Sequence[str]) -> None:
    """Raise ConfigError for an empty stop string, which would be met before any text."""
    if "" in stop:
        raise ConfigError("--stop is an empty text; give at least one character")


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a beginning of `stop`, never all of it."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)
