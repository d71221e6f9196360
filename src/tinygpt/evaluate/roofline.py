"""What a token must cost on this machine: the bytes that have to be read, over the bandwidth."""

from __future__ import annotations

import math
import time
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from tinygpt.models.transformer import Transformer

BYTES = 1 << 28  # 256 MB: more than any processor's cache holds
ROW = 4096
REPETITIONS = 7


def bandwidth() -> float:
    """Bytes a second that MLX reads here at best, from a matrix used once: what decoding does.

    From either side: a BLAS reads the matrix twice as fast from one side as from the other.
    """
    matrix = mx.ones((BYTES // 4 // ROW, ROW))
    right, left = mx.ones((ROW,)), mx.ones((matrix.shape[0],))
    mx.eval(matrix, right, left)
    best = math.inf
    for _ in range(REPETITIONS):
        for product in (lambda: matrix @ right, lambda: left @ matrix):
            started = time.perf_counter()
            mx.eval(product())
            best = min(best, time.perf_counter() - started)
    return matrix.nbytes / best


def weight_bytes(model: Transformer) -> int:
    """Bytes of the weights that every forward reads whole; of an embedding it reads a row."""
    tied = model.config.tie_embeddings
    parameters: Any = tree_flatten(model.parameters())
    return sum(
        array.nbytes
        for name, array in parameters
        if not name.startswith("position_embedding")
        and (tied or not name.startswith("token_embedding"))
    )


def decode_floor(weights: int, cache: int, rate: float) -> float:
    """Seconds that reading all weights and the whole cache takes at `rate` bytes a second."""
    return (weights + cache) / rate


def prefill_floor(weights: int, cache: int, rate: float, chunks: int) -> float:
    """Seconds for `chunks` forwards: the weights each time, and a cache that grows to `cache`."""
    return (chunks * weights + (chunks + 1) * cache / 2) / rate
