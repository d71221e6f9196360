"""Every combination of the axes runs to the end, or is refused before the first token by name."""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx
import numpy as np
import pytest

from oracles.cache_reference import Rope, Settings, Shape, attend_all, draw_tokens
from tinygpt.cache import CacheLayout, CacheSpec, KVCache, LayerLayout
from tinygpt.errors import CacheError, ConfigError
from tinygpt.ops.rope import RopeConfig

PRECISIONS = ("full", "fp32", "fp16", "bf16", "int8", "int4", "int3", "int2")
INTS = ("int8", "int4", "int3", "int2")
WINDOWS = (
    {},
    {"window": 5},
    {"window": 8, "sink": 0},
    {"window": 40, "sink": 1},
    {"window": 64},
    {"window": 130, "sink": 6},
)
# (heads, kv-heads) × head_dim: MHA, GQA and MQA, with and without a group that divides the head.
HEADS = (
    ((4, 4), 16),
    ((3, 1), 32),
    ((4, 4), 32),
    ((6, 2), 48),
    ((6, 2), 64),
    ((3, 1), 80),
    ((6, 2), 96),
    ((2, 1), 128),
)
PROMPTS = (1, 3, 50, 150)
HEAD_DIMS_WITH_A_GROUP = (32, 64, 96, 128)

# Attention over random tokens is O(1); half-precision queries and sums keep three digits, int2
# storage less than one. A mask or position that is wrong moves outputs by O(1).
FLOAT32_SUMS = 1e-4
COMPUTE = {mx.float16: 5e-3, mx.bfloat16: 5e-2}


def one_layer(
    head_dim: int = 32, kv_heads: int = 2, dtype: mx.Dtype = mx.float32, half: mx.Dtype = mx.float16
) -> CacheLayout:
    rope = RopeConfig(10000.0, head_dim)
    layer = LayerLayout(kv_heads=kv_heads, head_dim=head_dim, rope=rope)
    return CacheLayout(layers=(layer,), dtype=dtype, half=half)


def run(
    cache: KVCache,
    heads: tuple[int, int],
    head_dim: int,
    sizes: list[int],
    dtype: mx.Dtype = mx.float32,
) -> list[mx.array]:
    """The outputs of random chunks of these sizes."""
    layer, outputs = cache.layers[0], []
    for n, size in enumerate(sizes):
        keys = mx.random.split(mx.random.key(n), 3)
        counts = (heads[0], heads[1], heads[1])
        q, k, v = (
            mx.random.normal((1, count, size, head_dim), key=key).astype(dtype)
            for count, key in zip(counts, keys, strict=True)
        )
        layer.append(k, v)
        outputs.append(layer.attend(q, head_dim**-0.5))
        mx.eval(outputs[-1])
        cache.commit()
    return outputs


