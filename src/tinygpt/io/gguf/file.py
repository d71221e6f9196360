"""GGUF files: a checked header, and the weights under our names, un-permuted and un-fused."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from tinygpt.errors import ConfigError
from tinygpt.io.checkpoint import (
    PACKED,
    TensorInfo,
    float_dtype,
    map_file,
)
from tinygpt.io.gguf.blocks import float_tensor, packed_tensor
from tinygpt.io.gguf.header import read_gguf_header
from tinygpt.io.gguf.model import model_config
from tinygpt.io.gguf.names import Part, named_parts, row_order
from tinygpt.io.gguf.tokenizer import read_gguf_tokenizer
from tinygpt.io.gguf.types import BF16, F16, F32
from tinygpt.io.tokenizer_dir import load_tokenizer_dir
from tinygpt.models.config import ModelConfig
from tinygpt.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class GgufCheckpoint:
    """A checked GGUF file; see `tinygpt.io.checkpoint.Checkpoint`."""

    path: Path
    config: ModelConfig
    tensors: tuple[TensorInfo, ...]
    metadata: dict[str, object]
    stored_dtype: str
    stored: dict[str, Part]  # by canonical name
    data: NDArray[np.uint8]
    cache_hints: dict[str, int] = field(default_factory=dict)
    kind: str = "gguf"

    def iter_weights(self, dtype: str) -> Iterator[dict[str, mx.array]]:
        if dtype == PACKED:
            self._check_packable()
        wanted = None if dtype == PACKED else float_dtype(dtype)
        for name, part in self.stored.items():
            arrays = self._read(name, part, wanted)
            mx.eval(arrays)  # one tensor at a time, so that the peak stays near the final size
            yield arrays

    def read_tokenizer(self, override_dir: Path | None = None) -> Tokenizer:
        if override_dir is not None:
            return load_tokenizer_dir(override_dir, self.config.vocab_size)
        return read_gguf_tokenizer(self.path, self.metadata, self.config.vocab_size)

    def _check_packable(self) -> None:
        if self.stored_dtype == PACKED:
            return
        types = (part.tensor.type for part in self.stored.values())
        found = sorted({kind.name for kind in types if kind.quantised and kind.bits is None})
        holds = f"{', '.join(found)}, which MLX cannot hold packed" if found else self.stored_dtype
        raise ConfigError(
            f"weights dtype 'packed' needs a file of Q4_0, Q4_1 and Q8_0, {self.path} has {holds}; "
            "use fp32, fp16 or bf16"
        )

    def _read(self, name: str, part: Part, wanted: mx.Dtype | None) -> dict[str, mx.array]:
        rows, kind = part.read(self.data), part.tensor.type
        order = row_order(name, part.rows, self.config)
        rows = rows if order is None else rows[order]
        if wanted is not None or not kind.quantised:
            return {name: float_tensor(rows, kind, part.shape, wanted)}
        base = name.removesuffix("weight")
        return {f"{base}{field}": array for field, array in packed_tensor(rows, kind).items()}


def open_gguf(path: Path) -> GgufCheckpoint:
    """Map and check a GGUF file without reading its weights.

    Raises:
        CheckpointError: anything in it that is not true, naming the key or tensor.
        UnsupportedError: a model or a tensor type that this version does not read.
    """
    data = map_file(path)
    header = read_gguf_header(path, data)
    config = model_config(path, header, data)
    stored = named_parts(path, header, config)
    infos = (
        TensorInfo(n, p.shape, p.tensor.type.name.lower(), p.nbytes) for n, p in stored.items()
    )
    return GgufCheckpoint(
        path=path,
        config=config,
        tensors=tuple(infos),
        metadata=header.metadata,
        stored_dtype=_stored_dtype(stored.values(), config),
        stored=stored,
        data=data,
    )


def _stored_dtype(parts: Iterable[Part], config: ModelConfig) -> str:
    """What the matrices are: packed where MLX holds all of them so, else a float type.

    Gemma's residual stream leaves the range of fp16, so its quantised files count as bf16.
    """
    types = {part.tensor.type for part in parts if len(part.shape) == 2}
    quantised = {kind for kind in types if kind.quantised}
    if quantised:
        if all(kind.bits is not None for kind in quantised):
            return PACKED
        return "bf16" if config.architecture.startswith("gemma") else "fp16"
    if F32 in types or types == {F16, BF16}:
        return "fp32"
    return "bf16" if BF16 in types else "fp16"
