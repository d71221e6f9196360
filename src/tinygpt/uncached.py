"""Generation that keeps nothing between tokens: the oracle of the cached one, and `--no-cache`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import mlx.core as mx

from tinygpt.cache import CacheSpec, KVCache
from tinygpt.errors import ConfigError, GenerationError
from tinygpt.generate import Generation, check_prompt, first_not_finite
from tinygpt.models.transformer import Transformer, check_ids


class UncachedGeneration:
    """Like `Generation`, but each token is computed from all tokens before it anew.

    Time per token grows with the length of the text, and so does memory.

    Raises:
        ConfigError: an empty prompt, or one longer than the model's learned positions.
        GenerationError: while iterating, logits that are not finite.
    """

    def __init__(
        self,
        model: Transformer,
        prompt_ids: Sequence[int],
        sampler: Callable[[mx.array], mx.array],
        *,
        tokens: int | None,
        stop_ids: frozenset[int] = frozenset(),
        on_prefill: Callable[[int], None] | None = None,
    ) -> None:
        self._model, self._sampler = model, sampler
        self._ids = list(prompt_ids)
        self._tokens, self._stop_ids, self._on_prefill = tokens, stop_ids, on_prefill
        self._context = model.config.context if model.config.rope is None else None
        check_ids(self._ids, model.config.vocab_size)
        check_uncached_prompt(len(self._ids), self._context)
        self.finish_reason: str | None = None
        self.prefill_tokens = self.decode_tokens = 0
        self.prefill_seconds = self.decode_seconds = 0.0

    @property
    def seen(self) -> int:
        """Tokens of the text so far."""
        return len(self._ids)

    def __iter__(self) -> Iterator[int]:
        while self._tokens is None or self.decode_tokens < self._tokens:
            if self._context is not None and len(self._ids) > self._context:
                self.finish_reason = "context"
                return
            token = self._next()
            if token is None:
                self.finish_reason = "stop"
                return
            self._ids.append(token)
            self.decode_tokens += 1
            yield token
        self.finish_reason = "length"

    def _next(self) -> int | None:
        """One more token, None for a stop token; the first one's time is the prefill's."""
        first = self.prefill_tokens == 0
        one = Generation(
            self._model,
            KVCache(CacheSpec(), self._model.cache_layout()),
            self._ids,
            self._sampler,
            tokens=1,
            stop_ids=self._stop_ids,
            on_prefill=self._on_prefill if first else None,
        )
        try:
            token = next(iter(one), None)
        except GenerationError as error:
            raise self._not_finite() from error
        if first:
            self.prefill_tokens, self.prefill_seconds = one.prefill_tokens, one.prefill_seconds
            self.decode_seconds += one.decode_seconds
        else:
            self.decode_seconds += one.prefill_seconds + one.decode_seconds
        return token

    def _not_finite(self) -> GenerationError:
        bad = first_not_finite(self._model)
        reason = (
            f"tensor {bad} is not finite; get the file again"
            if bad
            else "all weights are finite, so a value passed the range of the compute type; "
            "try --weights-dtype fp32"
        )
        return GenerationError(
            f"the logits for token {self.decode_tokens + 1} (position {len(self._ids)}) are not "
            f"finite, so no token can be drawn: {reason}"
        )


def check_uncached_prompt(count: int, room: int | None) -> None:
    """As `generate.check_prompt`, with advice for a run that has no cache to bound."""
    check_prompt(count, None)
    if room is not None and count > room:
        raise ConfigError(
            f"the prompt has {count} tokens, this model {room} learned positions: leave out "
            "--no-cache and bound the cache with --streaming-llm-window, or shorten the prompt"
        )
