"""Bytes: what is foretold is what is allocated, and what the machine sees."""

from __future__ import annotations

import subprocess
import sys

import mlx.core as mx
import pytest

from tinygpt.cache import CacheLayout, CacheSpec, KVCache, LayerLayout
from tinygpt.cache.budget import (
    bytes_per_token,
    cache_bytes,
    fitting_flags,
    full_bytes,
    largest_window,
)
from tinygpt.errors import ConfigError
from tinygpt.ops.rope import RopeConfig

SEED_SHAPE = CacheLayout((LayerLayout(8, 32, None),) * 12)  # the original's 12 × 8 × 32
SMALL = CacheLayout((LayerLayout(2, 64, RopeConfig(10000.0, 64)),) * 2)
INT4_LIMIT = 2.5e6  # bytes for 500 tokens: a really packed int4 and all that goes with it

FRESH_PROCESS = """
from tinygpt.blas import preload
preload()
import mlx.core as mx
mx.set_cache_limit(0)
from tinygpt.cache import CacheLayout, CacheSpec, KVCache, LayerLayout
layout = CacheLayout((LayerLayout(4, 128, None),) * 8)
cache = KVCache(CacheSpec({precision!r}, window={window}), layout)
steps = [512] * 4 + [1] * 40
mx.eval(mx.zeros((4,)) + 1)
before = mx.get_active_memory()
for tokens in steps:
    for layer in cache.layers:
        layer.append(mx.random.normal((1, 4, tokens, 128)), mx.random.normal((1, 4, tokens, 128)))
        mx.eval(layer.attend(mx.random.normal((1, 4, tokens, 128)), 0.1))
    cache.commit()
    mx.eval(cache.evaluated())
    mx.synchronize()

print(cache.nbytes, mx.get_active_memory() - before)
"""


def fed(spec: CacheSpec, layout: CacheLayout, tokens: int, chunk: int, reserve: bool) -> KVCache:
    cache = KVCache(spec, layout)
    if reserve:
        cache.reserve(tokens)
    for at in range(0, tokens, chunk):
        for layer, shape in zip(cache.layers, layout.layers, strict=True):
            x = mx.zeros((1, shape.kv_heads, min(chunk, tokens - at), shape.head_dim))
            layer.append(x, x)
    cache.commit()
    mx.eval(cache.evaluated())
    return cache


@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8", "int4", "int3", "int2"])
@pytest.mark.parametrize("window", [None, 64, 300])
@pytest.mark.parametrize("tokens", [1, 3, 40, 333, 1500])
@pytest.mark.parametrize("chunk", [1, 100])
def test_what_is_foretold_is_what_is_allocated(
    precision: str, window: int | None, tokens: int, chunk: int
) -> None:
    spec = CacheSpec(precision, window=window)
    cache = fed(spec, SMALL, tokens, chunk, reserve=True)
    assert cache.nbytes == cache_bytes(spec, SMALL, tokens)


def test_without_a_reservation_at_most_a_sixteenth_more_is_allocated() -> None:
    for precision in ("fp16", "int4"):
        for tokens in range(100, 1200, 53):
            spec = CacheSpec(precision)
            got, exact = fed(spec, SMALL, tokens, 1, False).nbytes, cache_bytes(spec, SMALL, tokens)
            least = 32 * bytes_per_token(CacheSpec("fp16"), SMALL)
            assert exact <= got <= exact * 17 / 16 + least, (precision, tokens)


def test_int4_is_really_packed_at_the_original_s_shape() -> None:
    assert fed(CacheSpec("int4"), SEED_SHAPE, 500, 100, False).nbytes <= INT4_LIMIT


@pytest.mark.parametrize(
    ("precision", "bits"), [("int8", 9), ("int4", 5), ("int3", 4), ("int2", 3)]
)
def test_a_long_text_takes_the_bits_that_the_format_implies(precision: str, bits: int) -> None:
    """Codes, and a float16 scale and zero for 32 of them: one bit an element."""
    elements = 2 * 64 * sum(layer.kv_heads for layer in SMALL.layers)
    assert bytes_per_token(CacheSpec(precision), SMALL) == elements * bits / 8
    assert bytes_per_token(CacheSpec(precision, window=64), SMALL) == 0


@pytest.mark.parametrize("precision", ["fp32", "int8", "int4"])
@pytest.mark.parametrize("window", [None, 256])
def test_the_report_agrees_with_the_machine(precision: str, window: int | None) -> None:
    script = FRESH_PROCESS.format(precision=precision, window=window)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    reported, active = map(int, done.stdout.split())
    assert abs(reported - active) <= 0.01 * active, (reported, active)


