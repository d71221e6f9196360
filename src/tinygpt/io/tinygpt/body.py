"""Where the tensors of a `.tinygpt` body are, in each of its layouts.

Version 2: `training` (fp32 with Adam's moments, which are never looked at), `fp16`, `int4`. Version
3: `floats` (fp32 or bf16) and `affine` (MLX's packed integers beside floats). In version 2 a
Linear's `.weight`, of every name that is no table, is stored `[in, out]` under a shape that says
`[out, in]`; in version 3 the bytes of all tensors are in the order of the shape.

An affine tensor `{bits, group, dtype}` is its uint32 words `[out, in·bits/32]`, then scales and
biases `[out, in/group]` of type `dtype`, one after another from `byteOffset`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from tinygpt.errors import CheckpointError
from tinygpt.io.checkpoint import PACKED, shown
from tinygpt.io.tinygpt.header import VERSION_3, Entry, Header

AFFINE = "affine"
AFFINE_BITS = (2, 3, 4, 5, 6, 8)
AFFINE_GROUPS = (32, 64, 128)
TABLES = ("token_embedding.weight", "position_embedding.weight")
FLOAT_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}

Body = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor of the body. `read` gives it as `[out, in]`: an array, or words, scales, biases."""

    entry: Entry
    dtype: str  # for display
    nbytes: int
    read: Callable[[], tuple[mx.array, ...]]


def locate(path: Path, header: Header, body: Body) -> tuple[str, tuple[Stored, ...]]:
    """The form of the weights ("fp32", "fp16", "bf16", "packed") and every tensor of the body.

    Raises:
        CheckpointError: offsets, sizes or types that contradict each other or the body's length.
    """
    dtype = header.fields.text("weightDtype") or "fp32"
    optimiser = header.fields.flag("includesOptimizerState", default=True)
    if header.version == VERSION_3:
        return _version_3(path, header, dtype, optimiser, body)
    if dtype not in ("fp32", "fp16", "int4"):
        header.fields.refuse("weightDtype", dtype, "'fp32', 'fp16' or 'int4'")
    if dtype == "int4":
        return "fp16", _int4(path, header, body)
    if dtype == "fp16" or not optimiser:
        return "fp16", _floats(path, header, body, "fp16")
    return "fp32", _training(path, header, body)


def _version_3(
    path: Path, header: Header, dtype: str, optimiser: bool, body: Body
) -> tuple[str, tuple[Stored, ...]]:
    if dtype not in (*FLOAT_BYTES, AFFINE):
        header.fields.refuse("weightDtype", dtype, "'fp32', 'fp16', 'bf16' or 'affine'")
    if optimiser:
        header.fields.refuse("includesOptimizerState", optimiser, "false in version 3")
    if dtype == AFFINE:
        return PACKED, _affine(path, header, body)
    return dtype, _floats(path, header, body, dtype)


def _training(path: Path, header: Header, body: Body) -> tuple[Stored, ...]:
    """fp32 blocks: weight, Adam m, Adam v of each tensor in turn."""
    _check_length(path, body, 12 * sum(entry.size for entry in header.entries))
    stored, at = [], 0
    for entry in header.entries:
        read = _float_reader(body, at, entry, "fp32", _is_turned(header, entry))
        stored.append(Stored(entry, "fp32", 4 * entry.size, read))
        at += 12 * entry.size
    return tuple(stored)


def _floats(path: Path, header: Header, body: Body, dtype: str) -> tuple[Stored, ...]:
    """One buffer of one type; an offset that is not given continues the running sum."""
    width, running = FLOAT_BYTES[dtype], 0
    stored, placed = [], []
    for entry in header.entries:
        start = width * (running if entry.offset is None else entry.offset)
        placed.append((start, width * entry.size, entry.name))
        running += entry.size
        read = _float_reader(body, start, entry, dtype, _is_turned(header, entry))
        stored.append(Stored(entry, dtype, width * entry.size, read))
    _check_places(path, placed, body)
    return tuple(stored)


def _affine(path: Path, header: Header, body: Body) -> tuple[Stored, ...]:
    stored, placed = [], []
    for i, entry in enumerate(header.entries):
        where = f"{path}: header manifest[{i}]"
        nbytes = sum(_affine_parts(where, entry))
        if entry.byte_offset is None:
            raise CheckpointError(f"{where} byteOffset of {entry.name} is missing")
        placed.append((entry.byte_offset, nbytes, entry.name))
        stored.append(_affine_tensor(where, entry, body, nbytes))
    _check_places(path, placed, body)
    return tuple(stored)


