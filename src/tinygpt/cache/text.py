"""What is known of the text behind a cache: no more than going on with it needs."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import mlx.core as mx

Token = int | mx.array  # an array holds one id and may still be on its way


class Text:
    """The tokens that went into a cache and those that are to follow, whoever feeds them.

    `unfed` belong to the text but have not been fed: the last token of a generation, which nobody
    has needed the logits of. `before` counts the tokens that were in the cache before its last
    restart and were not fed again.
    """

    def __init__(self) -> None:
        self.unfed: list[Token] = []
        self.before = 0
        self.told = 0  # how many tokens were added, each of them once
        self._first: list[Token] = []
        self._last: deque[Token] = deque()

    def add(self, tokens: Sequence[Token], first: int, last: int) -> None:
        """`tokens` were fed; remember the text's `first` ones and the `last`."""
        self.told += len(tokens)
        self._first += tokens[: max(0, first - len(self._first))]
        self._last.extend(tokens)
        while len(self._last) > last:
            self._last.popleft()

    def ends(self, first: int, last: int) -> list[int]:
        """The ids of the `first` tokens of the text, then of its `last`; they may overlap."""
        tokens = [*self._first[:first], *list(self._last)[max(0, len(self._last) - last) :]]
        return [int(token) for token in tokens]

    def undo(self, tokens: int) -> None:
        """The last `tokens` that were fed are undone, and with them what was to follow."""
        if not tokens:
            return
        self.unfed.clear()
        self.told = max(0, self.told - tokens)
        del self._first[self.told :]
        for _ in range(min(tokens, len(self._last))):
            self._last.pop()

    def copy(self) -> Text:
        """The same text, to be gone on with apart."""
        other = Text()
        other.unfed, other.before, other.told = list(self.unfed), self.before, self.told
        other._first, other._last = list(self._first), deque(self._last)
        return other
