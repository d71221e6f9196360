"""What methods to come need of a layer: forks, choices, fewer queries, other widths, reports."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from tinygpt.cache import CacheLayout, CacheSpec, KVCache, LayerLayout
from tinygpt.errors import CacheError
from tinygpt.ops.rope import RopeConfig
from tinygpt.ops.scoring import Observe

ROPE = RopeConfig(10000.0, 32)
SPECS = {
    "full": CacheSpec(slack=3),
    "int4": CacheSpec("int4", slack=3),
    "int8 bounded": CacheSpec("int8", sink=4, window=100, slack=3),
    "fp16 bounded": CacheSpec("fp16", sink=4, window=50, slack=3),
}
SCALE = 32**-0.5


def draw(seed: int, tokens: int, heads: int = 2, width: int = 32) -> mx.array:
    return mx.random.normal((1, heads, tokens, width), key=mx.random.key(seed))


def made(spec: CacheSpec, value_dim: int | None = None, rope: RopeConfig | None = ROPE) -> KVCache:
    return KVCache(spec, CacheLayout((LayerLayout(2, 32, rope, value_dim=value_dim),)))


def fed(cache: KVCache, seed: int, tokens: int) -> np.ndarray:
    layer = cache.layers[0]
    layer.append(draw(seed, tokens), draw(seed + 1, tokens))
    out = np.array(layer.attend(draw(seed + 2, tokens, heads=4), SCALE))
    cache.commit()
    return out


def exact(
    queries: mx.array, keys: mx.array, values: mx.array, extra: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Causal outputs and weights of the last queries in float64, heads shared two to a kv-head."""
    q, k, v = (np.array(a, dtype=np.float64)[0] for a in (queries, keys, values))
    k, v = (a.repeat(len(q) // len(k), axis=0) for a in (k, v))
    scores = SCALE * q @ k.swapaxes(1, 2)
    ahead = np.arange(k.shape[1]) > k.shape[1] - q.shape[1] + np.arange(q.shape[1])[:, None]
    weights = np.exp(np.where(ahead, -np.inf, scores))
    more = 0 if extra is None else np.exp(extra)[:, None, None]
    weights /= weights.sum(-1, keepdims=True) + more
    return weights @ v, weights


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("undone", [0, 2])
def test_a_fork_goes_on_exactly_and_neither_sees_the_other(name: str, undone: int) -> None:
    cache, plain = made(SPECS[name]), made(SPECS[name])
    for one in (cache, plain):
        fed(one, 1, 140)
        fed(one, 5, 1)
        one.undo(undone)
    fork = cache.fork()
    other = [fed(fork, 20, 3), fed(fork, 30, 40)]
    for seed, tokens in ((40, 1), (50, 70), (60, 1)):
        np.testing.assert_array_equal(fed(cache, seed, tokens), fed(plain, seed, tokens))
    assert fork.seen == 141 - undone + 43
    again = made(SPECS[name])
    fed(again, 1, 140)
    fed(again, 5, 1)
    again.undo(undone)
    np.testing.assert_array_equal(other[0], fed(again, 20, 3))
    np.testing.assert_array_equal(other[1], fed(again, 30, 40))


@pytest.mark.parametrize("precision", ["full", "int8"])
def test_the_last_queries_alone_see_what_they_see_among_all(precision: str) -> None:
    cache = made(CacheSpec(precision))
    fed(cache, 1, 100)
    layer, queries = cache.layers[0], draw(6, 50, heads=4)
    layer.append(draw(4, 50), draw(5, 50))
    everything = np.array(layer.attend(queries, SCALE))
    for count in (1, 7):  # and several layers may read one owner's entries
        last = np.array(layer.attend(queries[:, :, -count:], SCALE))
        np.testing.assert_allclose(last, everything[:, :, -count:], atol=2e-6)


@pytest.mark.parametrize("tokens", [1, 60])
@pytest.mark.parametrize("precision", ["full", "fp32", "int8"])
def test_values_may_have_another_width_than_keys(precision: str, tokens: int) -> None:
    cache = made(CacheSpec(precision), value_dim=64, rope=None)
    keys, values = draw(1, 90 + tokens), draw(2, 90 + tokens, width=64)
    layer = cache.layers[0]
    layer.append(keys[:, :, :90], values[:, :, :90])
    cache.commit()
    layer.append(keys[:, :, 90:], values[:, :, 90:])
    queries = draw(3, tokens, heads=4)
    wanted, _ = exact(queries, keys, values)
    close = 0.02 if precision == "int8" else 1e-5
    np.testing.assert_allclose(np.array(layer.attend(queries, SCALE))[0], wanted, atol=close)


@pytest.mark.parametrize("tokens", [1, 200])
@pytest.mark.parametrize("per_query", [False, True])
def test_a_layer_reports_the_mass_of_each_key_and_an_extra_logit_takes_its_share(
    tokens: int, per_query: bool
) -> None:
    cache = made(CacheSpec("fp32"), rope=None)
    keys, values, queries = draw(1, 90 + tokens), draw(2, 90 + tokens), draw(3, tokens, heads=4)
    extra = np.array([0.5, -1.0, 2.0, 0.0])
    layer = cache.layers[0]
    layer.append(keys[:, :, :90], values[:, :, :90])
    cache.commit()
    layer.append(keys[:, :, 90:], values[:, :, 90:])
    layer.observe = Observe(last=150, per_query=per_query)
    out = layer.attend(queries, SCALE, extra=mx.array(extra))
    wanted, weights = exact(queries, keys, values, extra)
    np.testing.assert_allclose(np.array(out)[0], wanted, atol=1e-5)
    observed = weights[:, -150:] if per_query else weights[:, -150:].sum(axis=1)
    assert layer.mass is not None
    assert layer.key_numbers().tolist() == [[list(range(90 + tokens))] * 2]
    np.testing.assert_allclose(np.array(layer.mass)[0], observed, atol=1e-5)


@pytest.mark.parametrize("precision", ["full", "fp16", "int8"])
def test_each_kv_head_keeps_its_own_choice_and_packs_only_once_it_is_told(precision: str) -> None:
    cache = made(CacheSpec(precision), rope=None)
    keys, values = draw(1, 121), draw(2, 121)
    layer = cache.layers[0]
    cache.hold(True)
    layer.append(keys[:, :, :120], values[:, :, :120])
    cache.commit()
    assert not any("packed" in name for name in layer.arrays())
    chosen = np.sort(np.random.default_rng(1).permuted(np.tile(np.arange(120), (2, 1)), axis=1))
    chosen = np.stack([chosen[0, ::2], chosen[1, 1::2]])
    cache.keep([mx.array(chosen[None])])
    cache.hold(False)
    layer.append(keys[:, :, 120:], values[:, :, 120:])
    numbers = layer.key_numbers()[0]
    assert all(
        set(row) - {-1} == {*choice, 120} for row, choice in zip(numbers, chosen, strict=True)
    )
    both = []
    for array in (keys, values):
        rows = np.array(array)[0]
        both.append(mx.array(np.stack([rows[h][[*chosen[h], 120]] for h in (0, 1)])[None]))
    queries = draw(3, 1, heads=4)
    wanted, _ = exact(queries, *both)
    close = 0.02 if precision == "int8" else 2e-3
    np.testing.assert_allclose(np.array(layer.attend(queries, SCALE))[0], wanted, atol=close)
    cache.commit()
    assert cache.seen == 121
    with pytest.raises(CacheError, match="undo"):
        cache.undo(2)
    with pytest.raises(CacheError, match="every token"):
        cache.keep([mx.array(chosen[None])])
