"""Building and feeding a cache through its public API."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import mlx.core as mx
import numpy as np
import pytest

from oracles.cache_reference import Settings, Shape, Tokens
from tinygpt.cache import CacheLayout, CacheSpec, KVCache, LayerLayout
from tinygpt.ops.rope import RopeConfig

HALVES = {"fp16": mx.float16, "bf16": mx.bfloat16}


def build_cache(
    settings: Settings, shape: Shape, *, layers: int = 1, slack: int = 0, precision: str = ""
) -> KVCache:
    """The cache that `settings` describe; `precision` names the storage otherwise than they do."""
    spec = CacheSpec(
        precision=precision or settings.precision,
        group=settings.group,
        residual=settings.residual,
        first_fp=settings.first_fp,
        sink=settings.sinks if settings.window is not None else None,
        window=settings.window,
        positions=settings.positions,
        slack=slack,
    )
    rope = settings.rope and RopeConfig(
        settings.rope.base, settings.rope.dims, settings.rope.traditional
    )
    layer = LayerLayout(kv_heads=shape.kv_heads, head_dim=shape.head_dim, rope=rope)
    layout = CacheLayout(layers=(layer,) * layers, dtype=mx.float32, half=HALVES[settings.half])
    return KVCache(spec, layout, start=settings.start)


def heads_first(x: np.ndarray) -> mx.array:
    """[T, H, D] as [1, H, T, D]."""
    return mx.array(np.ascontiguousarray(x.transpose(1, 0, 2))[None])


def feed_cache(cache: KVCache, tokens: Tokens, chunks: Iterable[int]) -> np.ndarray:
    """The last layer's outputs [T, H, D] of tokens fed to every layer in chunks of these sizes."""
    outputs, at = [], 0
    scale = float(tokens.q.shape[-1] ** -0.5)
    for size in chunks:
        part = tokens[at : at + size]
        for layer in cache.layers:
            layer.append(heads_first(part.k), heads_first(part.v))
            out = layer.attend(heads_first(part.q), scale)
        mx.eval(out)
        cache.commit()
        outputs.append(np.array(out.astype(mx.float32))[0].transpose(1, 0, 2))
        at += size
    assert at == len(tokens), "the chunks do not cover the tokens"
    return np.concatenate(outputs)


def cut(total: int, size: int) -> list[int]:
    """`total` tokens in chunks of `size`, the last one shorter."""
    return [min(size, total - at) for at in range(0, total, size)]


@pytest.fixture(scope="session")
def build() -> Callable[..., KVCache]:
    return build_cache


@pytest.fixture(scope="session")
def feed() -> Callable[..., np.ndarray]:
    return feed_cache


@pytest.fixture(scope="session")
def chunked() -> Callable[[int, int], list[int]]:
    return cut
