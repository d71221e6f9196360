"""What a run without a cache says where it has to stop: nothing that --no-cache refuses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import mlx.core as mx
import pytest

from oracles.small_models import small_model
from tinygpt.errors import ConfigError, GenerationError
from tinygpt.models.transformer import Transformer
from tinygpt.uncached import UncachedGeneration


class Overflowing:
    """A sound model whose logits are no numbers from the `bad`-th call on."""

    def __init__(self, inner: Transformer, bad: int) -> None:
        self.config, self.parameters = inner.config, inner.parameters
        self.cache_layout, self.hidden = inner.cache_layout, inner.hidden
        self._inner, self._bad, self._calls = inner, bad, 0

    def logits(self, x: mx.array) -> mx.array:
        self._calls += 1
        logits = self._inner.logits(x)
        return logits * float("nan") if self._calls >= self._bad else logits


def generate(model: object, prompt: list[int], tokens: int) -> Iterator[int]:
    return iter(UncachedGeneration(cast(Transformer, model), prompt, mx.argmax, tokens=tokens))


@pytest.mark.parametrize("bad", [1, 4])
def test_logits_that_are_not_finite_name_the_true_step(bad: int) -> None:
    model = Overflowing(small_model("rope gqa").build(), bad)
    generation = generate(model, [1, 2], 9)
    assert len([next(generation) for _ in range(bad - 1)]) == bad - 1
    with pytest.raises(GenerationError) as caught:
        next(generation)
    message = str(caught.value)
    assert f"token {bad} (position {bad + 1})" in message
    assert "--weights-dtype fp32" in message and "--kv-" not in message


def test_a_prompt_longer_than_the_learned_positions_is_told_to_leave_out_no_cache() -> None:
    model = small_model("mha", context=24).build()
    assert len(list(generate(model, [1] * 24, 1))) == 1
    with pytest.raises(ConfigError, match=r"25 tokens.*24 learned.*leave out --no-cache and bound"):
        generate(model, [1] * 25, 1)
    with pytest.raises(ConfigError, match="no tokens"):
        generate(model, [], 1)
