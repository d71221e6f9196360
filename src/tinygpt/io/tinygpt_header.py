"""The header of a `.tinygpt` file: 16 bytes, JSON, and the model configuration in it.

Nothing here is allocated from a size that the file claims; see `tinygpt_file` for the body.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tinygpt.errors import CheckpointError, UnsupportedError
from tinygpt.io.checkpoint import check_names, checked_config, shown
from tinygpt.io.json_fields import Fields, parse_object
from tinygpt.models.config import ModelConfig

MAGIC = b"TGPT"
LARGEST_HEADER = 128 * 2**20  # bytes; real ones, loss history included, are some megabytes at most
_PREFIX = struct.Struct("<4sII")
_STEP = struct.Struct("<i")
_UNSUPPORTED_FLAGS = {
    "useMoD": "mixture of depths",
    "useDifferentialAttention": "differential attention",
    "useYOCO": "YOCO layers",
}
_EXTENSIONS = (
    "kvHeads",
    "headDim",
    "rope",
    "norm",
    "normEps",
    "mlp",
    "attnBias",
    "mlpBias",
    "tieEmbeddings",
)
_TENSORS_PER_LAYER = 16


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the manifest. `offset` counts elements, None where the file gives none."""

    name: str
    shape: tuple[int, ...]
    offset: int | None

    @property
    def size(self) -> int:
        size = 1
        for extent in self.shape:
            size *= extent
        return size


@dataclass(frozen=True, slots=True)
class Header:
    """A checked header. `body` is where the body starts, bytes from the start of the file."""

    fields: Fields
    config_fields: Fields
    entries: tuple[Entry, ...]
    step: int
    body: int


def read_header(path: Path, data: NDArray[np.uint8]) -> Header:
    """The header of a mapped `.tinygpt` file.

    Raises:
        CheckpointError: it is cut off, not JSON, or has fields of the wrong kind.
        UnsupportedError: version 1, or one newer than 2.
    """
    if len(data) < _PREFIX.size + _STEP.size:
        raise CheckpointError(
            f"{path}: {len(data)} bytes long, a .tinygpt file has at least 16 before its body"
        )
    magic, version, length = _PREFIX.unpack(data[: _PREFIX.size].tobytes())
    if magic != MAGIC:
        raise CheckpointError(f"{path}: starts with {magic!r}, a .tinygpt file with {MAGIC!r}")
    _check_version(path, version)
    body = _PREFIX.size + length + _STEP.size
    if body > len(data) or length > LARGEST_HEADER:
        raise CheckpointError(
            f"{path}: header length is {length} bytes, expected at most "
            f"{min(LARGEST_HEADER, len(data) - 16)} in a file of {len(data)}"
        )
    text = data[_PREFIX.size : body - _STEP.size].tobytes()
    fields = Fields(f"{path}: header", parse_object(f"{path}: header", text))
    (step,) = _STEP.unpack(data[body - _STEP.size : body].tobytes())
    config = fields.values.get("config")
    if not isinstance(config, dict):
        fields.refuse("config", config, "an object")
    return Header(fields, Fields(f"{path}: config", config), _manifest(fields), step, body)


def _check_version(path: Path, version: int) -> None:
    if version == 1:
        raise UnsupportedError(
            f"{path}: version 1 has no manifest and cannot be read; export the model again with a "
            "current trainer, which writes version 2"
        )
    if version != 2:
        raise UnsupportedError(f"{path}: version {version} of the format, this reader knows 2")


def _manifest(fields: Fields) -> tuple[Entry, ...]:
    lines = fields.values.get("manifest")
    if not isinstance(lines, list) or not lines:
        fields.refuse("manifest", lines, "a list of tensors")
    entries = tuple(_entry(fields, i, line) for i, line in enumerate(lines))
    seen: set[str] = set()
    for entry in entries:
        if entry.name in seen:
            fields.refuse("manifest", f"naming tensor {entry.name} twice", "every name once")
        seen.add(entry.name)
    return entries


def _entry(fields: Fields, index: int, line: object) -> Entry:
    if not isinstance(line, dict):
        fields.refuse(f"manifest[{index}]", line, "an object with name and shape")
    entry = Fields(f"{fields.where} manifest[{index}]", line)
    name, shape = entry.text("name"), line.get("shape")
    if not name:
        entry.refuse("name", name, "a tensor's name")
    if not isinstance(shape, list) or not all(type(n) is int and 0 < n < 2**31 for n in shape):
        entry.refuse(f"shape of {shown(name)}", shape, "a list of positive integers")
    offset = line.get("floatOffset")
    if offset is not None and (type(offset) is not int or not 0 <= offset < 2**63):
        entry.refuse(f"floatOffset of {shown(name)}", offset, "an integer from 0 up")
    return Entry(name, tuple(shape), offset)


