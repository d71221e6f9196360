"""Trains the demo model: a small byte-level decoder on five novels, with a sixth held out.

    OPENBLAS_NUM_THREADS=1 python scripts/demo/train.py --minutes 70

It runs for that long on one CPU core; the same command resumes a run that was stopped. The learning
rate follows the clock, so that it has fallen when the time is over, however fast the machine is.
Result: .cache/train_demo/final.safetensors (float32, canonical names) and final.json.

The forward pass is in `forward.py`; at start-up its logits are compared with `Transformer`'s.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import sys
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path

from tinygpt.blas import preload

preload()  # before MLX is imported

import mlx.core as mx  # noqa: E402
import numpy as np  # noqa: E402
from mlx import nn  # noqa: E402

sys.path.insert(0, str(Path(__file__).parents[1] / "fetch"))

from austen import fetch_novels  # noqa: E402
from forward import (  # noqa: E402
    CONFIG,
    DOCUMENT_START,
    Tensors,
    check_forward,
    crops_at,
    initial_weights,
    make_bits_per_byte,
    make_forward,
    with_start,
)

from tinygpt.models.config import ModelConfig  # noqa: E402
from tinygpt.ops.rope import RopeConfig  # noqa: E402

Step = Callable[..., tuple[mx.array, Tensors, Tensors, Tensors]]

CACHE = Path(__file__).parents[2] / ".cache"
OUT = CACHE / "train_demo"
HELD_OUT = "persuasion"


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """How the model is trained. Batches are crops of `context` tokens; intervals are steps."""

    batch: int = 6
    learning_rate: float = 2e-3  # the highest
    final_fraction: float = 0.02  # of the highest rate, at the end
    warm_up: int = 100
    weight_decay: float = 0.1  # of matrices
    beta1: float = 0.9
    beta2: float = 0.98
    clip: float = 1.0  # the gradient's norm
    seed: int = 7
    report_every: int = 50
    save_every: int = 250


@dataclasses.dataclass(slots=True)
class Run:
    """All that a checkpoint keeps."""

    weights: Tensors
    means: Tensors  # Adam's
    squares: Tensors
    step: int = 0
    seconds: float = 0.0  # of wall time so far, over all resumptions


def new_run(config: ModelConfig, settings: Settings) -> Run:
    """Nothing trained yet."""
    weights = initial_weights(config, settings.seed)
    means, squares = ({n: mx.zeros_like(w) for n, w in weights.items()} for _ in range(2))
    return Run(weights, means, squares)


def describe(config: ModelConfig, settings: Settings) -> str:
    """What a checkpoint is of, for `is_of`."""
    return json.dumps(
        {"config": dataclasses.asdict(config), "settings": dataclasses.asdict(settings)}
    )


def is_of(described: str, config: ModelConfig, settings: Settings) -> bool:
    """Whether `describe` said this; a field that is younger than the checkpoint has its default."""
    old = json.loads(described)
    rope = RopeConfig(**old["config"].pop("rope"))
    theirs = ModelConfig(**old["config"], rope=rope), Settings(**old["settings"])
    return theirs == (config, settings)


def save_run(run: Run, path: Path, described: str) -> None:
    """Replace the checkpoint `path` in one step."""
    parts = {"weights": run.weights, "means": run.means, "squares": run.squares}
    arrays = {f"{part}:{name}": a for part, tensors in parts.items() for name, a in tensors.items()}
    metadata = {"described": described, "step": str(run.step), "seconds": str(run.seconds)}
    partial = path.with_name(f"partial.{path.name}")
    mx.save_safetensors(str(partial), arrays, metadata)
    os.replace(partial, path)


def load_run(path: Path, config: ModelConfig, settings: Settings) -> Run:
    """Read what `save_run` wrote.

    Raises:
        SystemExit: it was trained with other settings.
    """
    arrays, metadata = mx.load(str(path), return_metadata=True)
    if not is_of(metadata["described"], config, settings):
        sys.exit(f"{path} is of another model or other settings; remove it to start anew")
    parts: dict[str, Tensors] = {"weights": {}, "means": {}, "squares": {}}
    for key, array in arrays.items():
        part, name = key.split(":")
        parts[part][name] = array
    return Run(**parts, step=int(metadata["step"]), seconds=float(metadata["seconds"]))


def make_step(config: ModelConfig, settings: Settings) -> Step:
    """One compiled step of AdamW (Loshchilov and Hutter, 2017, arXiv 1711.05101)."""
    forward = make_forward(config)
    beta1, beta2 = settings.beta1, settings.beta2

    def loss_of(weights: Tensors, inputs: mx.array, targets: mx.array) -> mx.array:
        return nn.losses.cross_entropy(forward(weights, inputs), targets, reduction="mean")

    differentiate = mx.value_and_grad(loss_of)

    @mx.compile
    def step(
        weights: Tensors,
        means: Tensors,
        squares: Tensors,
        inputs: mx.array,
        targets: mx.array,
        rate: mx.array,
        number: mx.array,  # from 1
    ) -> tuple[mx.array, Tensors, Tensors, Tensors]:
        loss, gradients = differentiate(weights, inputs, targets)
        norm = mx.sqrt(sum(mx.square(g).sum() for g in gradients.values()))
        shrink = mx.minimum(1.0, settings.clip / (norm + 1e-6))
        moved, new_means, new_squares = {}, {}, {}
        for name, weight in weights.items():
            g = gradients[name] * shrink
            m = new_means[name] = beta1 * means[name] + (1 - beta1) * g
            v = new_squares[name] = beta2 * squares[name] + (1 - beta2) * g * g
            change = m / (1 - beta1**number) / (mx.sqrt(v / (1 - beta2**number)) + 1e-8)
            decay = settings.weight_decay if weight.ndim > 1 else 0.0
            moved[name] = weight - rate * (change + decay * weight)
        return loss, moved, new_means, new_squares

    return step


def learning_rate(settings: Settings, step: int, progress: float) -> float:
    """Warm-up by steps, then half a cosine by `progress`, the part of the time that is over."""
    low = settings.final_fraction
    cosine = low + (1 - low) * (1 + math.cos(math.pi * min(progress, 1.0))) / 2
    return settings.learning_rate * min(1.0, (step + 1) / settings.warm_up) * cosine


def advance(run: Run, step: Step, crops: np.ndarray, rate: float) -> float:
    """One step on `crops` [B, T]; its loss in bits per byte.

    Raises:
        RuntimeError: the loss is not finite.
    """
    loss, run.weights, run.means, run.squares = step(
        run.weights,
        run.means,
        run.squares,
        *with_start(crops),
        mx.array(rate),
        mx.array(float(run.step + 1)),
    )
    mx.eval(loss, run.weights, run.means, run.squares)
    bits: float = loss.item() / math.log(2)
    if not math.isfinite(bits):
        raise RuntimeError(f"step {run.step}: the loss is {bits}")
    run.step += 1
    return bits


def train(
    run: Run, config: ModelConfig, settings: Settings, minutes: float, texts: dict[str, np.ndarray]
) -> None:
    """Steps until `minutes` are over, with checkpoints."""
    step, bits_per_byte = make_step(config, settings), make_bits_per_byte(config)
    text, held_out, length = texts["train"], texts["held out"], config.context
    fixed = crops_at(held_out, np.linspace(0, len(held_out) - length, 32).astype(int), length)
    described, losses = describe(config, settings), []
    begun, total = time.monotonic() - run.seconds, 60 * minutes
    while run.seconds < total:
        draw = np.random.default_rng([settings.seed, run.step])
        starts = draw.integers(0, len(text) - length + 1, settings.batch)
        rate = learning_rate(settings, run.step, run.seconds / total)
        losses.append(advance(run, step, crops_at(text, starts, length), rate))
        run.seconds = time.monotonic() - begun
        if run.step % settings.report_every == 0:
            pace = run.seconds / run.step
            say(
                f"step {run.step} of about {total / pace:.0f}, {run.seconds / 60:.1f} min, "
                f"{pace:.2f} s a step, rate {rate:.2e}, {np.mean(losses):.3f} bits per byte"
            )
            losses.clear()
        if run.step % settings.save_every == 0:
            value = bits_per_byte(run.weights, fixed.reshape(-1), length)
            say(f"step {run.step}, held out: {value:.3f} bits per byte")
            save_run(run, OUT / "checkpoint.safetensors", described)
    save_run(run, OUT / "checkpoint.safetensors", described)


def finish(
    run: Run, config: ModelConfig, settings: Settings, minutes: float, held_out: np.ndarray
) -> None:
    """Write the weights and what there is to say about them."""
    stride = config.context // 2
    value = make_bits_per_byte(config)(run.weights, held_out, stride)
    mx.save_safetensors(str(OUT / "final.safetensors"), run.weights)
    facts = {
        "config": dataclasses.asdict(config),
        "parameters": sum(w.size for w in run.weights.values()),
        "bits_per_byte": round(value, 4),
        "measured_on": f"all of {HELD_OUT}, windows of {config.context}, stride {stride}",
        "settings": dataclasses.asdict(settings),
        "document_start": DOCUMENT_START,
        "steps": run.step,
        "minutes": round(run.seconds / 60, 1),
        "minutes_asked": minutes,
        "bytes_drawn": run.step * settings.batch * config.context,
        "date": date.today().isoformat(),
        "machine": "Linux x86-64, 2 cores, CPU",
    }
    (OUT / "final.json").write_text(json.dumps(facts, indent=2) + "\n")
    say(f"held out, all of it: {value:.4f} bits per byte after {run.step} steps")


def read_texts() -> dict[str, np.ndarray]:
    """The bytes to train on and those held out."""
    novels = fetch_novels(CACHE / "texts")
    held_out = novels.pop(HELD_OUT)
    texts = {"train": b"".join(novels.values()), "held out": held_out}
    return {name: np.frombuffer(text, np.uint8) for name, text in texts.items()}


def say(line: str) -> None:
    """One line of progress."""
    print(line, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=70, help="of training, on the wall clock")
    minutes = parser.parse_args().minutes
    settings, texts = Settings(), read_texts()
    OUT.mkdir(parents=True, exist_ok=True)
    checkpoint = OUT / "checkpoint.safetensors"
    resumed = checkpoint.is_file()
    run = load_run(checkpoint, CONFIG, settings) if resumed else new_run(CONFIG, settings)
    size = sum(w.size for w in run.weights.values())
    worst = check_forward(CONFIG, run.weights, texts["held out"])
    say(f"{size:,} parameters, from step {run.step}; logits within {worst:.1g} of Transformer's")
    train(run, CONFIG, settings, minutes, texts)
    finish(run, CONFIG, settings, minutes, texts["held out"])


if __name__ == "__main__":
    main()