def can_be(precision: str, options: dict[str, int], head_dim: int) -> bool:
    """What the specification lets through, for groups of 32 and the default residual."""
    if precision not in INTS:
        return True
    window = options.get("window")
    fits = window is None or window >= min(32, window // 8 // 8 * 8) + 32
    return fits and head_dim in HEAD_DIMS_WITH_A_GROUP


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("options", WINDOWS, ids=str)
@pytest.mark.parametrize("positions", ("rolling", "absolute"))
def test_every_combination_gives_every_token_or_is_refused_when_built(
    precision: str, options: dict[str, int], positions: str
) -> None:
    for heads, head_dim in HEADS:
        layout = one_layer(head_dim, heads[1])
        if not can_be(precision, options, head_dim):
            with pytest.raises(ConfigError):
                KVCache(CacheSpec(precision=precision, positions=positions, **options), layout)
            continue
        spec = CacheSpec(precision=precision, positions=positions, **options)
        for prompt in PROMPTS:
            cache = KVCache(spec, layout)
            sizes = [prompt, 1, 1, 5, 1]
            for out, size in zip(run(cache, heads, head_dim, sizes), sizes, strict=True):
                assert out.shape == (1, heads[0], size, head_dim)
                assert mx.isfinite(out).all().item(), f"{heads} × {head_dim}, prompt {prompt}"
            assert cache.seen == prompt + 8


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("dtype", COMPUTE, ids=str)
@pytest.mark.parametrize("options", ({}, {"window": 64}), ids=str)
def test_half_precision_models_get_their_own_type_and_nearly_the_float32_answer(
    precision: str, dtype: mx.Dtype, options: dict[str, int]
) -> None:
    spec = CacheSpec(precision=precision, **options)
    sizes = [100, 1, 1, 20, 1]
    outputs = {
        kind: run(KVCache(spec, one_layer(dtype=kind, half=dtype)), (4, 2), 32, sizes, dtype)
        for kind in (dtype, mx.float32)
    }
    for got, want in zip(outputs[dtype], outputs[mx.float32], strict=True):
        assert got.dtype == dtype
        error = np.abs(np.array(got.astype(mx.float32)) - np.array(want.astype(mx.float32)))
        assert error.max() <= COMPUTE[dtype]


@pytest.mark.parametrize("precision", INTS)
@pytest.mark.parametrize(
    "options",
    (
        {"window": 8},
        {"window": 39, "residual": 8},
        {"window": 100, "residual": 37, "group": 64},
        {"window": 127, "group": 128},
    ),
    ids=str,
)
def test_a_window_shorter_than_residual_and_group_is_refused_naming_both(
    precision: str, options: dict[str, int]
) -> None:
    with pytest.raises(ConfigError) as refusal:
        KVCache(CacheSpec(precision=precision, **options), one_layer(128))
    message = str(refusal.value)
    assert "window" in message and "residual" in message and "group" in message
    assert str(options["window"]) in message
    assert "\n" not in message


def test_a_window_of_exactly_residual_and_group_is_let_through() -> None:
    spec = CacheSpec(precision="int8", window=40, residual=8)
    cache = KVCache(spec, one_layer())
    assert mx.isfinite(run(cache, (4, 2), 32, [100, 1])[-1]).all().item()
    CacheSpec(precision="fp16", window=8, residual=64)  # nothing is packed: no group has to fit


@pytest.mark.parametrize("precision", INTS)
@pytest.mark.parametrize("head_dim", (16, 48, 80))
def test_a_head_that_no_group_divides_is_refused_naming_it(precision: str, head_dim: int) -> None:
    with pytest.raises(ConfigError) as refusal:
        KVCache(CacheSpec(precision=precision), one_layer(head_dim))
    message = str(refusal.value)
    assert "head_dim" in message and str(head_dim) in message and "32" in message


@pytest.mark.parametrize(
    "options, named",
    (
        ({"precision": "int5"}, "int5"),
        ({"precision": "int8 "}, "int8 "),
        ({"precision": ""}, "''"),
        ({"precision": "int8", "group": 16}, "16"),
        ({"precision": "int8", "group": 0}, "0"),
        ({"precision": "int8", "group": 96}, "96"),
        ({"precision": "int8", "group": -32}, "-32"),
        ({"precision": "int8", "residual": -1}, "-1"),
        ({"first_fp": -1}, "-1"),
        ({"window": 64, "sink": -1}, "-1"),
        ({"window": -64}, "-64"),
        ({"window": 0}, "0"),
        ({"slack": -1}, "-1"),
        ({"sink": 4}, "sink"),
        ({"window": 64, "positions": "relative"}, "relative"),
    ),
    ids=str,
)
def test_options_that_mean_nothing_are_refused_by_name(
    options: dict[str, object], named: str
) -> None:
    with pytest.raises(ConfigError) as refusal:
        KVCache(CacheSpec(**options), one_layer())  # type: ignore[arg-type]
    message = str(refusal.value)
    assert named in message and "\n" not in message


def test_a_window_alone_takes_four_sinks() -> None:
    cache = KVCache(CacheSpec(window=8), one_layer())
    run(cache, (4, 2), 32, [30])
    assert cache.held == 12


def test_attending_to_what_was_not_appended_is_refused() -> None:
    layer = KVCache(CacheSpec(), one_layer()).layers[0]
    with pytest.raises(CacheError):
        layer.attend(mx.zeros((1, 4, 1, 32)), 1.0)
    layer.append(mx.zeros((1, 2, 3, 32)), mx.zeros((1, 2, 3, 32)))
    with pytest.raises(CacheError):
        layer.attend(mx.zeros((1, 4, 4, 32)), 1.0)
    assert layer.attend(mx.zeros((1, 4, 2, 32)), 1.0).shape == (1, 4, 2, 32)  # the last two


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("options", ({}, {"window": 64}), ids=str)
def test_flat_and_large_tokens_stay_finite(precision: str, options: dict[str, int]) -> None:
    """Groups without a range, and values that fp16 holds but whose sums it would not."""
    cache = KVCache(CacheSpec(precision=precision, **options), one_layer())
    layer, at = cache.layers[0], 0
    noise = mx.random.normal((1, 2, 200, 32), key=mx.random.key(3))
    keys, values = mx.array(noise), mx.array(noise)
    keys[:, :, :80] = values[:, :, :80] = 0
    keys[:, :, 120:130] *= 1000
    values[:, :, 120:160] *= 10000
    for size in (90, 1, 1, 60, *[1] * 20, 28):
        span = slice(at, at + size)
        layer.append(keys[:, :, span], values[:, :, span])
        out = layer.attend(mx.concatenate([noise, -noise], axis=1)[:, :, span], 32**-0.5)
        assert mx.isfinite(out).all().item(), f"tokens from {at} on"
        cache.commit()
        at += size
    assert at == 200


@pytest.mark.parametrize("window", (8, 100))
def test_a_layer_of_its_own_sliding_window_has_no_sinks(
    window: int, feed: Callable[..., np.ndarray]
) -> None:
    layer = LayerLayout(2, 32, RopeConfig(10000.0, 32), window)
    layout = CacheLayout(layers=(layer,), dtype=mx.float32, half=mx.float16)
    settings = Settings(
        "fp32", first_fp=0, window=window, positions="absolute", rope=Rope(10000.0, 32)
    )
    shape = Shape(4, 2, 32)
    tokens = draw_tokens(19, 130, shape, settings)
    want = attend_all(settings, tokens, shape.scale)
    for sizes in ([130], [60] + [1] * 30 + [40]):
        got = feed(KVCache(CacheSpec(), layout), tokens, sizes)
        assert np.abs(got - want).max() <= FLOAT32_SUMS, f"chunks {sizes[:3]}"
