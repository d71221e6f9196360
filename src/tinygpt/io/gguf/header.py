"""Walks a GGUF header (versions 2 and 3) with bounded reads, before anything trusts it.

No count, length or offset is believed before the bytes it claims are known to be in the file.
Knows the container only; see `model` for what the keys mean.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from tinygpt.errors import CheckpointError, UnsupportedError
from tinygpt.io.checkpoint import shown
from tinygpt.io.gguf.types import TENSOR_TYPES, TensorType, type_name

MAGIC = b"GGUF"
_DEFAULT_ALIGNMENT = 32  # bytes
_LARGEST_ALIGNMENT = 2**16
_DEEPEST_ARRAY = 4
_MOST_DIMENSIONS = 4
_KEY_MINIMUM = 13  # bytes: a name's length, a value type, one byte of value
_TENSOR_MINIMUM = 32  # bytes: a name's length, rank, one extent, type, offset
_BOOL, _STRING, _ARRAY = 7, 8, 9
_SCALARS = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    _BOOL: "<u1",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """A tensor in the file: shape with the outermost extent first, bytes from the file's start."""

    name: str
    shape: tuple[int, ...]
    type: TensorType
    start: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """Metadata as Python and NumPy values, and the tensors by name, both in file order."""

    version: int
    metadata: dict[str, object]
    tensors: dict[str, GgufTensor]


@dataclass(slots=True)
class _Cursor:
    """Reads that cannot leave the file. `at` is bytes from its start."""

    path: Path
    data: NDArray[np.uint8]
    at: int = 0

    def take(self, nbytes: int, what: str) -> NDArray[np.uint8]:
        if nbytes > len(self.data) - self.at:
            self.refuse(
                f"{what} takes {shown(nbytes)} bytes at byte {self.at}, past the end of the file "
                f"at {len(self.data)}"
            )
        taken = self.data[self.at : self.at + nbytes]
        self.at += nbytes
        return taken

    def u32(self, what: str) -> int:
        return int.from_bytes(self.take(4, what).tobytes(), "little")

    def u64(self, what: str) -> int:
        return int.from_bytes(self.take(8, what).tobytes(), "little")

    def count(self, what: str, minimum: int) -> int:
        """A count of items of at least `minimum` bytes each, all of which the file can hold."""
        count, left = self.u64(what), len(self.data) - self.at
        if count * minimum > left:
            self.refuse(f"{what} is {count}, but only {left} bytes follow")
        return count

    def string(self, what: str) -> str:
        length = self.u64(f"the length of {what}")
        raw = self.take(length, what).tobytes()
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            self.refuse(f"{what} is not UTF-8: {shown(raw[:40])}")

    def refuse(self, message: str) -> NoReturn:
        raise CheckpointError(f"{self.path}: {message}")


