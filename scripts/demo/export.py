"""Turns what scripts/demo/train.py has trained into the model inside the package.

    python scripts/demo/export.py

It reads .cache/train_demo/final.safetensors and final.json, or, while there are none yet, the
checkpoint beside them, and replaces src/tinygpt/data/demo.tinygpt: fp16, tokenizer inside.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tinygpt.blas import preload

preload()  # before MLX is imported

import mlx.core as mx  # noqa: E402
from train import CONFIG, DOCUMENT_START, HELD_OUT, OUT  # noqa: E402

from tinygpt.io.tinygpt.tokenizer import tokenizer_to_json  # noqa: E402
from tinygpt.io.tinygpt.write import Description, write_tinygpt  # noqa: E402
from tinygpt.models.tensors import tensor_shapes  # noqa: E402
from tinygpt.tokenizer import ByteTokenizer  # noqa: E402

DEMO = Path(__file__).parents[2] / "src" / "tinygpt" / "data" / "demo.tinygpt"
LARGEST = 8 * 10**6  # bytes
FACTS = ("bits_per_byte", "measured_on", "steps", "minutes", "bytes_drawn", "date", "machine")

Weights = dict[str, mx.array]


def read_final() -> tuple[Weights, dict[str, object]]:
    """The finished weights and what their training measured."""
    facts = json.loads((OUT / "final.json").read_text())
    return mx.load(str(OUT / "final.safetensors")), {key: facts[key] for key in FACTS}


def read_checkpoint() -> tuple[Weights, dict[str, object]]:
    """The weights of a training that is not over."""
    arrays, metadata = mx.load(str(OUT / "checkpoint.safetensors"), return_metadata=True)
    start = "weights:"
    weights = {n.removeprefix(start): a for n, a in arrays.items() if n.startswith(start)}
    minutes = round(float(metadata["seconds"]) / 60, 1)
    return weights, {"unfinished": True, "steps": int(metadata["step"]), "minutes": minutes}


def describe(training: dict[str, object]) -> Description:
    """The demo model's header."""
    text = {"trained on": "five novels by Jane Austen (public domain)", "held out": HELD_OUT}
    tokenizer = ByteTokenizer(CONFIG.vocab_size, bos_id=DOCUMENT_START, add_bos=True)
    return Description(
        CONFIG,
        "fp16",
        tokenizer_to_json(tokenizer),
        extra={"name": "tinygpt demo", "training": {**text, **training}},
    )


def main() -> None:
    finished = (OUT / "final.safetensors").is_file() and (OUT / "final.json").is_file()
    weights, training = read_final() if finished else read_checkpoint()
    parts = ({name: weights[name].astype(mx.float16)} for name, _ in tensor_shapes(CONFIG))
    DEMO.parent.mkdir(exist_ok=True)
    write_tinygpt(DEMO, describe(training), parts)
    size = DEMO.stat().st_size
    if size > LARGEST:
        sys.exit(f"{DEMO} has {size} bytes, more than {LARGEST}")
    print(f"{DEMO}: {size:,} bytes, {training}")


if __name__ == "__main__":
    main()