def model_config(path: Path, header: Header) -> ModelConfig:
    """The configuration, with the manifest's names and shapes checked against it.

    Raises:
        CheckpointError: a field that is wrong, or that the manifest contradicts.
        UnsupportedError: a kind of model that this version does not read, by its name.
    """
    fields = header.config_fields
    _refuse_unsupported(path, fields)
    dim, heads = fields.integer("dModel", 256), fields.integer("heads", 8)
    if dim % heads:
        fields.refuse("heads", heads, f"a divisor of dModel {dim}")
    return checked_config(
        path,
        architecture="tinygpt",
        vocab_size=fields.integer("vocabSize", 256),
        layers=fields.integer("layers", 12),
        model_dim=dim,
        mlp_dim=fields.integer("dMlp", 1024),
        heads=heads,
        kv_heads=heads,
        head_dim=dim // heads,
        context=fields.integer("ctx", 256),
        sliding_window=_sliding_window(fields),
        deepnorm=fields.flag("useDeepNorm"),
        embedding_norm=fields.flag("useEmbeddingRMSNorm"),
        tie_embeddings=all(entry.name != "lm_head.weight" for entry in header.entries),
    )


def _refuse_unsupported(path: Path, fields: Fields) -> None:
    architecture = fields.text("architecture") or "tinygpt"
    if architecture != "tinygpt":
        raise UnsupportedError(
            f"{path}: config architecture is {shown(architecture)}, this version reads 'tinygpt'"
        )
    if fields.integer("nExperts", 1) > 1:
        raise UnsupportedError(f"{path}: mixture of experts (config nExperts) is not supported yet")
    for key, name in _UNSUPPORTED_FLAGS.items():
        if fields.flag(key):
            raise UnsupportedError(f"{path}: {name} (config {key}) is not supported yet")
    for key in _EXTENSIONS:
        if fields.values.get(key) is not None:
            raise UnsupportedError(f"{path}: config {key} is not supported yet in a .tinygpt file")


def _sliding_window(fields: Fields) -> int | None:
    value = fields.values.get("slidingWindow")
    if value is None or value is False or (type(value) is int and value == 0):
        return None
    return fields.integer("slidingWindow")


def cache_hints(fields: Fields) -> dict[str, int]:
    """The cache settings that the file recommends, those it gives."""
    hints = {}
    for key in ("kviBits", "streamingSink", "streamingWindow"):
        value = fields.optional_integer(key)
        if value is not None:
            hints[key] = value
    if hints.get("kviBits", 8) not in (4, 8):
        fields.refuse("kviBits", hints["kviBits"], "4 or 8")
    return hints


def check_manifest(path: Path, header: Header, config: ModelConfig) -> None:
    """Refuse a manifest whose names or shapes are not those of the configuration's model."""
    if config.layers * _TENSORS_PER_LAYER > len(header.entries):
        header.config_fields.refuse(
            "layers", config.layers, f"what a manifest of {len(header.entries)} tensors can hold"
        )
    expected = dict(_expected_tensors(config))
    check_names(path, {entry.name for entry in header.entries}, set(expected))
    for entry in header.entries:
        if entry.shape != expected[entry.name]:
            raise CheckpointError(
                f"{path}: tensor {entry.name} has shape {shown(list(entry.shape))}, "
                f"the configuration makes it {list(expected[entry.name])}"
            )


def _expected_tensors(config: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    dim, hidden = config.model_dim, config.mlp_dim
    yield "token_embedding.weight", (config.vocab_size, dim)
    yield "position_embedding.weight", (config.context, dim)
    if config.embedding_norm:
        yield "embed_norm.weight", (dim,)
    if not config.tie_embeddings:
        yield "lm_head.weight", (config.vocab_size, dim)
    yield from _pair("ln_final", (dim,), dim)
    for i in range(config.layers):
        block = f"blocks.{i}"
        for norm in ("ln1", "ln2"):
            yield from _pair(f"{block}.{norm}", (dim,), dim)
        for part in "qkvo":
            yield from _pair(f"{block}.attn.{part}_proj", (dim, dim), dim)
        yield from _pair(f"{block}.mlp.fc_in", (hidden, dim), hidden)
        yield from _pair(f"{block}.mlp.fc_out", (dim, hidden), dim)


def _pair(name: str, weight: tuple[int, ...], bias: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{name}.weight", weight
    yield f"{name}.bias", (bias,)
