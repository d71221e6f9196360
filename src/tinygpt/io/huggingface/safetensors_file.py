"""Safetensors files, one or many: whose bytes a tensor is, once every header has been checked.

The `safetensors` package refuses what lies in a header. Its own walk comes second here, because it
does not say which tensor a file is too short for, and takes a name that occurs twice.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from tinygpt.errors import CheckpointError
from tinygpt.io.checkpoint import map_file, shown
from tinygpt.io.json_fields import Fields, parse_object

FLOATS = {"F32": "fp32", "F16": "fp16", "BF16": "bf16"}
WORDS = "U32"
_NUMPY = {"F32": "<f4", "F16": "<f2", "BF16": "<u2", WORDS: "<u4"}
_PREFIX = struct.Struct("<Q")
_LARGEST_HEADER = 100_000_000  # bytes, the format's own limit


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor of a checked file. `dtype` is the format's name; `raw` is mapped, not read."""

    file: Path
    name: str
    dtype: str
    shape: tuple[int, ...]
    raw: NDArray[np.uint8]

    def rows(self, start: int, count: int) -> mx.array:
        """Rows `start` … `start + count − 1` in their own type, copied; all of a vector too."""
        width = len(self.raw) // self.shape[0]
        raw = self.raw[start * width : (start + count) * width].view(_NUMPY[self.dtype])
        array = mx.array(np.require(raw, requirements="A"))  # a file may align to single bytes
        if self.dtype == "BF16":
            array = array.view(mx.bfloat16)
        return array.reshape(count, *self.shape[1:])


def read_safetensors(path: Path) -> dict[str, StoredTensor]:
    """The tensors of a file, by name; nothing of them is read.

    Raises:
        CheckpointError: no such file, or a header that says things that are not true.
    """
    data = map_file(_regular(path))
    header, body = _split(path, data)
    tensors = dict(_tensors(path, header, body))
    try:
        with safe_open(path, framework="numpy") as file:
            file.keys()
    except (SafetensorError, OSError, ValueError) as error:
        reason = shown(" ".join(str(error).split()))
        raise CheckpointError(f"{path}: is not a sound safetensors file ({reason})") from error
    return tensors


def _regular(path: Path) -> Path:
    try:
        if path.is_file():
            return path
        found = "is not a regular file" if path.exists() else "no such file"
    except OSError as error:
        found = f"cannot be opened ({error.strerror})"
    raise CheckpointError(f"{path}: {found}")


def _split(path: Path, data: NDArray[np.uint8]) -> tuple[dict[str, object], NDArray[np.uint8]]:
    """The header and the bytes after it."""
    if len(data) < _PREFIX.size:
        raise CheckpointError(
            f"{path}: {len(data)} bytes long, a safetensors file has 8 before its header"
        )
    (length,) = _PREFIX.unpack(data[: _PREFIX.size].tobytes())
    most = min(len(data) - _PREFIX.size, _LARGEST_HEADER)
    if length > most:
        raise CheckpointError(
            f"{path}: header length is {length} bytes, expected at most {most} in a file of "
            f"{len(data)}"
        )
    body = _PREFIX.size + length
    return parse_object(f"{path}: header", data[_PREFIX.size : body].tobytes()), data[body:]


def _tensors(
    path: Path, header: dict[str, object], body: NDArray[np.uint8]
) -> Iterator[tuple[str, StoredTensor]]:
    for name, line in header.items():
        if name == "__metadata__":
            continue
        if not isinstance(line, dict):
            raise CheckpointError(f"{path}: header of tensor {shown(name)} is no JSON object")
        entry = Fields(f"{path}: tensor {shown(name)}", line)
        start, end = _integers(entry, "data_offsets", pair=True)
        shape = _integers(entry, "shape")
        if start > end:
            entry.refuse("data_offsets", [start, end], "a start before its end")
        if end > len(body):
            raise CheckpointError(
                f"{entry.where} ends at byte {end} of the body, which has {len(body)}: the file "
                "is cut off; fetch it again"
            )
        yield name, StoredTensor(path, name, entry.text("dtype") or "", shape, body[start:end])


def _integers(entry: Fields, key: str, *, pair: bool = False) -> tuple[int, ...]:
    value = entry.values.get(key)
    if not isinstance(value, list) or not all(type(n) is int and 0 <= n < 2**63 for n in value):
        entry.refuse(key, value, "a list of integers from 0 up")
    if pair and len(value) != 2:
        entry.refuse(key, value, "a start and an end")
    return tuple(value)
