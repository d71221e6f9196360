"""From prompt ids to new ids. The one place that evaluates the graph; it knows no text."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import cast

import mlx.core as mx
from mlx.utils import tree_flatten

from tinygpt.cache import KVCache
from tinygpt.cache.spec import PREFILL_CHUNK
from tinygpt.errors import ConfigError, GenerationError
from tinygpt.models.transformer import Transformer

_NOT_FINITE = -1  # what the sampler's token is replaced by, so that one read tells both


class Feed:
    """Feeds tokens to a model through a cache, past the end of learned positions too.

    With learned positions and a window, the token that would need position `context` finds the
    cache emptied and refilled from position 0: the sinks, then the last ⌊(C − S)/2⌋ tokens, C being
    the cap S + W. When that happens depends on the number of tokens alone. `seen` counts every
    token that was fed once, in whatever chunks.
    """

    def __init__(self, model: Transformer, cache: KVCache, chunk: int) -> None:
        self.model, self.cache, self._chunk = model, cache, chunk
        self.seen = 0
        spec, config = cache.spec, model.config
        self._context = config.context if config.rope is None else None
        self._restarts = self._context is not None and spec.held is not None
        kept = 0
        if self._context is not None and spec.held is not None:
            if spec.sinks >= self._context:
                raise ConfigError(
                    f"{spec.sinks} sinks leave no room in {self._context} learned positions"
                )
            kept = (min(spec.held, self._context) - spec.sinks) // 2
        self._sinks: list[int] = []
        self._recent: deque[int] = deque(maxlen=kept)

    @property
    def room(self) -> int | None:
        """How many more tokens fit; None where there is no end."""
        if self._context is None or self._restarts:
            return None
        return self._context - self.cache.position

    def remember(self, ids: Sequence[int]) -> None:
        """Tokens that were fed, in order, now that the host knows them. A restart needs them."""
        if self._restarts:
            self._sinks += ids[: self.cache.spec.sinks - len(self._sinks)]
            self._recent.extend(ids)

    def prefill(self, ids: Sequence[int], report: Callable[[int], None]) -> mx.array:
        """Logits [V] after `ids`, at least one; `report` is told how many are done."""
        done = 0
        while True:
            count = min(self._chunk, self._until_restart(), len(ids) - done)
            piece = ids[done : done + count]
            logits = self._forward(mx.array([piece], dtype=mx.int32))
            self.remember(piece)
            done += count
            mx.eval(self.cache.evaluated())
            report(done)
            if done == len(ids):
                return logits

    def step(self, token: mx.array) -> mx.array:
        """Logits [V], not evaluated, after one more `token` (a scalar that may be lazy)."""
        self._until_restart()
        return self._forward(token.reshape(1, 1))

    def _until_restart(self) -> int:
        """How many tokens can be fed before a restart, which is made if that would be none."""
        if not self._restarts or self._context is None:
            return self._chunk
        if self.cache.position == self._context:
            self._restart()
        return self._context - self.cache.position

    def _restart(self) -> None:
        self.cache.reset()
        again = [*self._sinks, *self._recent]
        for start in range(0, len(again), self._chunk):
            self.model(mx.array([again[start : start + self._chunk]]), self.cache, last=1)
            mx.eval(self.cache.evaluated())

    def _forward(self, ids: mx.array) -> mx.array:
        self.seen += ids.shape[1]
        return self.model(ids, self.cache, last=1)[0, -1]


class Generation:
    """Iterate over new token ids. Afterwards the attributes say what happened.

    `tokens` None is unlimited. A token in `stop_ids` ends the text and is not yielded. Token n + 1
    is launched before token n is yielded. `finish_reason` is "length", "stop" or "context".

    Raises:
        ConfigError: an empty prompt, or one longer than the model's learned positions.
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
        prefill_chunk: int = PREFILL_CHUNK,
        on_prefill: Callable[[int], None] | None = None,
    ) -> None:
        self._feed = Feed(model, cache, prefill_chunk)
        check_prompt(len(prompt_ids), self._feed.room)
        self._prompt, self._sampler = prompt_ids, sampler
        self._tokens, self._stop_ids = tokens, stop_ids
        self._on_prefill = on_prefill or (lambda done: None)
        self.finish_reason: str | None = None
        self.prefill_tokens = self.decode_tokens = 0
        self.prefill_seconds = self.decode_seconds = self._started = 0.0
        if tokens is not None:
            cache.reserve(len(prompt_ids) + tokens)

    @property
    def seen(self) -> int:
        """Tokens that went through the cache, also before a restart."""
        return self._feed.seen

    def __iter__(self) -> Iterator[int]:
        if self._tokens == 0:
            self.finish_reason = "length"
            return
        self._started = time.perf_counter()
        logits = self._feed.prefill(self._prompt, self._prefilled)
        token = self._sample(logits)
        self.prefill_seconds = time.perf_counter() - self._started
        start = time.perf_counter()
        for count in itertools.count(1):
            following = self._launch(token, count)
            value = int(token.item())  # type: ignore[arg-type]
            self._check(value, count)
            self.decode_seconds = time.perf_counter() - start
            if value in self._stop_ids:
                self.finish_reason = "stop"
                return
            self.decode_tokens = count
            self._feed.remember([value])
            yield value
            if following is None:
                return
            token = following

    def _prefilled(self, done: int) -> None:
        self.prefill_tokens = done
        self.prefill_seconds = time.perf_counter() - self._started  # it may be interrupted
        self._on_prefill(done)

    def _launch(self, token: mx.array, count: int) -> mx.array | None:
        """Start computing the token after `token`, which is the `count`-th; None at the end."""
        if count == self._tokens:
            self.finish_reason = "length"
            return None
        if self._feed.room == 0:
            self.finish_reason = "context"
            return None
        return self._sample(self._feed.step(token))

    def _sample(self, logits: mx.array) -> mx.array:
        token = self._sampler(logits)
        token = mx.where(mx.isfinite(logits).all(), token.astype(mx.int32), _NOT_FINITE)
        mx.async_eval(token)
        return token

    def _check(self, value: int, count: int) -> None:
        if value == _NOT_FINITE:
            bad = first_not_finite(self._feed.model)
            reason = (
                f"tensor {bad} is not finite; get the file again"
                if bad
                else "all weights are finite, so a value passed the range of the compute type or "
                "of the cache's; try --kv-quantize fp32 or --weights-dtype fp32"
            )
            raise GenerationError(
                f"the logits for token {count} (position {len(self._prompt) + count - 1}) are not "
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
            f"the prompt has {count} tokens, this model {room} learned positions: bound the cache "
            "with --streaming-llm-sink and --streaming-llm-window, or shorten the prompt"
        )