def _affine_parts(where: str, entry: Entry) -> tuple[int, ...]:
    """Bytes of the float tensor, or of words, scales and biases, after checking the entry."""
    dtype = entry.dtype or "fp16"
    if dtype not in FLOAT_BYTES:
        _refuse(where, entry, "dtype", dtype, f"one of {', '.join(FLOAT_BYTES)}")
    width = FLOAT_BYTES[dtype]
    if entry.bits is None and entry.group is None:
        return (width * entry.size,)
    if entry.bits is None or entry.bits not in AFFINE_BITS:
        _refuse(where, entry, "bits", entry.bits, f"one of {', '.join(map(str, AFFINE_BITS))}")
    if entry.group is None or entry.group not in AFFINE_GROUPS:
        _refuse(where, entry, "group", entry.group, f"one of {', '.join(map(str, AFFINE_GROUPS))}")
    if len(entry.shape) != 2 or not entry.name.endswith(".weight"):
        _refuse(where, entry, "bits", entry.bits, "none for what is no matrix")
    if entry.shape[1] % entry.group:
        _refuse(where, entry, "group", entry.group, f"a divisor of its {entry.shape[1]} columns")
    scales = width * (entry.size // entry.group)
    return entry.size * entry.bits // 8, scales, scales


def _refuse(where: str, entry: Entry, key: str, value: object, expected: str) -> NoReturn:
    raise CheckpointError(f"{where} {key} of {entry.name} is {shown(value)}, expected {expected}")


def _affine_tensor(where: str, entry: Entry, body: Body, nbytes: int) -> Stored:
    dtype, start = entry.dtype or "fp16", entry.byte_offset or 0
    if entry.bits is None or entry.group is None:
        return Stored(entry, dtype, nbytes, _float_reader(body, start, entry, dtype, False))
    rows, columns = entry.shape
    words, scales, _ = _affine_parts(where, entry)
    by_row = (rows, columns // entry.group)

    def read() -> tuple[mx.array, ...]:
        weight = mx.array(body[start : start + words].view("<u4").reshape(rows, -1))
        parts = (body[start + words + i * scales :][:scales] for i in range(2))
        return weight, *(_floats_of(part, dtype).reshape(by_row) for part in parts)

    return Stored(entry, f"affine{entry.bits}", nbytes, read)


def _check_places(path: Path, placed: list[tuple[int, int, str]], body: Body) -> None:
    """Refuse tensors, as (start, bytes, name), that overlap or do not fill the body to its end."""
    end, before = 0, ""
    for start, nbytes, name in sorted(placed):
        if start < end:
            raise CheckpointError(
                f"{path}: tensor {name} starts at byte {start} of the body, inside tensor "
                f"{before}, which ends at {end}"
            )
        end, before = start + nbytes, name
    _check_length(path, body, end)


def _check_length(path: Path, body: Body, expected: int) -> None:
    if len(body) != expected:
        raise CheckpointError(
            f"{path}: the body has {len(body)} bytes, the manifest calls for {expected}; the file "
            f"is {'cut off' if len(body) < expected else 'not in the layout its header claims'}"
        )


def _int4(path: Path, header: Header, body: Body) -> tuple[Stored, ...]:
    """fp16 scales of all tensors, then nibbles, each tensor padded to whole blocks."""
    block = header.fields.integer("int4BlockSize", 64, low=2)
    if block % 2:
        header.fields.refuse("int4BlockSize", block, "an even number")
    blocks = [-(-entry.size // block) for entry in header.entries]
    scale_bytes, packed_bytes = 2 * sum(blocks), sum(blocks) * block // 2
    for key, right in (("int4ScalesBytes", scale_bytes), ("int4PackedBytes", packed_bytes)):
        said = header.fields.values.get(key)
        if type(said) is not int or said != right:
            header.fields.refuse(key, said, f"{right} for this manifest")
    _check_length(path, body, scale_bytes + packed_bytes)
    stored, first = [], 0
    for entry, count in zip(header.entries, blocks, strict=True):
        scales = body[2 * first :][: 2 * count]
        nibbles = body[scale_bytes + first * block // 2 :][: count * block // 2]
        read = _int4_reader(scales, nibbles, entry, _is_turned(header, entry))
        stored.append(Stored(entry, "int4", len(scales) + len(nibbles), read))
        first += count
    return tuple(stored)


def _int4_reader(
    scales: Body, nibbles: Body, entry: Entry, turned: bool
) -> Callable[[], tuple[mx.array]]:
    """(nibble − 8) × scale of its block, low nibble first, as float32."""

    def read() -> tuple[mx.array]:
        codes = np.stack([nibbles & 15, nibbles >> 4], axis=-1)
        by_block = scales.view("<f2").astype(np.float32)
        with np.errstate(invalid="ignore"):  # a scale that is not finite shows in the logits
            values = (codes.reshape(len(by_block), -1).astype(np.float32) - 8) * by_block[:, None]
        return (_in_shape(mx.array(values.reshape(-1)[: entry.size]), entry, turned),)

    return read


def _float_reader(
    body: Body, start: int, entry: Entry, dtype: str, turned: bool
) -> Callable[[], tuple[mx.array]]:
    def read() -> tuple[mx.array]:
        raw = body[start : start + FLOAT_BYTES[dtype] * entry.size]
        return (_in_shape(_floats_of(raw, dtype), entry, turned),)

    return read


def _floats_of(raw: Body, dtype: str) -> mx.array:
    if dtype == "bf16":
        return mx.array(raw.view("<u2")).view(mx.bfloat16)
    return mx.array(raw.view("<f4" if dtype == "fp32" else "<f2"))


def _is_turned(header: Header, entry: Entry) -> bool:
    """Whether the bytes are `[in, out]`: see the module's docstring."""
    linear = len(entry.shape) == 2 and entry.name.endswith(".weight") and entry.name not in TABLES
    return linear and header.version != VERSION_3


def _in_shape(flat: mx.array, entry: Entry, turned: bool) -> mx.array:
    if turned:
        return mx.contiguous(flat.reshape(entry.shape[::-1]).T)
    return flat.reshape(entry.shape)


def dequantise(stored: Stored, parts: tuple[mx.array, ...], dtype: mx.Dtype) -> mx.array:
    """The values of a tensor's parts; in float32 first, half-precision scales are far slower."""
    if len(parts) == 1:
        return parts[0].astype(dtype)
    weight, scales, biases = parts
    values = mx.dequantize(
        weight,
        scales.astype(mx.float32),
        biases.astype(mx.float32),
        group_size=stored.entry.group,
        bits=stored.entry.bits,
    )
    return values.astype(dtype)
