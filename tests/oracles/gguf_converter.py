"""What llama.cpp's converter makes of a Hugging Face model, for small ones. Imports no tinygpt.

It renames, reorders the q and k rows of llama, adds Gemma's 1 to norms, and turns rope scaling into
keys or into tensors of divisors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from oracles.gguf_writer import TYPES, Tensor, Value, encode, permute, quantise

ARCHITECTURES = {"gemma3_text": "gemma3", "mistral": "llama"}  # those that are called otherwise
NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
GEMMA_NAMES = NAMES | {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
KEYS = {  # config.json: key, type
    "max_position_embeddings": ("context_length", "u32"),
    "hidden_size": ("embedding_length", "u32"),
    "num_hidden_layers": ("block_count", "u32"),
    "intermediate_size": ("feed_forward_length", "u32"),
    "num_attention_heads": ("attention.head_count", "u32"),
    "num_key_value_heads": ("attention.head_count_kv", "u32"),
    "rms_norm_eps": ("attention.layer_norm_rms_epsilon", "f32"),
    "rope_theta": ("rope.freq_base", "f32"),
    "head_dim": ("attention.key_length", "u32"),
    "sliding_window": ("attention.sliding_window", "u32"),
    "sliding_window_pattern": ("attention.sliding_window_pattern", "u32"),
    "rope_local_base_freq": ("rope.freq_base_swa", "f32"),
    "attn_logit_softcapping": ("attn_logit_softcapping", "f32"),
    "final_logit_softcapping": ("final_logit_softcapping", "f32"),
}


def architecture(config: Mapping) -> str:
    return ARCHITECTURES.get(config["model_type"], config["model_type"])


def metadata(config: Mapping) -> dict[str, Value]:
    """The keys of a model without a tokenizer."""
    name = architecture(config)
    keys = {key: (kind, config[word]) for word, (key, kind) in KEYS.items() if word in config}
    head_dim = config.get("head_dim", config["hidden_size"] // config["num_attention_heads"])
    keys["rope.dimension_count"] = ("u32", int(head_dim * config.get("partial_rotary_factor", 1)))
    scaling = config.get("rope_scaling") or {}
    kind = scaling.get("rope_type", scaling.get("type"))
    if kind in ("linear", "yarn"):
        keys["rope.scaling.type"] = ("str", kind)
        keys["rope.scaling.factor"] = ("f32", scaling["factor"])
    if kind == "longrope":
        keys["rope.scaling.attn_factor"] = ("f32", _longrope_factor(config, scaling))
    if kind in ("yarn", "longrope"):
        original = scaling["original_max_position_embeddings"]
        keys["rope.scaling.original_context_length"] = ("u32", original)
    own = {f"{name}.{key}": value for key, value in keys.items()}
    return {"general.architecture": ("str", name), **own}


def tensors(config: Mapping, weights: Mapping[str, np.ndarray], kind: str = "F32") -> list[Tensor]:
    """The file's tensors; matrices are of the type `kind`."""
    found = {}
    for name, array in weights.items():
        if architecture(config) == "llama" and (".q_proj." in name or ".k_proj." in name):
            heads = "num_attention_heads" if ".q_proj." in name else "num_key_value_heads"
            array = permute(array, config[heads])
        is_norm = name.endswith("norm.weight")
        if config["model_type"].startswith("gemma") and is_norm:
            array = array + np.float32(1)
        found[_renamed(config, name)] = array
    found |= {f"{name}.weight": array for name, array in _divisors(config).items()}
    return [
        Tensor(name, array.shape[::-1], TYPES[used], quantise(array, used))
        for name, array in found.items()
        for used in ["F32" if array.ndim == 1 else kind]
    ]


def write(
    path: Path, config: Mapping, weights: Mapping[str, np.ndarray], kind: str = "F32"
) -> Path:
    path.write_bytes(encode(metadata(config), tensors(config, weights, kind)))
    return path


def _renamed(config: Mapping, name: str) -> str:
    names = GEMMA_NAMES if config["model_type"].startswith("gemma") else NAMES
    stem, _, suffix = name.rpartition(".")
    if not stem.startswith("model.layers."):
        return f"{names[stem]}.{suffix}"
    layer, part = stem.removeprefix("model.layers.").split(".", 1)
    return f"blk.{layer}.{names[part]}.{suffix}"


def _divisors(config: Mapping) -> dict[str, np.ndarray]:
    scaling = config.get("rope_scaling") or {}
    kind = scaling.get("rope_type", scaling.get("type"))
    if kind == "longrope":
        return {
            "rope_factors_long": np.array(scaling["long_factor"], np.float32),
            "rope_factors_short": np.array(scaling["short_factor"], np.float32),
        }
    if kind != "llama3":
        return {}
    dims = config.get("head_dim", config["hidden_size"] // config["num_attention_heads"])
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    original, factors = scaling["original_max_position_embeddings"], []
    for i in range(0, dims, 2):
        wavelength = 2 * math.pi * config["rope_theta"] ** (i / dims)
        smooth = (original / wavelength - low) / (high - low)
        smooth = min(max(smooth, 0.0), 1.0)
        factors.append(1 / ((1 - smooth) / scaling["factor"] + smooth))
    return {"rope_freqs": np.array(factors, np.float32)}


def _longrope_factor(config: Mapping, scaling: Mapping) -> float:
    original = scaling["original_max_position_embeddings"]
    ratio = config["max_position_embeddings"] / original
    return math.sqrt(1 + math.log(ratio) / math.log(original)) if ratio > 1 else 1.0
