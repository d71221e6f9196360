"""A decode step costs the host the same at any length, and layers never share a wrong mask."""

from __future__ import annotations

import io

import mlx.core as mx
import numpy as np
import pytest

from tinygpt.cache import CacheLayout, CacheSpec, KVCache, LayerCache, LayerLayout
from tinygpt.cache.eviction.keep_all import KeepAll
from tinygpt.cache.step import Timeline
from tinygpt.cache.storage.kivi import KIVI, KIVISizes
from tinygpt.ops import backend

SPECS = {
    "full": CacheSpec(),
    "fp16": CacheSpec("fp16"),
    "int8": CacheSpec("int8"),
    "int3": CacheSpec("int3"),
    "int4 bounded": CacheSpec("int4", sink=4, window=256),
    "fp16 bounded": CacheSpec("fp16", sink=4, window=256),
}
MOST = 1.3  # times the operations of a step after 1,000 tokens


def operations(cache: KVCache, tokens: int) -> int:
    """How many arrays MLX has to compute for one more token after `tokens`."""
    layer = cache.layers[0]
    while layer.seen < tokens:
        x = mx.ones((1, 1, min(4096, tokens - layer.seen), 32))
        layer.append(x, x)
        cache.commit()
        mx.eval(cache.evaluated())
    x, dot = mx.ones((1, 1, 1, 32)), io.StringIO()
    mx.eval(x)
    layer.append(x, x)
    mx.export_to_dot(dot, layer.attend(mx.ones((1, 9, 1, 32)), 0.1))
    cache.commit()
    mx.eval(cache.evaluated())
    return dot.getvalue().count("label")


@pytest.mark.parametrize("name", SPECS)
def test_a_step_has_as_many_operations_after_128k_tokens_as_after_1k(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(backend.VARIABLE, raising=False)  # what a CPU chooses by itself
    cache = KVCache(SPECS[name], CacheLayout((LayerLayout(1, 32, None),)))
    few = operations(cache, 1000)
    assert operations(cache, 128_000) <= MOST * few


@pytest.mark.parametrize("name", ["full", "fp16", "int8", "int3"])
def test_a_step_computes_no_mask_of_the_whole_text(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = KVCache(SPECS[name], CacheLayout((LayerLayout(1, 32, None),)))
    operations(cache, 20_000)
    sizes: list[int] = []
    visible = KeepAll.visible

    def spy(self: KeepAll, queries: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        sizes.append(len(queries) * len(tokens))
        return visible(self, queries, tokens)

    monkeypatch.setattr(KeepAll, "visible", spy)
    operations(cache, 20_001)
    assert sum(sizes) <= 1024, "more than the newest run"


def test_layers_of_one_timeline_and_other_options_read_by_their_own_borders() -> None:
    def layer(timeline: Timeline, residual: int) -> LayerCache:
        sizes = KIVISizes(4, 32, 32, residual, 4, mx.float16, 0)
        return LayerCache(timeline, KIVI(KeepAll(), layout, sizes), layout, mx.float32)

    layout = LayerLayout(1, 32, None)
    keys, values, queries = (
        mx.random.normal((1, 1, 150, 32), key=mx.random.key(seed)) for seed in (1, 2, 3)
    )
    shared = Timeline(None, KeepAll())
    together = [layer(shared, residual) for residual in (0, 32, 64)]
    for low, high in ((0, 90), (90, 91), (91, 150)):
        for one, residual in zip(together, (0, 32, 64), strict=True):
            alone = layer(Timeline(None, KeepAll()), residual)
            if low:
                alone.append(keys[:, :, :low], values[:, :, :low])
                alone.commit()
            outs = []
            for cache in (one, alone):
                cache.append(keys[:, :, low:high], values[:, :, low:high])
                outs.append(np.array(cache.attend(queries[:, :, low:high], 0.5)))
            np.testing.assert_allclose(outs[0], outs[1], atol=1e-5)
        for one in together:
            one.commit()


def test_a_reservation_that_was_too_small_does_not_copy_all_at_every_token() -> None:
    cache = KVCache(CacheSpec(), CacheLayout((LayerLayout(1, 32, None),)))
    cache.reserve(10)
    rooms = set()
    for _ in range(200):
        x = mx.ones((1, 1, 1, 32))
        cache.layers[0].append(x, x)
        cache.commit()
        rooms.add(cache.layers[0].arrays()["kept_keys"].shape[1])
    assert len(rooms) <= 8, "a growing buffer is copied whenever its size changes"
