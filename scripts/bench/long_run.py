"""One long generation, with what each thousand tokens took: seconds, cache bytes, peak memory.

python scripts/bench/long_run.py MODEL 50000 int8,sink=4,window=256 docs/results/long_demo.json
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from tinygpt.blas import preload

preload()  # before MLX is imported

import mlx.core as mx  # noqa: E402

from tinygpt.cache import KVCache  # noqa: E402
from tinygpt.evaluate.cache_text import read_cache  # noqa: E402
from tinygpt.generate import Generation  # noqa: E402
from tinygpt.io.load import load  # noqa: E402
from tinygpt.sampling import Sampler, SamplingOptions  # noqa: E402

PROMPT = "Once upon a time"
EVERY = 1000  # tokens


def measure(model_path: Path, tokens: int, cache_text: str, seed: int) -> list[dict[str, object]]:
    """A row for every thousand tokens and for what is left over."""
    model, tokenizer = load(model_path)
    layout = model.cache_layout()
    spec, _ = read_cache(cache_text, layout, model.config.context)
    cache = KVCache(spec, layout)
    ids = tokenizer.encode(PROMPT)
    sampler = Sampler(SamplingOptions(seed=seed), ids)
    rows: list[dict[str, object]] = []
    mx.reset_peak_memory()
    started = time.perf_counter()
    for count, _token in enumerate(Generation(model, cache, ids, sampler, tokens=tokens), 1):
        if count % EVERY == 0 or count == tokens:
            now = time.perf_counter()
            rows.append(
                {
                    "tokens": count,
                    "seconds": now - started,
                    "bytes": cache.nbytes,
                    "peak_bytes": mx.get_peak_memory(),
                }
            )
            mx.reset_peak_memory()
            started = time.perf_counter()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("tokens", type=int)
    parser.add_argument("cache")
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    rows = measure(given.model, given.tokens, given.cache, given.seed)
    content = {"model": given.model.name, "cache": given.cache, "seed": given.seed, "long": rows}
    given.out.write_text(json.dumps(content, indent=2) + "\n")


if __name__ == "__main__":
    main()
