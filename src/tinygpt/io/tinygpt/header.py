"""The header of a `.tinygpt` file: 16 bytes, JSON, and the manifest in it.

Nothing here is allocated from a size that the file claims; see `body` for the rest.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tinygpt.errors import CheckpointError, UnsupportedError
from tinygpt.io.checkpoint import check_names, shown
from tinygpt.io.json_fields import Fields, parse_object
from tinygpt.io.tinygpt.config import config_from_json
from tinygpt.models.config import ModelConfig
from tinygpt.models.tensors import tensor_shapes

MAGIC = b"TGPT"
VERSION_2, VERSION_3 = 2, 3
LARGEST_HEADER = 128 * 2**20  # bytes; real ones, loss history included, are some megabytes at most
PREFIX = struct.Struct("<4sII")
STEP = struct.Struct("<i")


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the manifest.

    `offset` counts elements, `byte_offset` bytes; None where the file gives none. `dtype`, `bits`
    and `group` are of version 3: the float type of a tensor, or of its scales where it is packed.
    """

    name: str
    shape: tuple[int, ...]
    offset: int | None
    byte_offset: int | None = None
    dtype: str | None = None
    bits: int | None = None
    group: int | None = None

    @property
    def size(self) -> int:
        size = 1
        for extent in self.shape:
            size *= extent
        return size


@dataclass(frozen=True, slots=True)
class Header:
    """A checked header. `body` is where the body starts, bytes from the start of the file."""

    version: int
    fields: Fields
    config_fields: Fields
    entries: tuple[Entry, ...]
    step: int
    body: int


def read_header(path: Path, data: NDArray[np.uint8]) -> Header:
    """The header of a mapped `.tinygpt` file.

    Raises:
        CheckpointError: it is cut off, not JSON, or has fields of the wrong kind.
        UnsupportedError: version 1, or one newer than 3.
    """
    if len(data) < PREFIX.size + STEP.size:
        raise CheckpointError(
            f"{path}: {len(data)} bytes long, a .tinygpt file has at least 16 before its body"
        )
    magic, version, length = PREFIX.unpack(data[: PREFIX.size].tobytes())
    if magic != MAGIC:
        raise CheckpointError(f"{path}: starts with {magic!r}, a .tinygpt file with {MAGIC!r}")
    _check_version(path, version)
    body = PREFIX.size + length + STEP.size
    if body > len(data) or length > LARGEST_HEADER:
        raise CheckpointError(
            f"{path}: header length is {length} bytes, expected at most "
            f"{min(LARGEST_HEADER, len(data) - 16)} in a file of {len(data)}"
        )
    text = data[PREFIX.size : body - STEP.size].tobytes()
    fields = Fields(f"{path}: header", parse_object(f"{path}: header", text))
    (step,) = STEP.unpack(data[body - STEP.size : body].tobytes())
    config = fields.values.get("config")
    if not isinstance(config, dict):
        fields.refuse("config", config, "an object")
    config_fields = Fields(f"{path}: config", config)
    return Header(version, fields, config_fields, _manifest(fields, version), step, body)


def _check_version(path: Path, version: int) -> None:
    if version == 1:
        raise UnsupportedError(
            f"{path}: version 1 has no manifest and cannot be read; export the model again with a "
            "current trainer, which writes version 2"
        )
    if version not in (VERSION_2, VERSION_3):
        raise UnsupportedError(
            f"{path}: version {version} of the format, this reader knows 2 and 3"
        )


def _manifest(fields: Fields, version: int) -> tuple[Entry, ...]:
    lines = fields.values.get("manifest")
    if not isinstance(lines, list) or not lines:
        fields.refuse("manifest", lines, "a list of tensors")
    entries = tuple(_entry(fields, version, i, line) for i, line in enumerate(lines))
    seen: set[str] = set()
    for entry in entries:
        if entry.name in seen:
            fields.refuse("manifest", f"naming tensor {entry.name} twice", "every name once")
        seen.add(entry.name)
    return entries


def _entry(fields: Fields, version: int, index: int, line: object) -> Entry:
    if not isinstance(line, dict):
        fields.refuse(f"manifest[{index}]", line, "an object with name and shape")
    entry = Fields(f"{fields.where} manifest[{index}]", line)
    name, shape = entry.text("name"), line.get("shape")
    if not name:
        entry.refuse("name", name, "a tensor's name")
    if not isinstance(shape, list) or not all(type(n) is int and 0 < n < 2**31 for n in shape):
        entry.refuse(f"shape of {shown(name)}", shape, "a list of positive integers")
    start, byte_start = (_offset(entry, key, name) for key in ("floatOffset", "byteOffset"))
    if version == VERSION_2:
        return Entry(name, tuple(shape), start)
    bits, group = (entry.optional_integer(key, low=1) for key in ("bits", "group"))
    return Entry(name, tuple(shape), start, byte_start, entry.text("dtype"), bits, group)


def _offset(entry: Fields, key: str, name: str) -> int | None:
    offset = entry.values.get(key)
    if offset is not None and (type(offset) is not int or not 0 <= offset < 2**63):
        entry.refuse(f"{key} of {shown(name)}", offset, "an integer from 0 up")
    return offset


def model_config(path: Path, header: Header) -> ModelConfig:
    """The configuration that the header describes.

    Raises:
        CheckpointError: a field that is wrong.
        UnsupportedError: a kind of model that this version does not read, by its name.
    """
    untied = any(entry.name == "lm_head.weight" for entry in header.entries)
    return config_from_json(path, header.config_fields, untied)


def check_manifest(path: Path, header: Header, config: ModelConfig) -> None:
    """Refuse a manifest whose names or shapes are not those of the configuration's model."""
    last = f"blocks.{config.layers - 1}."
    if config.layers > len(header.entries) or not any(
        entry.name.startswith(last) for entry in header.entries
    ):
        header.config_fields.refuse(
            "layers", config.layers, f"what a manifest of {len(header.entries)} tensors can hold"
        )
    expected = dict(tensor_shapes(config))
    check_names(path, {entry.name for entry in header.entries}, set(expected))
    for entry in header.entries:
        if entry.shape != expected[entry.name]:
            raise CheckpointError(
                f"{path}: tensor {entry.name} has shape {shown(list(entry.shape))}, "
                f"the configuration makes it {list(expected[entry.name])}"
            )