@pytest.mark.parametrize("precision", ["fp16", "int8", "int2"])
def test_the_largest_window_fits_and_the_next_does_not(precision: str) -> None:
    for limit in (200_000, 1_000_000, 64_000_000):
        spec = largest_window(CacheSpec(precision, window=128), SMALL, limit)
        assert spec.window is not None
        assert full_bytes(spec, SMALL) <= limit
        # groups and the residual grow in steps: two groups further on nothing fits any more
        further = CacheSpec(precision, window=spec.window + 64)
        assert full_bytes(further, SMALL) > limit


def test_a_budget_below_the_smallest_cache_is_refused_with_what_it_takes() -> None:
    with pytest.raises(ConfigError, match=r"takes \d+ bytes"):
        largest_window(CacheSpec("int8", window=128), SMALL, 5_000)


def test_the_flags_that_are_recommended_fit() -> None:
    free = cache_bytes(CacheSpec("int8"), SMALL, 10_000)
    assert fitting_flags(SMALL, 10_000, free) == "--kv-quantize int8"
    assert fitting_flags(SMALL, 10_000, free - 1) == "--kv-quantize int4"
    bounded = fitting_flags(SMALL, 10_000, free // 4)
    assert bounded is not None and "--streaming-llm-window" in bounded
    assert fitting_flags(SMALL, 10_000, 1000) is None


@pytest.mark.parametrize("precision", ["fp32", "int8", "int4"])
def test_a_decode_step_makes_no_copy_that_grows_with_the_cache(precision: str) -> None:
    """What a step needs beside the cache grows by its rows of scores, not by keys or values."""
    layout = CacheLayout((LayerLayout(2, 64, RopeConfig(10000.0, 64)),))
    extra = {}
    for tokens in (2048, 6144):
        cache = fed(CacheSpec(precision), layout, tokens, 1024, reserve=False)
        cache.reserve(tokens + 64)
        x = mx.random.normal((1, 2, 1, 64))
        for _ in range(12):
            mx.eval(x)
            before = mx.get_active_memory()
            mx.reset_peak_memory()
            cache.layers[0].append(x, x)
            mx.eval(cache.layers[0].attend(x, 0.1))
            needed = mx.get_peak_memory() - before  # more where a step happens to grow a buffer
            extra[tokens] = min(extra.get(tokens, needed), needed)
            cache.commit()
    scores = 2 * 4 * (6144 - 2048)  # bytes of the scores of two heads for the further tokens
    assert extra[6144] - extra[2048] <= 6 * scores, extra


@pytest.mark.parametrize("precision", ["fp16", "int8"])
def test_sinks_and_first_tokens_take_no_more_than_a_reserved_text(precision: str) -> None:
    for spec in (CacheSpec(precision, first_fp=5000), CacheSpec(precision, sink=5000, window=64)):
        cache = fed(spec, SMALL, 10, 5, reserve=True)
        assert cache.nbytes == cache_bytes(spec, SMALL, 10) <= 16 * 2 * 2 * 64 * 4 * 2
        more = fed(spec, SMALL, 10, 5, reserve=True)
        for at, layer in enumerate(more.layers):  # a reservation is an expectation, not a limit
            x = mx.zeros((1, SMALL.layers[at].kv_heads, 50, 64))
            layer.append(x, x)
            assert layer.attend(mx.zeros((1, 2, 50, 64)), 1.0).shape == (1, 2, 50, 64)
        more.commit()
        assert more.seen == 60


@pytest.mark.parametrize(("precision", "rows", "most"), [("fp16", 1, 1.05), ("int8", 16, 0.5)])
def test_a_step_makes_float32_no_more_than_one_layer_and_a_prefill_only_blocks_of_it(
    precision: str, rows: int, most: float
) -> None:
    """A step's operations must not grow with the text, so one token reads a layer in one piece."""
    tokens = 32768
    layout = CacheLayout((LayerLayout(1, 64, None),))
    cache = fed(CacheSpec(precision), layout, tokens, 2048, reserve=False)
    cache.reserve(tokens + 256)
    x = mx.random.normal((1, 1, rows, 64))
    extra = []
    for _ in range(6):
        mx.eval(x)
        before = mx.get_active_memory()
        mx.reset_peak_memory()
        cache.layers[0].append(x, x)
        mx.eval(cache.layers[0].attend(x, 0.1))
        extra.append(mx.get_peak_memory() - before)
        cache.commit()
    whole = 2 * 64 * 4 * tokens  # bytes of all keys and values in float32
    assert min(extra) <= most * whole, f"{min(extra)} of {whole} bytes"
