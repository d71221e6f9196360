"""What the keys and tensors of a `llama` GGUF file mean: its configuration and our tensor names."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from tinygpt.errors import CheckpointError, UnsupportedError
from tinygpt.io.checkpoint import check_names, checked_config, shown
from tinygpt.io.gguf_header import GgufHeader, GgufTensor
from tinygpt.models.config import ModelConfig
from tinygpt.ops.rope import RopeConfig

ARCHITECTURE = "llama"
_LARGEST = 2**31 - 1
_TENSORS_PER_LAYER = 9
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
    "attn_output": "attn.o_proj",
    "ffn_norm": "ln2",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def llama_config(path: Path, header: GgufHeader) -> ModelConfig:
    """The configuration that a GGUF header describes.

    Raises:
        CheckpointError: a key that is missing, of the wrong type, or contradicts a tensor.
        UnsupportedError: a kind of model that this version does not read, by its name.
    """
    keys = _Keys(path, header.metadata)
    _refuse_unsupported(keys, header)
    return _model_config(keys, header)


def canonical_name(name: str) -> str:
    """Our name of a tensor; a name that we do not know stays as it is, and is refused later."""
    stem, _, suffix = name.rpartition(".")
    if stem in _GLOBAL_NAMES:
        return f"{_GLOBAL_NAMES[stem]}.{suffix}"
    parts = stem.split(".")
    if len(parts) == 3 and parts[0] == "blk" and parts[2] in _BLOCK_NAMES:
        return f"blocks.{parts[1]}.{_BLOCK_NAMES[parts[2]]}.{suffix}"
    return name


def check_tensors(path: Path, stored: Mapping[str, GgufTensor], config: ModelConfig) -> None:
    """Refuse tensors, by canonical name, that are not those of the configuration's model."""
    if config.layers * _TENSORS_PER_LAYER > len(stored):
        raise CheckpointError(
            f"{path}: {ARCHITECTURE}.block_count is {config.layers}, more than the file's "
            f"{len(stored)} tensors can make"
        )
    expected = dict(_expected_tensors(config))
    check_names(path, set(stored), set(expected))
    for name, tensor in stored.items():
        if tensor.shape != expected[name]:
            raise CheckpointError(
                f"{path}: tensor {tensor.name} has shape {list(tensor.shape)}, the metadata makes "
                f"it {list(expected[name])}"
            )
        if len(tensor.shape) == 1 and tensor.type.bits is not None:
            raise CheckpointError(f"{path}: tensor {tensor.name} is {tensor.type.name}, not floats")


