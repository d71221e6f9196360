"""What the keys and tensors of a GGUF file mean, architecture by architecture.

llama.cpp's converter has already added Gemma's 1 to the weights of its norms.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tinygpt.errors import CheckpointError, UnsupportedError
from tinygpt.io.checkpoint import checked_config, shown
from tinygpt.io.gguf.header import GgufHeader
from tinygpt.io.gguf.keys import KNOWN, Keys
from tinygpt.io.gguf.rope import local_rope, rope_config
from tinygpt.models.config import ModelConfig
from tinygpt.ops.rope import RopeConfig

_FEWEST_TENSORS = 6  # of a layer, in any architecture
_GEMMA_27B_LAYERS = {"gemma2": 46, "gemma3": 62}  # whose scores are scaled by their own rule
_GEMMA2_WINDOW, _GEMMA2_PERIOD, _GEMMA3_PERIOD = 4096, 2, 6  # where a file does not say


def model_config(path: Path, header: GgufHeader, data: NDArray[np.uint8]) -> ModelConfig:
    """The configuration that a GGUF header describes.

    Raises:
        CheckpointError: a key that is missing, of the wrong type, or contradicts a tensor.
        UnsupportedError: a kind of model that this version does not read, by its name.
    """
    keys = Keys(path, _architecture(path, header), header.metadata)
    _refuse_parts(path, header)
    keys.refuse_unknown()
    layers = keys.integer("block_count")
    if layers * _FEWEST_TENSORS > len(header.tensors):
        raise CheckpointError(
            f"{path}: {keys.architecture}.block_count is {layers}, more than the file's "
            f"{len(header.tensors)} tensors can make"
        )
    head_dim = _head_dim(keys)
    rope = rope_config(keys, header, data, head_dim)
    fields = _common(keys, header, head_dim, rope) | _own(keys, layers, rope)
    return checked_config(path, layers=layers, **fields)


def _architecture(path: Path, header: GgufHeader) -> str:
    architecture = header.metadata.get("general.architecture")
    if not isinstance(architecture, str):
        raise CheckpointError(f"{path}: general.architecture is missing or not a string")
    if architecture not in KNOWN:
        raise UnsupportedError(
            f"{path}: architecture {shown(architecture)} is not supported, this version reads GGUF "
            f"files of {', '.join(KNOWN)}"
        )
    return architecture


def _refuse_parts(path: Path, header: GgufHeader) -> None:
    """Refuse what is not one whole dense model."""
    shards = header.metadata.get("split.count", 0)
    if not isinstance(shards, int) or shards > 1:
        raise UnsupportedError(
            f"{path}: is one of {shown(shards)} files (split.count); join them by "
            "llama-gguf-split --merge"
        )
    kind = header.metadata.get("general.type", "model")
    if not isinstance(kind, str) or kind != "model":
        raise UnsupportedError(f"{path}: general.type is {shown(kind)}, expected 'model'")
    for name in header.tensors:
        if "_exps." in name or "ffn_gate_inp" in name:
            raise UnsupportedError(
                f"{path}: tensor {shown(name)}: mixture of experts is not supported yet"
            )


def _head_dim(keys: Keys) -> int:
    dim, heads = keys.integer("embedding_length"), keys.integer("attention.head_count")
    if "attention.key_length" not in keys and dim % heads:
        keys.refuse("attention.head_count", heads, f"a divisor of embedding_length {dim}")
    head_dim = keys.integer("attention.key_length", max(1, dim // heads))
    if keys.integer("attention.value_length", head_dim) != head_dim:
        raise UnsupportedError(f"{keys.path}: values of another length than keys are not supported")
    return head_dim


def _common(keys: Keys, header: GgufHeader, head_dim: int, rope: RopeConfig) -> dict[str, object]:
    """What all architectures have, read off keys and off which tensors there are."""
    heads = keys.integer("attention.head_count")
    has_qkv_bias = bool({"blk.0.attn_q.bias", "blk.0.attn_qkv.bias"} & set(header.tensors))
    has_output_bias = "blk.0.attn_output.bias" in header.tensors
    return {
        "architecture": keys.architecture,
        "vocab_size": _vocab_size(keys, header),
        "model_dim": keys.integer("embedding_length"),
        "mlp_dim": keys.integer("feed_forward_length"),
        "heads": heads,
        "kv_heads": keys.integer("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "context": keys.integer("context_length"),
        "norm": "rmsnorm",
        "norm_eps": keys.number("attention.layer_norm_rms_epsilon"),
        "mlp": "swiglu",
        "attention_bias": has_qkv_bias,
        "output_bias": None if has_output_bias == has_qkv_bias else has_output_bias,
        "mlp_bias": "blk.0.ffn_up.bias" in header.tensors,
        "tie_embeddings": "output.weight" not in header.tensors,
        "rope": rope,
    }


def _own(keys: Keys, layers: int, rope: RopeConfig) -> dict[str, object]:
    """What an architecture has of its own."""
    match keys.architecture:
        case "qwen3":
            return {"qk_norm": "head"}
        case "phi3":
            return {"sliding_window": _phi3_window(keys)}
        case "gemma2":
            return _gemma(keys, layers) | {
                "sliding_window": keys.integer("attention.sliding_window", _GEMMA2_WINDOW),
                "sliding_layers": _pattern(keys, layers, _GEMMA2_PERIOD),
                "local_rope": local_rope(keys, rope),
                "attention_softcap": keys.optional_number("attn_logit_softcapping", 50.0),
                "logit_softcap": keys.optional_number("final_logit_softcapping", 30.0),
            }
        case "gemma3":
            window = keys.integer("attention.sliding_window", 0, low=0) or None
            local = {
                "sliding_layers": _pattern(keys, layers, _GEMMA3_PERIOD),
                "local_rope": local_rope(keys, rope),
            }
            return _gemma(keys, layers) | {
                "qk_norm": "head",
                "logit_softcap": keys.optional_number("final_logit_softcapping"),
                "sliding_window": window,
                **(local if window is not None else {}),
            }
    return {}


def _gemma(keys: Keys, layers: int) -> dict[str, object]:
    dim, heads = keys.integer("embedding_length"), keys.integer("attention.head_count")
    is_27b = layers == _GEMMA_27B_LAYERS[keys.architecture]
    return {
        "mlp": "geglu",
        "block_norms": "sandwich",
        "embedding_scale": math.sqrt(dim),
        "attention_scale": max(1, dim // heads) ** -0.5 if is_27b else None,
    }


def _pattern(keys: Keys, layers: int, period: int) -> tuple[bool, ...]:
    return keys.layer_flags("attention.sliding_window_pattern", layers, period)


def _phi3_window(keys: Keys) -> int | None:
    """The window in tokens; None where there is none or where it spans the whole context."""
    window = keys.integer("attention.sliding_window", 0, low=0)
    return window if 0 < window < keys.integer("context_length") else None


def _vocab_size(keys: Keys, header: GgufHeader) -> int:
    table = header.tensors.get("token_embd.weight")
    if table is None or len(table.shape) != 2:
        raise CheckpointError(
            f"{keys.path}: tensor token_embd.weight is missing or not a matrix, every model has one"
        )
    rows = table.shape[0]
    tokens = keys.metadata.get("tokenizer.ggml.tokens")
    counts = {f"{keys.architecture}.vocab_size": keys.integer("vocab_size", rows)}
    if isinstance(tokens, list):
        counts["the length of tokenizer.ggml.tokens"] = len(tokens)
    for what, count in counts.items():
        if count != rows:
            raise CheckpointError(
                f"{keys.path}: {what} is {count}, token_embd.weight has {rows} rows"
            )
    return rows
