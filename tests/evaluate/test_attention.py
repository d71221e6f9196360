"""The attention that is drawn is the attention that is computed."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from oracles.small_models import small_model
from tinygpt.cache import CacheLayout, CacheSpec, KVCache, LayerLayout
from tinygpt.evaluate.attention import Watch, kept, watch
from tinygpt.ops.rope import RopeConfig

TOLERANCE = 1e-5  # float32, sums in another order
ROPE = RopeConfig(10000.0, 16)


@pytest.mark.parametrize(
    "layer",
    [
        LayerLayout(2, 16, None),
        LayerLayout(2, 16, ROPE),
        LayerLayout(4, 16, ROPE, window=5),
        LayerLayout(1, 16, ROPE, softcap=3.0),
    ],
    ids=str,
)
def test_the_weights_mix_the_values_to_what_the_cache_gives(layer: LayerLayout) -> None:
    tokens, heads = 20, 4
    rng = np.random.default_rng(0)
    queries, keys, values = (
        mx.array(2 * rng.standard_normal((1, count, tokens, 16)).astype(np.float32))
        for count in (heads, layer.kv_heads, layer.kv_heads)
    )
    cache = KVCache(CacheSpec(), CacheLayout((layer,)))
    one = Watch(cache.layers[0], layer)
    one.append(keys, values)
    expected = one.attend(queries, 0.25)[0]
    repeated = mx.repeat(values[0], heads // layer.kv_heads, axis=0)
    assert float(mx.abs(one.weights @ repeated - expected).max()) < TOLERANCE


def test_watching_changes_nothing_and_the_shares_are_those_of_the_definition() -> None:
    model = small_model("rope gqa", layers=3).build()
    ids = [int(token) for token in np.random.default_rng(1).integers(0, 61, 40)]
    maps = watch(model, ids, sinks=4, layer=2)
    assert maps.sink_mass.shape == (3, 4) and maps.weights.shape == (40, 40)
    assert np.allclose(maps.weights.sum(axis=-1), 1, atol=TOLERANCE)
    assert not np.triu(maps.weights, 1).any()
    of_layer = maps.weights[20:, :4].sum(axis=-1).mean()
    assert maps.sink_mass[2].mean() == pytest.approx(of_layer, abs=TOLERANCE)


def test_a_bounded_cache_keeps_the_sinks_and_the_window() -> None:
    seen = kept(6, sinks=1, window=2)
    assert [list(np.flatnonzero(row)) for row in seen] == [
        [0],
        [0, 1],
        [0, 1, 2],
        [0, 2, 3],
        [0, 3, 4],
        [0, 4, 5],
    ]