def _expected_tensors(config: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    dim, hidden, head_dim = config.model_dim, config.mlp_dim, config.head_dim
    queries, keys = config.heads * head_dim, config.kv_heads * head_dim
    yield "token_embedding.weight", (config.vocab_size, dim)
    yield "ln_final.weight", (dim,)
    if not config.tie_embeddings:
        yield "lm_head.weight", (config.vocab_size, dim)
    attention = {"q": (queries, dim), "k": (keys, dim), "v": (keys, dim), "o": (dim, queries)}
    mlp = {"gate": (hidden, dim), "up": (hidden, dim), "down": (dim, hidden)}
    for i in range(config.layers):
        yield f"blocks.{i}.ln1.weight", (dim,)
        yield f"blocks.{i}.ln2.weight", (dim,)
        yield from _linears(f"blocks.{i}.attn", attention, config.attention_bias)
        yield from _linears(f"blocks.{i}.mlp", mlp, config.mlp_bias)


def _linears(
    part: str, shapes: dict[str, tuple[int, int]], bias: bool
) -> Iterator[tuple[str, tuple[int, ...]]]:
    for name, shape in shapes.items():
        yield f"{part}.{name}_proj.weight", shape
        if bias:
            yield f"{part}.{name}_proj.bias", shape[:1]


@dataclass(frozen=True, slots=True)
class _Keys:
    """Typed metadata of one architecture, e.g. "block_count" for "llama.block_count"."""

    path: Path
    metadata: dict[str, object]

    def integer(self, name: str, default: int | None = None, low: int = 1) -> int:
        value = self.metadata.get(f"{ARCHITECTURE}.{name}", default)
        if type(value) is not int or not low <= value <= _LARGEST:
            self.refuse(name, value, f"an integer from {low} to {_LARGEST}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        value = self.metadata.get(f"{ARCHITECTURE}.{name}", default)
        if type(value) is not float or not 0 < value < math.inf:
            self.refuse(name, value, "a positive floating-point number")
        return value

    def refuse(self, name: str, value: object, expected: str) -> NoReturn:
        found = "missing" if value is None else shown(value)
        raise CheckpointError(f"{self.path}: {ARCHITECTURE}.{name} is {found}, expected {expected}")


def _refuse_unsupported(keys: _Keys, header: GgufHeader) -> None:
    architecture = keys.metadata.get("general.architecture")
    if not isinstance(architecture, str):
        raise CheckpointError(f"{keys.path}: general.architecture is missing or not a string")
    if architecture != ARCHITECTURE:
        raise UnsupportedError(
            f"{keys.path}: architecture {shown(architecture)} is not supported, this version "
            f"reads GGUF files of {ARCHITECTURE!r}"
        )
    if keys.integer("expert_count", 0, low=0):
        raise UnsupportedError(
            f"{keys.path}: mixture of experts ({ARCHITECTURE}.expert_count) is not supported yet"
        )
    unread = ("rope.scaling.", "rope.scale", "attention.sliding_window")
    for key in keys.metadata:
        if key.startswith(tuple(f"{ARCHITECTURE}.{prefix}" for prefix in unread)):
            raise UnsupportedError(f"{keys.path}: {shown(key)} is not supported yet")
    for name in header.tensors:
        if name.startswith("rope_") or "_exps." in name or "ffn_gate_inp" in name:
            raise UnsupportedError(f"{keys.path}: tensor {shown(name)} is not supported yet")


def _model_config(keys: _Keys, header: GgufHeader) -> ModelConfig:
    dim, heads = keys.integer("embedding_length"), keys.integer("attention.head_count")
    if "llama.attention.key_length" not in keys.metadata and dim % heads:
        keys.refuse("attention.head_count", heads, f"a divisor of embedding_length {dim}")
    head_dim = keys.integer("attention.key_length", max(1, dim // heads))
    if keys.integer("attention.value_length", head_dim) != head_dim:
        raise UnsupportedError(f"{keys.path}: values of another length than keys are not supported")
    rope = _rope(keys, head_dim)
    return checked_config(
        keys.path,
        architecture=ARCHITECTURE,
        vocab_size=_vocab_size(keys, header),
        layers=keys.integer("block_count"),
        model_dim=dim,
        mlp_dim=keys.integer("feed_forward_length"),
        heads=heads,
        kv_heads=keys.integer("attention.head_count_kv", heads),
        head_dim=head_dim,
        context=keys.integer("context_length"),
        norm="rmsnorm",
        norm_eps=keys.number("attention.layer_norm_rms_epsilon"),
        mlp="swiglu",
        attention_bias="blk.0.attn_q.bias" in header.tensors,
        mlp_bias="blk.0.ffn_up.bias" in header.tensors,
        tie_embeddings="output.weight" not in header.tensors,
        rope=rope,
    )


def _rope(keys: _Keys, head_dim: int) -> RopeConfig:
    dims = keys.integer("rope.dimension_count", head_dim)
    if dims != head_dim:
        raise UnsupportedError(
            f"{keys.path}: {ARCHITECTURE}.rope.dimension_count is {dims}, rotating a part of "
            f"head_dim {head_dim} is not supported yet"
        )
    return RopeConfig(base=keys.number("rope.freq_base", 10000.0), dims=dims)


def _vocab_size(keys: _Keys, header: GgufHeader) -> int:
    table = header.tensors.get("token_embd.weight")
    if table is None or len(table.shape) != 2:
        raise CheckpointError(
            f"{keys.path}: tensor token_embd.weight is missing or not a matrix, every model has one"
        )
    rows = table.shape[0]
    tokens = keys.metadata.get("tokenizer.ggml.tokens")
    counts = {f"{ARCHITECTURE}.vocab_size": keys.integer("vocab_size", rows)}
    if isinstance(tokens, list):
        counts["the length of tokenizer.ggml.tokens"] = len(tokens)
    for what, count in counts.items():
        if count != rows:
            raise CheckpointError(
                f"{keys.path}: {what} is {count}, token_embd.weight has {rows} rows"
            )
    return rows
