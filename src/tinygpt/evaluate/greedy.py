"""How long greedy text stays that of the full cache, and how close the call was where it does not.

Text through a cache is `Generation`'s, what `sample --temperature 0 --ignore-eos` prints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import mlx.core as mx

from tinygpt.cache import CacheSpec, KVCache
from tinygpt.engine import Engine
from tinygpt.generate import Generation
from tinygpt.models.transformer import Transformer

PROMPTS = (  # their beginnings are those of the original's table
    "The first president of the United States was",
    "In machine learning, a neural network is",
    "Once upon a time",
    "Photosynthesis is the process by which",
)
TOKENS = 60


@dataclass(frozen=True, slots=True)
class Match:
    """`matched` of `tokens` greedy tokens are the full cache's, up to the first that is not.

    `margin` is by how much the full cache's logits prefer their token there; None if all match.
    """

    cache: str
    prompt: str
    tokens: int
    matched: int
    margin: float | None


def greedy_tokens(
    model: Transformer, spec: CacheSpec, ids: Sequence[int], tokens: int, check: Callable[[], None]
) -> Iterator[int]:
    """At most `tokens` greedy ids after the prompt `ids`; `check` is called after each chunk and
    token."""
    cache = KVCache(spec, model.cache_layout())
    for token in Generation(
        model, cache, ids, mx.argmax, tokens=tokens, on_prefill=lambda done: check()
    ):
        check()
        yield token


def margin(model: Transformer, ids: Sequence[int], preferred: int, other: int) -> float:
    """By how much the full cache's logit of `preferred` after `ids` exceeds that of `other`."""
    engine = Engine(model, [KVCache(CacheSpec(), model.cache_layout())])
    logits = engine.feed([ids], last=1)[0][-1]
    return float(logits[preferred] - logits[other])


class GreedyMatch:
    """Compares caches on one prompt; the full cache's text is computed once."""

    def __init__(
        self,
        model: Transformer,
        prompt: str,
        ids: Sequence[int],
        tokens: int,
        check: Callable[[], None],
    ) -> None:
        self._model, self._prompt, self._ids = model, prompt, list(ids)
        self._check = check
        self._full = list(greedy_tokens(model, CacheSpec(), ids, tokens, check))

    def compare(self, name: str, spec: CacheSpec) -> Match:
        """The match of the cache `spec`, called `name`; its text ends at the first difference."""
        wanted = self._full
        texts = zip(
            wanted,
            greedy_tokens(self._model, spec, self._ids, len(wanted), self._check),
            strict=True,
        )
        for same, (expected, token) in enumerate(texts):
            if token != expected:
                gap = margin(self._model, self._ids + wanted[:same], expected, token)
                return Match(name, self._prompt, len(wanted), same, gap)
        return Match(name, self._prompt, len(wanted), len(wanted), None)
