"""From logits to one token, lazily: nothing here waits for the device or knows text or models.

The order is llama.cpp's: repetition penalty (Keskar et al., 2019, arXiv 1909.05858), top-k, top-p
(Holtzman et al., 2019, arXiv 1904.09751), min-p (Nguyen et al., 2024, arXiv 2407.01082),
temperature, draw. So the filters see the model's own distribution, each renormalised over what
the one before it kept, and the temperature only reshapes what survives.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence

import mlx.core as mx

from tinygpt.sampling_options import SamplingOptions as SamplingOptions


class Sampler:
    """Draws one token after another. `seed` is the one in use, also when none was given."""

    def __init__(self, options: SamplingOptions, prompt_ids: Sequence[int]) -> None:
        self.options = options
        given = options.seed
        self.seed = int.from_bytes(os.urandom(4), "little") if given is None else given
        self._key = mx.random.key(self.seed)
        self._penalised = options.repetition_penalty != 1.0 and options.repetition_window > 0
        kept = list(prompt_ids)[-options.repetition_window :] if self._penalised else []
        self._recent = mx.array(kept, dtype=mx.int32)

    def __call__(self, logits: mx.array) -> mx.array:
        """The next token, a lazy int32 scalar, from `logits` [V] float32."""
        options = self.options
        if self._penalised and self._recent.size:
            logits = penalise(logits, self._recent, options.repetition_penalty)
        if options.greedy:
            token = mx.argmax(logits).astype(mx.int32)
        else:
            self._key, key = mx.random.split(self._key)
            kept = keep_min_p(
                keep_top_p(keep_top_k(logits, options.top_k), options.top_p), options.min_p
            )
            scaled = (kept - mx.max(kept)) / options.temperature
            token = mx.random.categorical(scaled, key=key).astype(mx.int32)
        if self._penalised:
            recent = mx.concatenate([self._recent, token[None]])
            self._recent = recent[-options.repetition_window :]
        return token


def penalise(logits: mx.array, recent: mx.array, penalty: float) -> mx.array:
    """`logits` [V] with those of the ids in `recent` [n] divided (if positive) or multiplied."""
    old = logits[recent]
    out = mx.array(logits)
    out[recent] = mx.where(old > 0, old / penalty, old * penalty)
    return out


def keep_top_k(logits: mx.array, k: int) -> mx.array:
    """−inf outside the `k` largest of `logits` [V]; ties with the k-th stay. 0 keeps all."""
    if k == 0 or k >= logits.size:
        return logits
    return _drop(logits, logits < mx.min(mx.topk(logits, k)))


def keep_top_p(logits: mx.array, p: float) -> mx.array:
    """−inf outside the most likely tokens, at least one, that together reach `p`; ties stay."""
    if p >= 1:
        return logits
    probabilities = mx.softmax(logits, precise=True)
    falling = -mx.sort(-probabilities)
    before = mx.cumsum(falling, inclusive=False)
    least = mx.min(mx.where(before < p, falling, mx.array(1.0)))
    return _drop(logits, probabilities < mx.minimum(least, falling[0]))


def keep_min_p(logits: mx.array, p: float) -> mx.array:
    """−inf for tokens less likely than `p` times the most likely one."""
    if p == 0:
        return logits
    return _drop(logits, logits < mx.max(logits) + math.log(p))


def _drop(logits: mx.array, dropped: mx.array) -> mx.array:
    return mx.where(dropped, mx.array(-math.inf, dtype=logits.dtype), logits)
