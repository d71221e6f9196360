#!/usr/bin/env python3
"""Prefill speed and peak memory by chunk size, for the default of --prefill-chunk.

    python scripts/bench/prefill_chunk.py model.gguf --text FILE --tokens 2000

Seconds are CPU seconds of the process, one BLAS thread: set OPENBLAS_NUM_THREADS=1. Chunk sizes are
alternated, and the minimum of the rounds is printed, so that a busy machine changes little.
"""

from __future__ import annotations

import argparse
import gc
import time
from pathlib import Path

import tinygpt  # before MLX: it brings the BLAS

# isort: split
import mlx.core as mx

from tinygpt.cache import CacheSpec, KVCache
from tinygpt.engine import Engine

CHUNKS = (64, 128, 256, 512, 1024)
CACHES = {
    "fp32": CacheSpec(),
    "int8": CacheSpec("int8"),
    "int8 4+256": CacheSpec("int8", window=256),
}


def measure(model: object, spec: CacheSpec, ids: list[int], chunk: int) -> tuple[float, float]:
    """CPU seconds, and the peak in megabytes above the weights."""
    gc.collect()
    mx.clear_cache()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    start = time.process_time()
    cache = KVCache(spec, model.cache_layout())  # type: ignore[attr-defined]
    Engine(model, [cache], chunk=chunk).feed([ids], last=1)  # type: ignore[arg-type]
    return time.process_time() - start, (mx.get_peak_memory() - before) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    model, tokenizer = tinygpt.load(options.model)
    mx.eval(model.parameters())
    ids = tokenizer.encode(options.text.read_text())[: options.tokens]
    print(f"{len(ids)} tokens: tokens per CPU second, peak MB above the weights")
    for name, spec in CACHES.items():
        found = {chunk: [] for chunk in CHUNKS}
        for _ in range(options.rounds):
            for chunk in CHUNKS:
                found[chunk].append(measure(model, spec, ids, chunk))
        cells = []
        for chunk, rounds in found.items():
            seconds, peak = (min(column) for column in zip(*rounds, strict=True))
            cells.append(f"{chunk}: {len(ids) / seconds:.0f}/s {peak:.0f} MB")
        print(f"{name}: " + " · ".join(cells), flush=True)


if __name__ == "__main__":
    main()
