"""Bytes of caches that were really filled, for the original's shape: 12 layers × 8 heads × 32.

python scripts/bench/cache_bytes.py docs/results/bytes.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tinygpt.blas import preload

preload()  # before MLX is imported

import mlx.core as mx  # noqa: E402

from tinygpt.cache import CacheLayout, CacheSpec, KVCache, LayerLayout  # noqa: E402
from tinygpt.evaluate.cache_text import read_cache  # noqa: E402

LAYERS, HEADS, HEAD_DIM = 12, 8, 32
LENGTHS = (128, 256, 384, 500, 1024, 2048)
CACHES = ("fp32", "bf16", "int8", "int4", "int3", "int2")
STREAMING = "sink=4,window=256"
CHUNK = 128
LAYOUT = CacheLayout((LayerLayout(HEADS, HEAD_DIM, None),) * LAYERS)


def filled_bytes(spec: CacheSpec, tokens: int) -> int:
    """Bytes of all arrays of a cache that has taken `tokens`."""
    cache = KVCache(spec, LAYOUT)
    cache.reserve(tokens)
    for start in range(0, tokens, CHUNK):
        rows = mx.random.normal((1, HEADS, min(CHUNK, tokens - start), HEAD_DIM))
        for layer in cache.layers:
            layer.append(rows, rows)
        cache.commit()
        mx.eval(cache.evaluated())
    return cache.nbytes


def main(path: Path) -> None:
    texts = [*CACHES, *(f"{precision},{STREAMING}" for precision in CACHES[1:4])]
    rows = []
    for text in texts:
        spec, _ = read_cache(text, LAYOUT, max(LENGTHS))
        rows += [
            {"cache": text, "tokens": tokens, "bytes": filled_bytes(spec, tokens)}
            for tokens in LENGTHS
        ]
    shape = {"layers": LAYERS, "kv_heads": HEADS, "head_dim": HEAD_DIM}
    path.write_text(json.dumps({"shape": shape, "bytes": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
