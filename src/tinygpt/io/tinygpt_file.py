"""Reads `.tinygpt` files, version 2, in their three body layouts, out of a memory map.

Bytes that are not wanted, the optimiser's, are never looked at. A Linear's `.weight` is stored
`[in, out]` under a shape that says `[out, in]`; it leaves here as `[out, in]`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from tinygpt.errors import CheckpointError, ConfigError, UnsupportedError
from tinygpt.io.checkpoint import PACKED, TensorInfo, float_dtype, map_file
from tinygpt.io.tinygpt_header import (
    Entry,
    Header,
    cache_hints,
    check_manifest,
    model_config,
    read_header,
)
from tinygpt.io.tokenizer_dir import load_tokenizer_dir
from tinygpt.models.config import ModelConfig
from tinygpt.tokenizer import ByteTokenizer, Tokenizer

_TABLES = ("token_embedding.weight", "position_embedding.weight")

Read = Callable[[], NDArray[np.floating]]


@dataclass(frozen=True, slots=True)
class Stored:
    """Where a tensor is: `read` gives its elements, flat, in the order of the file."""

    entry: Entry
    nbytes: int
    read: Read


@dataclass(frozen=True, slots=True)
class TinygptCheckpoint:
    """A checked `.tinygpt` file; see `tinygpt.io.checkpoint.Checkpoint`."""

    path: Path
    config: ModelConfig
    cache_hints: dict[str, int]
    tensors: tuple[TensorInfo, ...]
    metadata: dict[str, object]
    stored_dtype: str
    stored: tuple[Stored, ...]
    kind: str = "tinygpt"

    def read_weights(self, dtype: str) -> dict[str, mx.array]:
        if dtype == PACKED:
            raise ConfigError(
                f"weights dtype 'packed' needs a GGUF file with packed tensors, {self.path} is a "
                ".tinygpt file; use fp32, fp16 or bf16"
            )
        wanted = float_dtype(dtype)
        weights = {}
        for stored in self.stored:
            array = mx.array(_in_shape(stored)).astype(wanted)
            mx.eval(array)  # one tensor at a time, so that the peak stays near the final size
            weights[stored.entry.name] = array
        return weights

    def read_tokenizer(self, override_dir: Path | None = None) -> Tokenizer:
        vocab = self.config.vocab_size
        if override_dir is not None:
            return load_tokenizer_dir(override_dir, vocab)
        source = self.metadata.get("tokenizerSource")
        if isinstance(source, str):
            return self._tokenizer_beside(source)
        if self.metadata.get("tokenizer") is not None:
            raise UnsupportedError(
                f"{self.path}: a tokenizer inside the header is not supported yet; give the "
                "tokenizer's directory by --tokenizer DIR"
            )
        return ByteTokenizer(vocab)

    def _tokenizer_beside(self, source: str) -> Tokenizer:
        try:
            return load_tokenizer_dir(self.path.parent / source, self.config.vocab_size)
        except CheckpointError as error:
            raise CheckpointError(
                f"{error}; {self.path} names it as config tokenizerSource, give another directory "
                "by --tokenizer DIR"
            ) from error


def open_tinygpt(path: Path) -> TinygptCheckpoint:
    """Map and check a `.tinygpt` file without reading its weights.

    Raises:
        CheckpointError: anything in it that is not true, naming the field or tensor.
        UnsupportedError: version 1, or a kind of model that this version does not read.
    """
    data = map_file(path)
    header = read_header(path, data)
    config = model_config(path, header)
    check_manifest(path, header, config)
    dtype, stored = _locate(path, header, data)
    return TinygptCheckpoint(
        path=path,
        config=config,
        cache_hints=cache_hints(header.config_fields),
        tensors=tuple(TensorInfo(s.entry.name, s.entry.shape, dtype, s.nbytes) for s in stored),
        metadata=_metadata(header),
        stored_dtype="fp32" if dtype == "fp32" else "fp16",
        stored=stored,
    )


def _metadata(header: Header) -> dict[str, object]:
    values = {key: value for key, value in header.fields.values.items() if key != "manifest"}
    source = header.config_fields.text("tokenizerSource")
    return {**values, "tokenizerSource": source, "step": header.step}


def _locate(path: Path, header: Header, data: NDArray[np.uint8]) -> tuple[str, tuple[Stored, ...]]:
    dtype = header.fields.text("weightDtype") or "fp32"
    if dtype not in ("fp32", "fp16", "int4"):
        header.fields.refuse("weightDtype", dtype, "'fp32', 'fp16' or 'int4'")
    optimiser = header.fields.flag("includesOptimizerState", default=True)
    body = data[header.body :]
    if dtype == "int4":
        return "int4", _int4(path, header, body)
    if dtype == "fp16" or not optimiser:
        return "fp16", _fp16(path, header, body)
    return "fp32", _training(path, header, body)


def _training(path: Path, header: Header, body: NDArray[np.uint8]) -> tuple[Stored, ...]:
    """fp32 blocks: weight, Adam m, Adam v of each tensor in turn."""
    _check_body(path, body, 12 * sum(entry.size for entry in header.entries))
    stored, at = [], 0
    for entry in header.entries:
        stored.append(Stored(entry, 4 * entry.size, _reader(body, at, entry.size, "<f4")))
        at += 12 * entry.size
    return tuple(stored)


def _fp16(path: Path, header: Header, body: NDArray[np.uint8]) -> tuple[Stored, ...]:
    """One fp16 buffer; an offset that is not given continues the running sum."""
    placed, running = [], 0
    for entry in header.entries:
        start = running if entry.offset is None else entry.offset
        placed.append((start, entry))
        running += entry.size
    _check_overlap(path, placed)
    _check_body(path, body, 2 * max(start + entry.size for start, entry in placed))
    return tuple(
        Stored(entry, 2 * entry.size, _reader(body, 2 * start, entry.size, "<f2"))
        for start, entry in placed
    )


def _check_overlap(path: Path, placed: list[tuple[int, Entry]]) -> None:
    end, before = 0, ""
    for start, entry in sorted(placed, key=lambda pair: pair[0]):
        if start < end:
            raise CheckpointError(
                f"{path}: tensor {entry.name} starts at element {start}, inside tensor {before}, "
                f"which ends at {end}"
            )
        end, before = start + entry.size, entry.name


def _int4(path: Path, header: Header, body: NDArray[np.uint8]) -> tuple[Stored, ...]:
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
    _check_body(path, body, scale_bytes + packed_bytes)
    stored, first = [], 0
    for entry, count in zip(header.entries, blocks, strict=True):
        scales = _reader(body, 2 * first, count, "<f2")
        nibbles = body[scale_bytes + first * block // 2 :][: count * block // 2]
        nbytes = 2 * count + len(nibbles)
        stored.append(Stored(entry, nbytes, _int4_reader(scales, nibbles, entry.size)))
        first += count
    return tuple(stored)


def _check_body(path: Path, body: NDArray[np.uint8], expected: int) -> None:
    if len(body) != expected:
        raise CheckpointError(
            f"{path}: the body has {len(body)} bytes, the manifest calls for {expected}; the file "
            f"is {'cut off' if len(body) < expected else 'not in the layout its header claims'}"
        )


def _reader(body: NDArray[np.uint8], start: int, size: int, dtype: str) -> Read:
    raw = body[start : start + size * np.dtype(dtype).itemsize]
    return lambda: raw.view(dtype)


def _int4_reader(scales: Read, nibbles: NDArray[np.uint8], size: int) -> Read:
    """(nibble − 8) × scale of its block, low nibble first, as float32."""

    def read() -> NDArray[np.floating]:
        codes = np.stack([nibbles & 15, nibbles >> 4], axis=-1)
        by_block = scales().astype(np.float32)
        with np.errstate(invalid="ignore"):  # a scale that is not finite shows in the logits
            values = (codes.reshape(len(by_block), -1).astype(np.float32) - 8) * by_block[:, None]
        return values.reshape(-1)[:size]

    return read


def _in_shape(stored: Stored) -> NDArray[np.floating]:
    name, shape = stored.entry.name, stored.entry.shape
    flat = stored.read()
    is_linear = len(shape) == 2 and name.endswith(".weight") and name not in _TABLES
    return np.ascontiguousarray(flat.reshape(shape[::-1]).T) if is_linear else flat.reshape(shape)
