"""`tinygpt inspect`: what a model file says, without reading its weights."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence, Sized
from dataclasses import asdict
from pathlib import Path

import click
import mlx.core as mx

from tinygpt.cache.budget import bytes_per_token
from tinygpt.cache.spec import PRECISIONS, CacheSpec
from tinygpt.cli.options import DEMO_MODEL
from tinygpt.cli.output import TextOutput
from tinygpt.errors import ConfigError, TinyGPTError
from tinygpt.io.checkpoint import Checkpoint, parameter_count
from tinygpt.io.load import layout_of, open_checkpoint
from tinygpt.units import count, size

SHOWN_TENSORS = 12
SHOWN_ITEMS = 64  # of a metadata list
SHOWN_WIDTH = 60  # characters of a metadata value


@click.command("inspect")
@click.argument("model", required=False, type=click.Path(path_type=Path))
@click.option("--tensors", is_flag=True, help="List all tensors, not the first dozen.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, tensors included.")
@click.option("--check", is_flag=True, help="Read all weights, and name those not finite.")
def inspect(model: Path | None, tensors: bool, as_json: bool, check: bool) -> None:
    """Show what is in MODEL, a .tinygpt or .gguf file or a directory, and what its cache costs.

    Without MODEL it is the demo model, which is a part of this program.

    \b
    tinygpt inspect model.tinygpt
    tinygpt inspect model.gguf --json
    """
    output = TextOutput()
    checkpoint = open_checkpoint(model or DEMO_MODEL)
    found = describe(checkpoint)
    if check:
        found["not_finite"] = not_finite(checkpoint)
    if as_json:
        output.write(json.dumps(found, indent=2, ensure_ascii=False) + "\n")
    else:
        output.write("\n".join(as_text(found, all_tensors=tensors)) + "\n")


def describe(checkpoint: Checkpoint) -> dict[str, object]:
    """Everything that `inspect` shows, as JSON can hold it; sizes are bytes."""
    return {
        "path": str(checkpoint.path),
        "kind": checkpoint.kind,
        "file_bytes": file_bytes(checkpoint),
        "parameters": parameter_count(checkpoint),
        "weights": checkpoint.stored_dtype,
        "config": asdict(checkpoint.config),
        "cache_hints": dict(checkpoint.cache_hints),
        "cache_bytes_per_token": cache_costs(checkpoint),
        "tokenizer": describe_tokenizer(checkpoint),
        "metadata": {key: _plain(value) for key, value in checkpoint.metadata.items()},
        "tensors": [asdict(tensor) for tensor in checkpoint.tensors],
    }


def not_finite(checkpoint: Checkpoint) -> list[str]:
    """The names of the tensors that hold an infinity or a NaN, read one after another."""
    return [
        name
        for part in checkpoint.iter_weights(checkpoint.stored_dtype)
        for name, array in part.items()
        if array.dtype != mx.uint32 and not bool(mx.isfinite(array).all())
    ]


def file_bytes(checkpoint: Checkpoint) -> int:
    """Bytes of the file, or of all tensors in a directory's files."""
    if checkpoint.path.is_file():
        return checkpoint.path.stat().st_size
    return sum(tensor.nbytes for tensor in checkpoint.tensors)


def cache_costs(checkpoint: Checkpoint) -> dict[str, float | str]:
    """Bytes that each precision takes for one more token, or why it cannot store this model."""
    layout = layout_of(checkpoint, None)
    costs: dict[str, float | str] = {}
    for precision in PRECISIONS:
        try:
            costs[precision] = bytes_per_token(CacheSpec(precision), layout)
        except ConfigError as error:
            costs[precision] = str(error)
    return costs


def describe_tokenizer(checkpoint: Checkpoint) -> dict[str, object]:
    """The tokenizer's facts, or the reason why there is none."""
    try:
        tokenizer = checkpoint.read_tokenizer(None)
    except TinyGPTError as error:
        return {"error": str(error)}
    return {
        "kind": type(tokenizer).__name__,
        "vocab_size": tokenizer.vocab_size,
        "bos_id": tokenizer.bos_id,
        "add_bos": tokenizer.add_bos,
        "eos_ids": sorted(tokenizer.eos_ids),
        "chat_template": tokenizer.chat_template is not None,
    }


def as_text(found: Mapping[str, object], *, all_tensors: bool) -> list[str]:
    """The lines for a person."""
    lines = [f"{found['path']}"]
    lines += _rows(
        {
            "kind": found["kind"],
            "file": size(_number(found["file_bytes"])),
            "parameters": count(int(_number(found["parameters"]))),
            "weights": found["weights"],
        }
    )
    for title in ("config", "tokenizer", "cache_hints", "metadata"):
        rows = found[title]
        if isinstance(rows, dict) and rows:
            lines += ["", title.replace("_", " "), *_rows(rows)]
    costs = found["cache_bytes_per_token"]
    assert isinstance(costs, dict)
    lines += ["", "cache bytes per token"]
    lines += [f"  {precision:<6}  {_cost(cost)}" for precision, cost in costs.items()]
    bad = found.get("not_finite")
    if isinstance(bad, list):
        lines += ["", "not finite: " + ", ".join(bad) if bad else "all weights are finite"]
    tensors = found["tensors"]
    assert isinstance(tensors, list)
    return [*lines, "", *_tensor_lines(tensors, all_tensors)]


def _tensor_lines(tensors: Sequence[Mapping[str, object]], all_tensors: bool) -> list[str]:
    shown = tensors if all_tensors else tensors[:SHOWN_TENSORS]
    lines = [f"{len(tensors)} tensors"]
    for tensor in shown:
        shape = tensor["shape"]
        assert isinstance(shape, tuple)
        sizes = " × ".join(map(str, shape))
        lines.append(
            f"  {tensor['name']:<36} {sizes:>16}  {tensor['dtype']:<6} "
            f"{size(_number(tensor['nbytes'])):>9}"
        )
    if len(shown) < len(tensors):
        lines.append(f"  … {len(tensors) - len(shown)} more (--tensors shows all)")
    return lines


def _rows(values: Mapping[str, object]) -> list[str]:
    width = max(map(len, values))
    return [f"  {key:<{width}}  {_short(value)}" for key, value in values.items()]


def _short(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {item}" for key, item in value.items())
    text = "none" if value is None else str(value)
    escaped = text.encode("unicode_escape").decode() if not text.isprintable() else text
    return escaped if len(escaped) <= SHOWN_WIDTH else escaped[: SHOWN_WIDTH - 1] + "…"


def _cost(value: object) -> str:
    return f"{value:,.0f}" if isinstance(value, (int, float)) else f"refused: {value}"


def _number(value: object) -> float:
    assert isinstance(value, (int, float))
    return value


def _plain(value: object) -> object:
    """A metadata value as JSON can hold it; a vocabulary only by its length."""
    if isinstance(value, Sized) and not isinstance(value, str) and len(value) > SHOWN_ITEMS:
        return f"{len(value)} items"
    return value if isinstance(value, (str, int, float, bool, list, dict)) else str(value)
