"""Small random models as Hugging Face directories: config.json and safetensors, no tinygpt."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

Tensors = dict[str, np.ndarray]

DIM, LAYERS, HIDDEN, VOCAB = 128, 4, 96, 67
WINDOW = 32  # of a layer; what an int8 cache needs at least
COMMON = {
    "hidden_size": DIM,
    "num_hidden_layers": LAYERS,
    "intermediate_size": HIDDEN,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6,
    "vocab_size": VOCAB,
    "max_position_embeddings": 256,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
GEMMA = {
    **COMMON,
    "tie_word_embeddings": True,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 48,
    "sliding_window": WINDOW,
}
# config.json by family
CONFIGS: dict[str, dict] = {
    "llama": {**COMMON, "model_type": "llama", "architectures": ["LlamaForCausalLM"]},
    "llama biases": {
        **COMMON,
        "model_type": "llama",
        "attention_bias": True,
        "mlp_bias": True,
        "tie_word_embeddings": True,
        "head_dim": 64,
    },
    "mistral": {**COMMON, "model_type": "mistral", "sliding_window": WINDOW},
    "smollm3": {**COMMON, "model_type": "smollm3", "tie_word_embeddings": True},
    "smollm3 windows": {
        **COMMON,
        "model_type": "smollm3",
        "no_rope_layers": [1, 0, 1, 0],
        "use_sliding_window": True,
        "sliding_window": WINDOW,
    },
    "qwen2": {**COMMON, "model_type": "qwen2", "tie_word_embeddings": True},
    "qwen2 windows": {
        **COMMON,
        "model_type": "qwen2",
        "use_sliding_window": True,
        "sliding_window": WINDOW,
        "max_window_layers": 2,
    },
    "qwen3": {**COMMON, "model_type": "qwen3", "head_dim": 64},
    "phi3": {**COMMON, "model_type": "phi3", "partial_rotary_factor": 0.5},
    "phi3 windows": {**COMMON, "model_type": "phi3", "sliding_window": WINDOW},
    "gemma2": {
        **GEMMA,
        "model_type": "gemma2",
        "attn_logit_softcapping": 5.0,
        "final_logit_softcapping": 3.0,
    },
    "gemma3_text": {
        **GEMMA,
        "model_type": "gemma3_text",
        "sliding_window_pattern": 3,
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    },
    "olmo2": {**COMMON, "model_type": "olmo2"},
}


def random_tensors(config: Mapping, seed: int = 0) -> Tensors:
    """Float32 weights whose attention is far from uniform."""
    rng = np.random.default_rng(seed)
    is_gemma = config["model_type"].startswith("gemma")

    def draw(name: str, shape: tuple[int, ...]) -> np.ndarray:
        if len(shape) == 1:
            centre = 0.0 if is_gemma or name.endswith("bias") else 1.0
            return (centre + 0.1 * rng.standard_normal(shape)).astype(np.float32)
        gain = 2.0 if any(part in name for part in ("q_proj", "k_proj", "qkv_proj")) else 1.0
        return (gain * rng.standard_normal(shape) / np.sqrt(shape[1])).astype(np.float32)

    return {name: draw(name, shape) for name, shape in shapes(config)}


def shapes(config: Mapping) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The tensors of a directory, by the files' names."""
    dim, vocab = config["hidden_size"], config["vocab_size"]
    yield "model.embed_tokens.weight", (vocab, dim)
    yield "model.norm.weight", (dim,)
    if not config["tie_word_embeddings"]:
        yield "lm_head.weight", (vocab, dim)
    for layer in range(config["num_hidden_layers"]):
        for name, shape in _layer(config):
            yield f"model.layers.{layer}.{name}", shape


def _layer(config: Mapping) -> Iterator[tuple[str, tuple[int, ...]]]:
    kind, dim, hidden = (config[k] for k in ("model_type", "hidden_size", "intermediate_size"))
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    head_dim = config.get("head_dim", dim // heads)
    queries, keys = heads * head_dim, kv_heads * head_dim
    linears = {"q_proj": queries, "k_proj": keys, "v_proj": keys}
    if kind == "phi3":
        linears = {"qkv_proj": queries + 2 * keys}
    for name, rows in linears.items():
        yield f"self_attn.{name}.weight", (rows, dim)
        if kind == "qwen2" or config.get("attention_bias"):
            yield f"self_attn.{name}.bias", (rows,)
    yield "self_attn.o_proj.weight", (dim, queries)
    if config.get("attention_bias"):
        yield "self_attn.o_proj.bias", (dim,)
    if kind in ("qwen3", "gemma3_text", "olmo2"):
        whole = kind == "olmo2"
        yield "self_attn.q_norm.weight", (queries if whole else head_dim,)
        yield "self_attn.k_norm.weight", (keys if whole else head_dim,)
    gates = (
        {"gate_up_proj": 2 * hidden} if kind == "phi3" else {"gate_proj": hidden, "up_proj": hidden}
    )
    for name, rows, columns in [
        *((n, r, dim) for n, r in gates.items()),
        ("down_proj", dim, hidden),
    ]:
        yield f"mlp.{name}.weight", (rows, columns)
        if config.get("mlp_bias"):
            yield f"mlp.{name}.bias", (rows,)
    norms = ["post_attention_layernorm"]
    norms += ["post_feedforward_layernorm"] if kind == "olmo2" else ["input_layernorm"]
    if kind.startswith("gemma"):
        norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
    for norm in norms:
        yield f"{norm}.weight", (dim,)


def encode(tensors: Mapping[str, np.ndarray], dtype: str = "F32") -> bytes:
    """A safetensors file; "BF16" cuts float32 off, uint32 stays."""
    header, body = {}, bytearray()
    for name, array in tensors.items():
        kind, raw = _raw(array, dtype)
        header[name] = {
            "dtype": kind,
            "shape": list(array.shape),
            "data_offsets": [len(body), len(body) + len(raw)],
        }
        body += raw
    return encode_raw(header, bytes(body))


def encode_raw(header: object, body: bytes) -> bytes:
    """A safetensors file with any header at all."""
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def _raw(array: np.ndarray, dtype: str) -> tuple[str, bytes]:
    if array.dtype == np.uint32:
        return "U32", array.tobytes()
    if dtype == "BF16":
        return dtype, (array.astype("<f4").view("<u4") >> 16).astype("<u2").tobytes()
    return dtype, array.astype({"F32": "<f4", "F16": "<f2"}[dtype]).tobytes()


def rounded(array: np.ndarray, dtype: str) -> np.ndarray:
    """The float32 values that a file of `dtype` holds."""
    if dtype == "BF16":
        return (array.astype("<f4").view("<u4") & 0xFFFF0000).view("<f4")
    return array.astype({"F32": "<f4", "F16": "<f2"}[dtype]).astype(np.float32)


def write(
    directory: Path,
    config: Mapping,
    tensors: Mapping[str, np.ndarray],
    *,
    dtype: str = "F32",
    shards: int = 1,
) -> Path:
    """A model directory; more than one shard come with an index."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    if shards == 1:
        (directory / "model.safetensors").write_bytes(encode(tensors, dtype))
        return directory
    weight_map = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        part = dict(list(tensors.items())[shard::shards])
        (directory / file).write_bytes(encode(part, dtype))
        weight_map |= dict.fromkeys(part, file)
    index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    return directory
