"""GGUF tensors under our names; a fused tensor is several of ours, each a range of its rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tinygpt.errors import CheckpointError
from tinygpt.io.checkpoint import check_names
from tinygpt.io.gguf.header import GgufHeader, GgufTensor
from tinygpt.io.gguf.rope import ROPE_TENSORS
from tinygpt.models.config import ModelConfig
from tinygpt.models.tensors import layer_shapes, tensor_shapes

_GLOBAL_NAMES = {
    "token_embd": "token_embedding",
    "output_norm": "ln_final",
    "output": "lm_head",
}
_BLOCK_NAMES = {
    "attn_norm": "ln1",
    "attn_q": "attn.q_proj",
    "attn_k": "attn.k_proj",
    "attn_v": "attn.v_proj",
    "attn_q_norm": "attn.q_norm",
    "attn_k_norm": "attn.k_norm",
    "attn_output": "attn.o_proj",
    "post_attention_norm": "ln1_post",
    "ffn_norm": "ln2",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "post_ffw_norm": "ln2_post",
}
_PERMUTED = ("llama",)  # architectures whose q and k the converter reorders


@dataclass(frozen=True, slots=True)
class Part:
    """Rows `first` … `first + rows − 1` of a tensor; a vector's elements are its rows."""

    tensor: GgufTensor
    first: int
    rows: int

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.rows, *self.tensor.shape[1:])

    @property
    def nbytes(self) -> int:
        return self.tensor.nbytes // self.tensor.shape[0] * self.rows

    def read(self, data: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """The bytes, `[rows, bytes a row]`, in the file's order of rows."""
        start, row = self.tensor.start, self.tensor.nbytes // self.tensor.shape[0]
        return data[start + self.first * row :][: self.nbytes].reshape(self.rows, row)


def named_parts(path: Path, header: GgufHeader, config: ModelConfig) -> dict[str, Part]:
    """The model's tensors by our names, checked against the configuration.

    Raises:
        CheckpointError: a tensor that is missing, has no place, or has another shape.
    """
    stored: dict[str, Part] = {}
    for tensor in header.tensors.values():
        if tensor.name not in ROPE_TENSORS:
            stored |= _parts(tensor, config)
    _check(path, stored, config)
    return stored


def row_order(name: str, rows: int, config: ModelConfig) -> NDArray[np.intp] | None:
    """Which stored row comes where, for the permuted projections; None for all others.

    The converter puts rotary pairs side by side, and the model rotates halves.
    """
    is_qk = ".q_proj." in name or ".k_proj." in name
    if not is_qk or config.architecture not in _PERMUTED:
        return None
    stored = np.arange(rows, dtype=np.intp).reshape(-1, config.head_dim // 2, 2)
    order: NDArray[np.intp] = stored.swapaxes(1, 2).reshape(-1)
    return order


def _parts(tensor: GgufTensor, config: ModelConfig) -> Iterator[tuple[str, Part]]:
    """A tensor's names and rows; one that we do not know keeps its name, and is refused later."""
    stem, _, suffix = tensor.name.rpartition(".")
    block = stem.split(".")
    if len(block) != 3 or block[0] != "blk":
        name = f"{_GLOBAL_NAMES[stem]}.{suffix}" if stem in _GLOBAL_NAMES else tensor.name
        yield name, Part(tensor, 0, tensor.shape[0])
        return
    first = 0
    for name, rows in _pieces(block[2], tensor, config):
        yield f"blocks.{block[1]}.{name}.{suffix}", Part(tensor, first, rows)
        first += rows


def _pieces(name: str, tensor: GgufTensor, config: ModelConfig) -> list[tuple[str, int]]:
    """What is stacked in one tensor: our names and their rows."""
    rows = tensor.shape[0]
    if config.architecture == "phi3":
        queries, keys = (n * config.head_dim for n in (config.heads, config.kv_heads))
        if name == "attn_qkv" and rows == queries + 2 * keys:
            return [("attn.q_proj", queries), ("attn.k_proj", keys), ("attn.v_proj", keys)]
        if name == "ffn_up" and rows == 2 * config.mlp_dim:
            return [("mlp.gate_proj", config.mlp_dim), ("mlp.up_proj", config.mlp_dim)]
    return [(_BLOCK_NAMES.get(name, name), rows)]


def _check(path: Path, stored: Mapping[str, Part], config: ModelConfig) -> None:
    if config.layers * len(list(layer_shapes(config))) > len(stored):
        raise CheckpointError(
            f"{path}: {config.architecture}.block_count is {config.layers}, more than the file's "
            f"{len(stored)} tensors can make"
        )
    expected = dict(tensor_shapes(config))
    check_names(path, set(stored), set(expected))
    for name, part in stored.items():
        tensor = part.tensor
        if part.shape != expected[name]:
            raise CheckpointError(
                f"{path}: tensor {tensor.name} has shape {list(tensor.shape)}, the metadata makes "
                f"{name} {list(expected[name])}"
            )
        if len(tensor.shape) == 1 and tensor.type.quantised:
            raise CheckpointError(f"{path}: tensor {tensor.name} is {tensor.type.name}, not floats")
