"""The generation loop: restarts at the end of learned positions, ends, errors, flat memory."""

from __future__ import annotations

import itertools

import mlx.core as mx
import numpy as np
import pytest

from oracles.numpy_decoder import forward
from oracles.small_models import SmallModel, small_model
from tinygpt.cache import CacheSpec, KVCache
from tinygpt.errors import ConfigError, GenerationError
from tinygpt.generate import Generation
from tinygpt.models.transformer import Transformer


def greedy(logits: mx.array) -> mx.array:
    return mx.argmax(logits).astype(mx.int32)


def run(model: Transformer, spec: CacheSpec, prompt: list[int], **options: object) -> Generation:
    """A generation that has run to its end; its tokens are in `.ids`."""
    cache = KVCache(spec, model.cache_layout())
    generation = Generation(model, cache, prompt, greedy, **options)  # type: ignore[arg-type]
    generation.ids = list(generation)  # type: ignore[attr-defined]
    generation.cache = cache  # type: ignore[attr-defined]
    return generation


def restarted(small: SmallModel, spec: CacheSpec, prompt: list[int], tokens: int) -> list[int]:
    """Greedy tokens by the rule of the restart alone, with the uncached NumPy forward."""
    context, held = small.config.context, spec.held
    assert held is not None and spec.window is not None
    ids, placed = list(prompt), []
    for at in itertools.count():
        if at == len(ids):
            i, j = np.arange(len(placed))[:, None], np.arange(len(placed))[None, :]
            visible = (j <= i) & ((j < spec.sinks) | (i - j < spec.window))
            logits = forward({**small.described, "visible": visible}, small.weights, placed)
            ids.append(int(logits[-1].argmax()))
            if len(ids) == len(prompt) + tokens:
                return ids[len(prompt) :]
        if len(placed) == context:
            placed = ids[: spec.sinks] + ids[:at][-((held - spec.sinks) // 2) :]
        placed = [*placed, ids[at]]
    raise AssertionError


@pytest.mark.parametrize("length", [5, 23, 24, 25, 60])
@pytest.mark.parametrize("chunk", [1, 7, 256])
def test_learned_positions_restart_where_the_rule_says(length: int, chunk: int) -> None:
    small = small_model("mha", context=24)
    spec = CacheSpec(sink=2, window=12)
    prompt = np.random.default_rng(length).integers(0, 61, length).tolist()
    got = run(small.build(), spec, prompt, tokens=50, prefill_chunk=chunk)
    assert got.ids == restarted(small, spec, prompt, 50)
    assert got.seen == length + 49, "a token that was fed again must not be counted again"


def test_a_learned_model_without_a_window_stops_at_its_context() -> None:
    model = small_model("mha", context=24).build()
    got = run(model, CacheSpec(), [1] * 20, tokens=50)
    assert (got.finish_reason, len(got.ids)) == ("context", 5)


def test_a_learned_model_without_a_window_refuses_a_longer_prompt() -> None:
    model = small_model("mha", context=24).build()
    with pytest.raises(ConfigError, match=r"--streaming-llm-sink.*--streaming-llm-window"):
        run(model, CacheSpec(), [1] * 25, tokens=1)
    assert len(run(model, CacheSpec(), [1] * 24, tokens=5).ids) == 1


@pytest.mark.parametrize("precision", ["full", "fp16", "int8", "int4", "int3", "int2"])
@pytest.mark.parametrize("window", [None, 40, 64])
@pytest.mark.parametrize("length", [1, 3, 39, 44, 45, 130])
def test_every_composition_gives_exactly_the_tokens_asked_for(
    precision: str, window: int | None, length: int
) -> None:
    model = small_model("rope mqa", layers=1).build()
    spec = CacheSpec(precision, window=window)
    prompt = np.random.default_rng(5).integers(0, 61, length).tolist()
    texts = [
        run(model, spec, prompt, tokens=12, prefill_chunk=chunk).ids for chunk in (1, 7, 64, 256)
    ]
    assert [len(text) for text in texts] == [12] * 4
    assert all(text == texts[0] for text in texts), "a chunk size changed the text"


def test_no_tokens_means_no_work() -> None:
    got = run(small_model("rope gqa").build(), CacheSpec(), [1, 2], tokens=0)
    assert (got.ids, got.finish_reason, got.seen) == ([], "length", 0)


def test_a_stop_token_ends_the_text_and_is_not_yielded() -> None:
    model = small_model("rope gqa").build()
    free = run(model, CacheSpec(), [1, 2, 3], tokens=30)
    stop = free.ids[10]
    first = free.ids.index(stop)
    got = run(model, CacheSpec(), [1, 2, 3], tokens=30, stop_ids=frozenset([stop]))
    assert got.ids == free.ids[:first]
    assert got.finish_reason == "stop"


def test_logits_that_are_not_finite_stop_the_run_and_name_the_step() -> None:
    small = small_model("rope gqa")
    weights = {name: mx.array(array) for name, array in small.weights.items()}
    weights["blocks.1.mlp.down_proj.weight"] = mx.full((128, 96), mx.inf)
    with pytest.raises(
        GenerationError, match=r"token 1 \(position 2\).*tensor blocks\.1\.mlp\.down_proj\.weight"
    ):
        run(Transformer(small.config, weights), CacheSpec(), [1, 2], tokens=5)


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(ConfigError, match="no tokens"):
        run(small_model("rope gqa").build(), CacheSpec(), [], tokens=5)


def test_the_next_token_is_launched_before_this_one_is_yielded() -> None:
    model = small_model("rope gqa").build()
    cache, calls = KVCache(CacheSpec(), model.cache_layout()), []

    def sampler(logits: mx.array) -> mx.array:
        calls.append(cache.seen)
        return greedy(logits)

    for count, _ in enumerate(Generation(model, cache, [1, 2], sampler, tokens=5), start=1):
        assert len(calls) == min(count + 1, 5)


@pytest.mark.parametrize("precision", ["full", "int8"])
def test_five_thousand_tokens_through_a_bounded_cache_stay_flat(precision: str) -> None:
    model = small_model("rope gqa", layers=1).build()
    cache = KVCache(CacheSpec(precision, sink=4, window=256), model.cache_layout())
    generation = Generation(model, cache, [1, 2, 3], greedy, tokens=5000)
    shapes, peaks = [], []
    for count, _ in enumerate(generation, start=1):
        if count % 500 == 0:
            arrays = cache.layers[0].arrays()
            shapes.append({name: (array.shape, array.nbytes) for name, array in arrays.items()})
            del arrays
            peaks.append(mx.get_peak_memory())
            mx.reset_peak_memory()
    assert (count, cache.held) == (5000, 260)
    assert all(shape == shapes[0] for shape in shapes)
    # peaks at the same 500-token stride differ by a few small temporaries only
    assert max(peaks[2:]) - min(peaks[2:]) <= 64 * 1024, peaks


@pytest.mark.parametrize(("sink", "window"), [(4, 1000), (20, 400), (23, 1)])
def test_a_window_larger_than_the_learned_positions_restarts_too(sink: int, window: int) -> None:
    small = small_model("mha", context=24)
    got = run(small.build(), CacheSpec(sink=sink, window=window), [1] * 30, tokens=60)
    assert (len(got.ids), got.finish_reason) == (60, "length")


def test_sinks_that_fill_the_learned_positions_are_refused() -> None:
    with pytest.raises(ConfigError, match="24 sinks"):
        run(small_model("mha", context=24).build(), CacheSpec(sink=24, window=8), [1], tokens=1)
