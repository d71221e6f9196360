"""Writes `.tinygpt` version 2 files in the three body layouts, for tests. Imports no tinygpt."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path

import numpy as np

LAYOUTS = ("training", "fp16", "int4")
INT4_BLOCK = 64
TABLES = ("token_embedding.weight", "position_embedding.weight")


def random_model(config: dict, seed: int = 0, untied: bool = False) -> dict[str, np.ndarray]:
    """Weights [out, in], float32, of the classic model that `config` (header keys) describes."""
    rng = np.random.default_rng(seed)
    dim, hidden = config["dModel"], config["dMlp"]
    shapes = {"token_embedding.weight": (config["vocabSize"], dim)}
    shapes["position_embedding.weight"] = (config["ctx"], dim)
    if config.get("useEmbeddingRMSNorm"):
        shapes["embed_norm.weight"] = (dim,)
    shapes |= {"ln_final.weight": (dim,), "ln_final.bias": (dim,)}
    for i in range(config["layers"]):
        for norm in ("ln1", "ln2"):
            shapes[f"blocks.{i}.{norm}.weight"] = shapes[f"blocks.{i}.{norm}.bias"] = (dim,)
        linears = {f"attn.{part}_proj": (dim, dim) for part in "qkvo"}
        linears |= {"mlp.fc_in": (hidden, dim), "mlp.fc_out": (dim, hidden)}
        for name, shape in linears.items():
            shapes[f"blocks.{i}.{name}.weight"] = shape
            shapes[f"blocks.{i}.{name}.bias"] = shape[:1]
    if untied:
        shapes["lm_head.weight"] = (config["vocabSize"], dim)
    return {name: _random(rng, name, shape) for name, shape in shapes.items()}


def _random(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> np.ndarray:
    if len(shape) == 2:
        return (rng.standard_normal(shape) / math.sqrt(shape[1])).astype(np.float32)
    centre = 1.0 if name.endswith("weight") else 0.0
    return (centre + 0.1 * rng.standard_normal(shape)).astype(np.float32)


def stored_order(name: str, array: np.ndarray) -> np.ndarray:
    """The elements in file order: a Linear's weight goes out as [in, out]."""
    linear = array.ndim == 2 and name not in TABLES
    return np.ascontiguousarray(array.T if linear else array).reshape(-1)


def encode(
    config: dict,
    weights: dict[str, np.ndarray],
    layout: str,
    *,
    header: dict | None = None,
    offsets: bool = True,
) -> bytes:
    """A whole file. `header` overrides or adds header keys; `offsets` writes floatOffset (fp16)."""
    manifest, start = [], 0
    for name, array in weights.items():
        line = {"name": name, "shape": list(array.shape)}
        if layout == "fp16" and offsets:
            line["floatOffset"] = start
        manifest.append(line)
        start += array.size
    flat = [stored_order(name, array) for name, array in weights.items()]
    extra, body = {"training": _training, "fp16": _fp16, "int4": _int4}[layout](flat)
    text = {"config": config, "manifest": manifest, **extra, **(header or {})}
    return assemble(json.dumps(text).encode(), body, step=123)


def assemble(text: bytes, body: bytes, *, step: int = 0, version: int = 2) -> bytes:
    """A file from header text and body, whatever they say."""
    prefix = struct.pack("<4sII", b"TGPT", version, len(text))
    return prefix + text + struct.pack("<i", step) + body


def write(path: Path, config: dict, weights: dict[str, np.ndarray], layout: str, **more) -> Path:
    """`encode` into a file; returns the path."""
    path.write_bytes(encode(config, weights, layout, **more))
    return path


def _training(flat: list[np.ndarray]) -> tuple[dict, bytes]:
    """Adam's m and v are filled with values that no weight has."""
    blocks = []
    for array in flat:
        m, v = np.full_like(array, 1e6), np.full_like(array, -1e6)
        blocks += [part.astype("<f4").tobytes() for part in (array, m, v)]
    return {"weightDtype": "fp32", "includesOptimizerState": True}, b"".join(blocks)


def _fp16(flat: list[np.ndarray]) -> tuple[dict, bytes]:
    body = b"".join(array.astype("<f2").tobytes() for array in flat)
    return {"weightDtype": "fp16", "includesOptimizerState": False}, body


def _int4(flat: list[np.ndarray]) -> tuple[dict, bytes]:
    scales, packed = [], []
    for array in flat:
        codes, scale = int4_codes(array)
        nibbles = codes.reshape(-1, 2)
        scales.append(scale.astype("<f2").tobytes())
        packed.append((nibbles[:, 0] | nibbles[:, 1] << 4).astype(np.uint8).tobytes())
    sizes = {"int4ScalesBytes": len(b"".join(scales)), "int4PackedBytes": len(b"".join(packed))}
    header = {"weightDtype": "int4", "includesOptimizerState": False, "int4BlockSize": INT4_BLOCK}
    return header | sizes, b"".join(scales + packed)


def int4_codes(array: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Nibbles 1 … 15 (value + 8), padded to whole blocks, and one fp16 scale a block."""
    padded = np.zeros(-(-array.size // INT4_BLOCK) * INT4_BLOCK, np.float32)
    padded[: array.size] = array
    blocks = padded.reshape(-1, INT4_BLOCK)
    scale = np.maximum(np.abs(blocks).max(axis=1) / 7, 1e-8).astype(np.float16)
    safe = np.where(scale == 0, np.float16(1), scale).astype(np.float32)
    codes = np.clip(np.rint(blocks / safe[:, None]), -7, 7).astype(np.int8) + 8
    return codes.astype(np.uint8).reshape(-1), scale


def int4_values(array: np.ndarray) -> np.ndarray:
    """What an int4 file keeps of a flat array, by the format's formula, one value at a time."""
    codes, scale = int4_codes(array)
    values = [(int(codes[i]) - 8) * float(scale[i // INT4_BLOCK]) for i in range(array.size)]
    return np.array(values, np.float32)
