"""Speed, bytes and memory of one model in tinygpt and in mlx-lm, in turns, in one process.

    pip install mlx-lm      # Python 3.11 or newer
    python scripts/bench/decode.py MODEL --text FILE --json docs/results/decode.json

Both programs compute from the same arrays in one type, through the same BLAS. For each cache and
length both read the prompt, one after the other; then they decode in turns of a few tokens, and
each turn gives a ratio. Peaks are MLX's, with the weights, while one program alone has a cache.

mlx-lm's quantised cache reads a prompt so slowly that its own `--kv-bits` starts to quantise at
token 5,000 only. Prompts from `--peer-dense-from` on are read that way: into its full cache, which
its `to_quantized` then packs. What the peer lacks (bounded and quantised) is raced against its
bounded cache.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import Any

from machine import machine, versions

from tinygpt.blas import preload

preload()  # before MLX is imported

import mlx.core as mx  # noqa: E402

from tinygpt.cache import CacheSpec, KVCache  # noqa: E402
from tinygpt.evaluate.cache_text import read_cache  # noqa: E402
from tinygpt.evaluate.mlx_lm import MlxLm, MlxLmFeed  # noqa: E402
from tinygpt.evaluate.roofline import bandwidth, decode_floor, weight_bytes  # noqa: E402
from tinygpt.generate import Generation  # noqa: E402
from tinygpt.io.load import load  # noqa: E402
from tinygpt.models.transformer import Transformer  # noqa: E402

CACHES = ("full", "int8", "int4", "sink=4,window=256", "int8,sink=4,window=256")
FOREVER = 1_000_000


@dataclass(slots=True)
class Side:
    """One program with one cache: how it read the prompt, and what each turn's token took."""

    tokens: Iterator[object]
    nbytes: int = 0
    prefill_seconds: float = 0.0
    peak: int = 0
    turns: list[float] = field(default_factory=list)

    def start(self) -> None:
        """Read the prompt, and take a few tokens as a warm-up."""
        mx.clear_cache()
        mx.reset_peak_memory()
        began = time.perf_counter()
        next(self.tokens)
        self.prefill_seconds = time.perf_counter() - began
        for _ in range(3):
            next(self.tokens)
        mx.synchronize()
        self.peak = mx.get_peak_memory()

    def turn(self, count: int) -> None:
        """Take `count` tokens after one that brings the program back to its work."""
        next(self.tokens)
        began = time.perf_counter()
        for _ in range(count):
            next(self.tokens)
        self.turns.append((time.perf_counter() - began) / count)
        mx.synchronize()  # the next token is under way: it must not run in the other's turn


