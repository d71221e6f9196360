"""Known texts through a cache, with the logits of every token. The counterpart of `generate.Feed`.

`Feed` gives the last token's logits, of one text; this gives all of them, of B texts in step, and
starts again where `Feed` does when learned positions run out.
"""

from __future__ import annotations

from typing import Protocol

import mlx.core as mx
import numpy as np

from tinygpt.cache import KVCache
from tinygpt.models.transformer import Transformer


class Runner(Protocol):
    """Anything that keeps a text's keys and values while the text is fed to it."""

    def feed(self, ids: np.ndarray) -> mx.array:
        """Logits [B, T, V], evaluated, for the next tokens `ids` [B, T] of B texts."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes held now, for all B texts."""
        ...


class TextFeed:
    """A `Runner` over one of our caches. `tokens` is how many will be fed to each text."""

    def __init__(self, model: Transformer, cache: KVCache, tokens: int) -> None:
        self._model, self._cache = model, cache
        cache.reserve(tokens)
        spec, config = cache.spec, model.config
        self._restarts_at = config.context if config.rope is None and spec.held else None
        self._kept = 0 if spec.held is None else (spec.held - spec.sinks) // 2
        self._sinks = np.zeros((1, 0), np.int32)
        self._recent = np.zeros((1, 0), np.int32)

    @property
    def nbytes(self) -> int:
        """See `Runner`."""
        return self._cache.nbytes

    def feed(self, ids: np.ndarray) -> mx.array:
        """See `Runner`."""
        pieces, done = [], 0
        while done < ids.shape[1]:
            piece = ids[:, done : done + self._until_restart(ids.shape[1])]
            pieces.append(self._model(mx.array(piece), self._cache))
            self._remember(piece)
            done += piece.shape[1]
        logits = pieces[0] if len(pieces) == 1 else mx.concatenate(pieces, axis=1)
        mx.eval(logits, self._cache.evaluated())
        return logits

    def _until_restart(self, most: int) -> int:
        if self._restarts_at is None:
            return most
        if self._cache.position == self._restarts_at:
            self._cache.reset()
            again = np.concatenate([self._sinks, self._recent], axis=1)
            if again.shape[1]:
                self._model(mx.array(again), self._cache, last=1)
                mx.eval(self._cache.evaluated())
        return self._restarts_at - self._cache.position

    def _remember(self, piece: np.ndarray) -> None:
        if self._restarts_at is None:
            return
        if not self._sinks.size and not self._recent.size:
            self._sinks = self._recent = np.zeros((len(piece), 0), np.int32)
        missing = self._cache.spec.sinks - self._sinks.shape[1]
        self._sinks = np.concatenate([self._sinks, piece[:, :missing]], axis=1)
        recent = np.concatenate([self._recent, piece], axis=1)
        self._recent = recent[:, recent.shape[1] - min(self._kept, recent.shape[1]) :]