def read_gguf_header(path: Path, data: NDArray[np.uint8]) -> GgufHeader:
    """The checked header of a mapped GGUF file.

    Raises:
        CheckpointError: anything in it that the file cannot hold or that contradicts itself.
        UnsupportedError: a version or a tensor type that this version does not read.
    """
    cursor = _Cursor(path, data)
    magic = cursor.take(4, "the magic").tobytes()
    if magic != MAGIC:
        cursor.refuse(f"starts with {magic!r}, a GGUF file with {MAGIC!r}")
    version = cursor.u32("the version")
    if version not in (2, 3):
        big_endian = int.from_bytes(version.to_bytes(4, "big"), "little") in (2, 3)
        found = "a big-endian file" if big_endian else f"version {version}"
        raise UnsupportedError(f"{path}: {found}, this reader knows little-endian GGUF 2 and 3")
    tensor_count = cursor.count("the tensor count", _TENSOR_MINIMUM)
    key_count = cursor.count("the key count", _KEY_MINIMUM)
    metadata = _read_metadata(cursor, key_count)
    claims = [_read_claim(cursor) for _ in range(tensor_count)]
    alignment = _alignment(cursor, metadata)
    start = -(-cursor.at // alignment) * alignment
    return GgufHeader(version, metadata, _place(cursor, claims, start, alignment))


def _read_metadata(cursor: _Cursor, count: int) -> dict[str, object]:
    metadata: dict[str, object] = {}
    for _ in range(count):
        key = cursor.string("a metadata key")
        if key in metadata:
            cursor.refuse(f"metadata key {shown(key)} occurs twice")
        what = f"metadata {shown(key)}"
        metadata[key] = _read_value(cursor, cursor.u32(what), what, 0)
    return metadata


def _read_value(cursor: _Cursor, kind: int, what: str, depth: int) -> object:
    if kind == _STRING:
        return cursor.string(what)
    if kind == _ARRAY:
        return _read_array(cursor, what, depth + 1)
    return _read_scalars(cursor, kind, 1, what)[0].item()


def _read_array(cursor: _Cursor, what: str, depth: int) -> object:
    """A NumPy array of numbers, or a list of strings or arrays."""
    if depth > _DEEPEST_ARRAY:
        cursor.refuse(f"{what} nests arrays more than {_DEEPEST_ARRAY} deep")
    kind = cursor.u32(what)
    minimum = {_STRING: 8, _ARRAY: 12}.get(kind, 1)
    count = cursor.count(f"the number of items of {what}", minimum)
    if kind in (_STRING, _ARRAY):
        return [_read_value(cursor, kind, what, depth) for _ in range(count)]
    return _read_scalars(cursor, kind, count, what)


def _read_scalars(cursor: _Cursor, kind: int, count: int, what: str) -> NDArray[np.generic]:
    if kind not in _SCALARS:
        cursor.refuse(f"{what} has value type {kind}, the format has 0 to 12")
    dtype = np.dtype(_SCALARS[kind])
    values = np.frombuffer(cursor.take(count * dtype.itemsize, what).tobytes(), dtype)
    if kind != _BOOL:
        return values
    if values.size and values.max() > 1:
        cursor.refuse(f"{what} is a boolean with value {values.max()}, expected 0 or 1")
    return values.astype(np.bool_)


@dataclass(frozen=True, slots=True)
class _Claim:
    """What the header says of a tensor, before it is known to be in the file."""

    name: str
    shape: tuple[int, ...]
    type: TensorType
    offset: int


def _read_claim(cursor: _Cursor) -> _Claim:
    name = cursor.string("a tensor's name")
    what = f"tensor {shown(name)}"
    rank = cursor.u32(what)
    if not 1 <= rank <= _MOST_DIMENSIONS:
        cursor.refuse(f"{what} has {rank} dimensions, expected 1 to {_MOST_DIMENSIONS}")
    extents = struct.unpack(f"<{rank}Q", cursor.take(8 * rank, what).tobytes())
    if 0 in extents:
        cursor.refuse(f"{what} has shape {list(extents)}, every extent must be at least 1")
    number = cursor.u32(what)
    if number not in TENSOR_TYPES:
        known = ", ".join(kind.name for kind in TENSOR_TYPES.values())
        raise UnsupportedError(
            f"{cursor.path}: {what} is of type {type_name(number)}, this version reads {known}"
        )
    return _Claim(name, extents[::-1], TENSOR_TYPES[number], cursor.u64(what))


def _alignment(cursor: _Cursor, metadata: dict[str, object]) -> int:
    value = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if type(value) is not int or not 8 <= value <= _LARGEST_ALIGNMENT or value & (value - 1):
        cursor.refuse(
            f"general.alignment is {shown(value)}, expected a power of two from 8 to "
            f"{_LARGEST_ALIGNMENT}"
        )
    return value


def _place(
    cursor: _Cursor, claims: list[_Claim], start: int, alignment: int
) -> dict[str, GgufTensor]:
    tensors: dict[str, GgufTensor] = {}
    for claim in claims:
        if claim.name in tensors:
            cursor.refuse(f"tensor {shown(claim.name)} occurs twice")
        tensors[claim.name] = _placed(cursor, claim, start, alignment)
    end, before = 0, ""
    for tensor in sorted(tensors.values(), key=lambda tensor: tensor.start):
        if tensor.start < end:
            cursor.refuse(
                f"tensor {shown(tensor.name)} starts at byte {tensor.start}, inside tensor "
                f"{shown(before)}, which ends at {end}"
            )
        end, before = tensor.start + tensor.nbytes, tensor.name
    return tensors


def _placed(cursor: _Cursor, claim: _Claim, start: int, alignment: int) -> GgufTensor:
    what, kind, row = f"tensor {shown(claim.name)}", claim.type, claim.shape[-1]
    if row % kind.block:
        cursor.refuse(f"{what} has rows of {row}, {kind.name} needs a multiple of {kind.block}")
    nbytes = row // kind.block * kind.block_bytes
    for extent in claim.shape[:-1]:
        nbytes *= extent
    if claim.offset % alignment:
        cursor.refuse(f"{what} has offset {claim.offset}, not a multiple of {alignment}")
    first = start + claim.offset
    if first + nbytes > len(cursor.data):
        cursor.refuse(
            f"{what} of shape {list(claim.shape)} ends at byte {first + nbytes}, past the end of "
            f"the file at {len(cursor.data)}"
        )
    return GgufTensor(claim.name, claim.shape, kind, first, nbytes)
