"""GGUF files of the `llama` architecture: what the keys mean, and the weights under our names.

llama.cpp's converter permutes the rows of attn_q and attn_k so that rotary pairs are neighbours;
that is undone here, and the model rotates halves.
"""

from __future__ import annotations

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
from tinygpt.io.gguf_blocks import BF16, F16, F32, float_tensor, packed_tensor
from tinygpt.io.gguf_header import GgufTensor, read_gguf_header
from tinygpt.io.gguf_llama import canonical_name, check_tensors, llama_config
from tinygpt.io.gguf_tokenizer import read_gguf_tokenizer
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
    stored: dict[str, GgufTensor]  # by canonical name
    data: NDArray[np.uint8]
    cache_hints: dict[str, int] = field(default_factory=dict)
    kind: str = "gguf"

    def read_weights(self, dtype: str) -> dict[str, mx.array]:
        if dtype == PACKED and self.stored_dtype != PACKED:
            raise ConfigError(
                f"weights dtype 'packed' needs a file with packed tensors, {self.path} has "
                f"{self.stored_dtype}; use fp32, fp16 or bf16"
            )
        wanted = None if dtype == PACKED else float_dtype(dtype)
        weights: dict[str, mx.array] = {}
        for name, tensor in self.stored.items():
            arrays = self._read(name, tensor, wanted)
            mx.eval(arrays)  # one tensor at a time, so that the peak stays near the final size
            weights |= arrays
        return weights

    def read_tokenizer(self, override_dir: Path | None = None) -> Tokenizer:
        if override_dir is not None:
            return load_tokenizer_dir(override_dir, self.config.vocab_size)
        return read_gguf_tokenizer(self.path, self.metadata, self.config.vocab_size)

    def _read(self, name: str, tensor: GgufTensor, wanted: mx.Dtype | None) -> dict[str, mx.array]:
        raw = self.data[tensor.start : tensor.start + tensor.nbytes]
        rows = _row_order(name, tensor.shape[0], self.config)
        if tensor.type.bits is None:
            array = float_tensor(raw, tensor.type, tensor.shape)
            array = array if rows is None else array[mx.array(rows)]
            return {name: array if wanted is None else array.astype(wanted)}
        packed = packed_tensor(raw, tensor.type, tensor.shape, rows)
        if wanted is not None:
            return {name: packed.dequantise(wanted)}
        base = name.removesuffix(".weight")
        return {
            name: packed.weight,
            f"{base}.scales": packed.scales,
            f"{base}.biases": packed.biases,
        }


def open_gguf(path: Path) -> GgufCheckpoint:
    """Map and check a GGUF file without reading its weights.

    Raises:
        CheckpointError: anything in it that is not true, naming the key or tensor.
        UnsupportedError: a model or a tensor type that this version does not read.
    """
    data = map_file(path)
    header = read_gguf_header(path, data)
    config = llama_config(path, header)
    stored = {canonical_name(name): tensor for name, tensor in header.tensors.items()}
    check_tensors(path, stored, config)
    infos = (TensorInfo(n, t.shape, t.type.name.lower(), t.nbytes) for n, t in stored.items())
    return GgufCheckpoint(
        path=path,
        config=config,
        tensors=tuple(infos),
        metadata=header.metadata,
        stored_dtype=_stored_dtype(stored),
        stored=stored,
        data=data,
    )


def _row_order(name: str, rows: int, config: ModelConfig) -> NDArray[np.intp] | None:
    """Which stored row comes where, for the permuted projections; None for all others."""
    if not (".q_proj." in name or ".k_proj." in name):
        return None
    half = config.head_dim // 2
    stored = np.arange(rows, dtype=np.intp).reshape(-1, half, 2)
    order: NDArray[np.intp] = stored.swapaxes(1, 2).reshape(-1)
    return order


def _stored_dtype(stored: dict[str, GgufTensor]) -> str:
    """What the matrices are: packed if any is, else the widest float type among them."""
    types = {tensor.type for tensor in stored.values() if len(tensor.shape) == 2}
    if any(kind.bits is not None for kind in types):
        return PACKED
    if F32 in types or types == {F16, BF16}:
        return "fp32"
    return "bf16" if BF16 in types else "fp16"