class Sides:
    """Both programs on one model, and everything that is measured of them."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given = given
        self.model, tokenizer = load(given.model, given.weights_dtype)
        self.peer = MlxLm(self.model)
        self.layout = self.model.cache_layout()
        text = given.text.read_text("utf-8")
        self.ids = tokenizer.encode(text[: 8 * max(given.lengths)])
        if len(self.ids) < max(given.lengths):
            raise SystemExit(f"{given.text} has {len(self.ids)} tokens only")

    def pair(self, name: str, length: int) -> dict[str, Any]:
        """Both sides of the cache `name` after `length` tokens."""
        spec, _ = read_cache(name, self.layout, self.model.config.context)
        ids = self.ids[:length]
        cache = KVCache(spec, self.layout)
        ours = Side(iter(Generation(self.model, cache, ids, mx.argmax, tokens=None)))
        ours.start()
        theirs_spec = spec if self.peer.refuses(spec) is None else replace(spec, precision="full")
        theirs, dense, feed = self._peer_side(theirs_spec, ids)
        mx.synchronize()
        held = cache.nbytes
        theirs.peak -= held
        for turn in range(self.given.turns):
            for side in (ours, theirs) if turn % 2 == 0 else (theirs, ours):
                side.turn(self.given.tokens)
        ours.nbytes, theirs.nbytes = held, feed.nbytes
        row = {"cache": name, "length": length, "peer_prefill_was_dense": dense}
        row["peer_is_unquantised"] = theirs_spec != spec
        return row | {"tinygpt": _figures(ours), "mlx_lm": _figures(theirs)} | _ratios(ours, theirs)

    def _peer_side(self, spec: CacheSpec, ids: list[int]) -> tuple[Side, bool, MlxLmFeed]:
        """mlx-lm after the prompt; whether that was read into its full cache."""
        from mlx_lm.generate import generate_step  # type: ignore[import-not-found]

        dense = spec.bits is not None and len(ids) >= self.given.peer_dense_from
        caches = self.peer.caches(replace(spec, precision="full") if dense else spec)
        feed = MlxLmFeed(self.peer.model, caches)
        bits = {
            "kv_bits": spec.bits,
            "kv_group_size": self.peer.group(spec),
            "quantized_kv_start": len(ids) - 1,
        }
        steps = generate_step(
            mx.array(ids),
            feed.model,
            max_tokens=FOREVER,
            prompt_cache=feed.caches,
            **(bits if dense else {}),
        )
        side = Side(steps)
        side.start()
        return side, dense, feed


def _figures(side: Side) -> dict[str, Any]:
    return {
        "prefill_seconds": side.prefill_seconds,
        "step_seconds": statistics.median(side.turns),
        "turns": side.turns,
        "bytes": side.nbytes,
        "peak_bytes": side.peak,
    }


def _ratios(ours: Side, theirs: Side) -> dict[str, Any]:
    by_turn = [b / a for a, b in zip(ours.turns, theirs.turns, strict=True)]
    return {
        "prefill_ratio": theirs.prefill_seconds / ours.prefill_seconds,
        "decode_ratio": statistics.median(by_turn),
        "decode_ratios": by_turn,
        "peak_ratio": ours.peak / theirs.peak,
    }


def start_up(model: Path, repeat: int) -> dict[str, float]:
    """Seconds of a whole process that writes one token, the median of `repeat`; by program."""
    peer = (
        "import sys; from tinygpt.blas import preload; preload()\n"
        "import mlx.core as mx\n"
        "from mlx_lm.generate import generate_step\n"
        "from tinygpt.evaluate.mlx_lm import MlxLm\n"
        "from tinygpt.io.load import load\n"
        "from pathlib import Path\n"
        "model, tokenizer = load(Path(sys.argv[1]), 'fp32')\n"
        "ids = mx.array(tokenizer.encode('Once upon a time'))\n"
        "next(generate_step(ids, MlxLm(model).model, max_tokens=1))\n"
    )
    ours = ["-m", "tinygpt", "sample", str(model), "--tokens", "1", "--prompt", "Once upon a time"]
    commands = {"tinygpt": ours, "mlx_lm on tinygpt's loader": ["-c", peer, str(model)]}
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(repeat):
        for name, arguments in commands.items():
            began = time.perf_counter()
            subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
            seconds[name].append(time.perf_counter() - began)
    return {name: statistics.median(taken) for name, taken in seconds.items()}


def configuration(given: argparse.Namespace, model: Transformer) -> dict[str, Any]:
    """What the figures depend on."""
    return {
        "model": given.model.name,
        "text": given.text.name,
        "dtype": str(model.dtype).removeprefix("mlx.core."),
        "device": str(mx.default_device()),
        "machine": machine(),
        "date": date.today().isoformat(),
        "tokens_a_turn": given.tokens,
        "versions": versions(),
        "weight_bytes": weight_bytes(model),
    }


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    made.add_argument("model", type=Path)
    made.add_argument("--text", type=Path, required=True)
    made.add_argument("--json", type=Path, required=True)
    made.add_argument("--cache", nargs="+", default=CACHES)
    made.add_argument("--lengths", nargs="+", type=int, default=[100, 2000, 6000])
    made.add_argument("--tokens", type=int, default=8, help="of a turn")
    made.add_argument("--turns", type=int, default=7)
    made.add_argument("--peer-dense-from", type=int, default=5000)
    made.add_argument("--start-ups", type=int, default=3)
    made.add_argument("--weights-dtype", default="fp32")
    return made


def main() -> None:
    given = parser().parse_args()
    sides = Sides(given)
    content = {"configuration": configuration(given, sides.model)}
    rate = bandwidth()
    rows: list[dict[str, Any]] = []
    content["decode"] = rows
    for length in given.lengths:
        for name in given.cache:
            row = sides.pair(name, length)
            rows.append(row)
            ours, theirs = row["tinygpt"], row["mlx_lm"]
            print(
                f"{name} {length}: prefill {ours['prefill_seconds']:.2f} s, "
                f"× {row['prefill_ratio']:.2f}; step {1000 * ours['step_seconds']:.1f} ms against "
                f"{1000 * theirs['step_seconds']:.1f}, × {row['decode_ratio']:.2f}; "
                f"peak {ours['peak_bytes'] / 1e6:.0f} MB, × {row['peak_ratio']:.2f}",
                file=sys.stderr,
                flush=True,
            )
            given.json.write_text(json.dumps(content, indent=2) + "\n")
    content["bandwidth"] = rate = max(rate, bandwidth())
    for row in rows:
        read = decode_floor(weight_bytes(sides.model), row["tinygpt"]["bytes"], rate)
        row["tinygpt"]["floor_seconds"] = read
    if given.start_ups:
        content["start_up_seconds"] = start_up(given.model, given.start_ups)
    given.json.write_text(json.dumps(content, indent=2) + "\n")


if __name__ == "__main__":
    main()
