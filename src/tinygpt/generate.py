"""From prompt ids to new ids. It knows no text."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import cast

import mlx.core as mx
from mlx.utils import tree_flatten

from tinygpt.cache import KVCache
from tinygpt.engine import Engine
from tinygpt.errors import ConfigError, GenerationError
from tinygpt.models.transformer import Transformer, check_ids

_NOT_FINITE = -1  # what the sampler's token is replaced by, so that one read tells both


class Generation:
    """Iterate over new token ids. Afterwards the attributes say what happened.

    `tokens` None is unlimited. A token in `stop_ids` ends the text and is not yielded. Token n + 1
    is launched before token n is yielded. `finish_reason` is "length", "stop" or "context".

    A used cache goes on with its text: all that was yielded, a stop token too, then `prompt_ids`.
    `prefill_chunk` None is what suits the device.

    Raises:
        ConfigError: an empty prompt, one longer than the model's learned positions, or with an id
            that is not in the vocabulary.
        GenerationError: while iterating, logits that are not finite.
    """

    def __init__(
        self,
        model: Transformer,
        cache: KVCache,
        prompt_ids: Sequence[int],
        sampler: Callable[[mx.array], mx.array],
        *,
        tokens: int | None,
        stop_ids: frozenset[int] = frozenset(),
        prefill_chunk: int | None = None,
        on_prefill: Callable[[int], None] | None = None,
    ) -> None:
        self._engine = Engine(model, [cache], chunk=prefill_chunk)
        self._text = cache.text
        check_ids(prompt_ids, model.config.vocab_size)
        check_prompt(len(self._text.unfed) + len(prompt_ids), self._engine.room)
        self._cache, self._prompt, self._sampler = cache, prompt_ids, sampler
        self._first = cache.total + len(self._text.unfed) + len(prompt_ids)
        self._tokens, self._stop_ids = tokens, stop_ids
        self._on_prefill = on_prefill or (lambda done: None)
        self.finish_reason: str | None = None
        self.prefill_tokens = self.decode_tokens = 0
        self.prefill_seconds = self.decode_seconds = self._started = 0.0
        if tokens is not None:
            self._engine.expect([len(prompt_ids) + tokens])

    @property
    def seen(self) -> int:
        """Tokens of the text that went through the cache, also before a restart."""
        return self._cache.total

    def __iter__(self) -> Iterator[int]:
        if self._tokens == 0:
            self.finish_reason = "length"
            return
        self._started = time.perf_counter()
        logits = self._engine.feed([self._prompt], last=1, report=self._prefilled)[0][-1]
        token = self._choose(logits)
        self.prefill_seconds = time.perf_counter() - self._started
        start = time.perf_counter()
        for count in itertools.count(1):
            following = self._launch(token, count)
            value = int(token.item())  # type: ignore[arg-type]
            self._check(value, count)
            self.decode_seconds = time.perf_counter() - start
            if following is None:
                self._text.unfed.append(value)
            if value in self._stop_ids:
                self.finish_reason = "stop"
                return
            self.decode_tokens = count
            if following is not None:
                token = self._choose(following)
            yield value
            if following is None:
                return

    def _prefilled(self, done: int) -> None:
        self.prefill_tokens = done
        self.prefill_seconds = time.perf_counter() - self._started  # it may be interrupted
        self._on_prefill(done)

    def _launch(self, token: mx.array, count: int) -> mx.array | None:
        """Start computing the logits [V] after `token`, the `count`-th; None at the end."""
        if count == self._tokens:
            self.finish_reason = "length"
            return None
        if self._engine.room == 0:
            self.finish_reason = "context"
            return None
        return self._engine.launch(token.reshape(1))[0]

    def _choose(self, logits: mx.array) -> mx.array:
        """A token drawn from `logits` [V], on its way; _NOT_FINITE if they are not."""
        token = self._sampler(logits)
        token = mx.where(mx.isfinite(logits).all(), token.astype(mx.int32), _NOT_FINITE)
        mx.async_eval(token)
        return token

    def _check(self, value: int, count: int) -> None:
        if value == _NOT_FINITE:
            bad = first_not_finite(self._engine.model)
            reason = (
                f"tensor {bad} is not finite; get the file again"
                if bad
                else "all weights are finite, so a value passed the range of the compute type or "
                "of the cache's; try --kv-quantize fp32 or --weights-dtype fp32"
            )
            raise GenerationError(
                f"the logits for token {count} (position {self._first + count - 1}) are not "
                f"finite, so no token can be drawn: {reason}"
            )


def first_not_finite(model: Transformer) -> str | None:
    """The name of the first tensor with an infinity or a NaN, None where there is none."""
    named = cast(list[tuple[str, mx.array]], tree_flatten(model.parameters()))
    for name, array in named:
        if array.dtype != mx.uint32 and not bool(mx.isfinite(array).all()):
            return name
    return None


def check_prompt(count: int, room: int | None) -> None:
    """Raise ConfigError unless a prompt of `count` tokens fits into `room` (None: no end)."""
    if count == 0:
        raise ConfigError("the prompt has no tokens; give at least one, for instance BOS")
    if room is not None and count > room:
        raise ConfigError(
            f"the prompt has {count} tokens, this model room for {room} in its learned positions: "
            "bound the cache with --streaming-llm-sink and --streaming-llm-window, or shorten it"
        )
