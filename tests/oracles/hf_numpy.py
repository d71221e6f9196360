"""Hugging Face models in NumPy and float64, from config.json's words and the files' tensor names.

No cache, no tinygpt: written from the published definitions of the families, one plain function for
each thing that they do differently.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

GEMMA = ("gemma2", "gemma3_text")
EPS = {"phi3": 1e-5, "olmo2": 1e-5}


def forward(config: Mapping, tensors: Mapping[str, np.ndarray], ids: list[int]) -> np.ndarray:
    """Logits [T, V]."""
    tensors = {name: np.asarray(array, np.float64) for name, array in tensors.items()}
    kind = config["model_type"]
    table = tensors["model.embed_tokens.weight"]
    x = table[ids]
    if kind in GEMMA:
        x = x * math.sqrt(config["hidden_size"])
    for layer in range(config["num_hidden_layers"]):
        own = {
            name.removeprefix(f"model.layers.{layer}."): array
            for name, array in tensors.items()
            if name.startswith(f"model.layers.{layer}.")
        }
        x = _block(config, own, layer, x)
    x = _norm(config, tensors["model.norm.weight"], x)
    logits = x @ tensors.get("lm_head.weight", table).T
    cap = config.get("final_logit_softcapping", 30.0 if kind == "gemma2" else None)
    return logits if cap is None else cap * np.tanh(logits / cap)


def _block(config: Mapping, own: Mapping, layer: int, x: np.ndarray) -> np.ndarray:
    def norm(name: str, y: np.ndarray) -> np.ndarray:
        return _norm(config, own[f"{name}.weight"], y)

    kind = config["model_type"]
    if kind in GEMMA:
        out = _attention(config, own, layer, norm("input_layernorm", x))
        x = x + norm("post_attention_layernorm", out)
        out = _mlp(config, own, norm("pre_feedforward_layernorm", x))
        return x + norm("post_feedforward_layernorm", out)
    if kind == "olmo2":
        x = x + norm("post_attention_layernorm", _attention(config, own, layer, x))
        return x + norm("post_feedforward_layernorm", _mlp(config, own, x))
    x = x + _attention(config, own, layer, norm("input_layernorm", x))
    return x + _mlp(config, own, norm("post_attention_layernorm", x))


def _norm(config: Mapping, weight: np.ndarray, x: np.ndarray) -> np.ndarray:
    eps = config.get("rms_norm_eps", EPS.get(config["model_type"], 1e-6))
    weight = 1 + weight if config["model_type"] in GEMMA else weight
    return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + eps) * weight


def _linear(own: Mapping, name: str, x: np.ndarray) -> np.ndarray:
    return x @ own[f"{name}.weight"].T + own.get(f"{name}.bias", 0.0)


def _mlp(config: Mapping, own: Mapping, x: np.ndarray) -> np.ndarray:
    if config["model_type"] == "phi3":
        gate, up = np.split(_linear(own, "mlp.gate_up_proj", x), 2, axis=-1)
    else:
        gate, up = (_linear(own, f"mlp.{name}_proj", x) for name in ("gate", "up"))
    if config["model_type"] in GEMMA:
        gate = 0.5 * gate * (1 + np.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)))
    else:
        gate = gate / (1 + np.exp(-gate))
    return _linear(own, "mlp.down_proj", gate * up)


def _attention(config: Mapping, own: Mapping, layer: int, x: np.ndarray) -> np.ndarray:
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    head_dim = config.get("head_dim", config["hidden_size"] // heads)
    q, k, v = _projected(config, own, x, heads * head_dim, kv_heads * head_dim)
    if config["model_type"] == "olmo2":
        q = _norm(config, own["self_attn.q_norm.weight"], q)
        k = _norm(config, own["self_attn.k_norm.weight"], k)
    q, k, v = (y.reshape(len(x), -1, head_dim).swapaxes(0, 1) for y in (q, k, v))  # [H, T, D]
    if config["model_type"] in ("qwen3", "gemma3_text"):
        q = _norm(config, own["self_attn.q_norm.weight"], q)
        k = _norm(config, own["self_attn.k_norm.weight"], k)
    sliding = slides(config, layer)
    if _rotates(config, layer):
        frequencies, factor = rope_of(config, len(x), head_dim, sliding)
        q, k = (_rotate(y, frequencies, factor) for y in (q, k))
    scale = config.get("query_pre_attn_scalar", head_dim) ** -0.5
    scores = q @ np.repeat(k, heads // kv_heads, axis=0).swapaxes(1, 2) * scale
    if config["model_type"] == "gemma2":
        cap = config.get("attn_logit_softcapping", 50.0)
        scores = scores if cap is None else cap * np.tanh(scores / cap)
    i, j = np.arange(len(x))[:, None], np.arange(len(x))[None]
    visible = (j <= i) & (not sliding or i - j < config["sliding_window"])
    scores = np.where(visible, scores, -np.inf)
    odds = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = odds / odds.sum(axis=-1, keepdims=True)
    out = weights @ np.repeat(v, heads // kv_heads, axis=0)
    return _linear(own, "self_attn.o_proj", out.swapaxes(0, 1).reshape(len(x), -1))


def _projected(
    config: Mapping, own: Mapping, x: np.ndarray, queries: int, keys: int
) -> list[np.ndarray]:
    if config["model_type"] == "phi3":
        fused = _linear(own, "self_attn.qkv_proj", x)
        return np.split(fused, [queries, queries + keys], axis=-1)
    return [_linear(own, f"self_attn.{name}_proj", x) for name in "qkv"]


def slides(config: Mapping, layer: int) -> bool:
    """Whether a layer sees only the last `sliding_window` tokens."""
    if config.get("sliding_window") is None:
        return False
    if "layer_types" in config:
        return config["layer_types"][layer] == "sliding_attention"
    match config["model_type"]:
        case "mistral" | "phi3":
            return True
        case "gemma2":
            return layer % 2 == 0
        case "gemma3_text":
            return (layer + 1) % config.get("sliding_window_pattern", 6) != 0
        case "qwen2" | "qwen3":
            return config.get("use_sliding_window", False) and layer >= config["max_window_layers"]
        case "smollm3":
            return config.get("use_sliding_window", False) and not _rotates(config, layer)
    return False


def _rotates(config: Mapping, layer: int) -> bool:
    if config["model_type"] != "smollm3":
        return True
    if "no_rope_layers" in config:
        return bool(config["no_rope_layers"][layer])
    return (layer + 1) % config.get("no_rope_layer_interval", 4) != 0


def rope_of(config: Mapping, tokens: int, head_dim: int, sliding: bool) -> tuple[np.ndarray, float]:
    """Frequencies [dims/2] and attention factor of a layer for a text of `tokens`."""
    dims = int(head_dim * config.get("partial_rotary_factor", 1.0))
    if config["model_type"] == "gemma3_text" and sliding:
        return config.get("rope_local_base_freq", 1e4) ** (-np.arange(0, dims, 2) / dims), 1.0
    base = config["rope_theta"]
    scaling = config.get("rope_scaling") or {}
    return scaled(base, dims, scaling, tokens, config["max_position_embeddings"], config)


def scaled(
    base: float, dims: int, scaling: Mapping, tokens: int, context: int, top: Mapping
) -> tuple[np.ndarray, float]:
    """A scaling, pair by pair, as the Hugging Face definitions have it."""
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    plain = [base ** (-2 * i / dims) for i in range(dims // 2)]
    original = top.get(
        "original_max_position_embeddings",
        scaling.get("original_max_position_embeddings", context),
    )
    if kind == "linear":
        return np.array(plain) / scaling["factor"], 1.0
    if kind == "dynamic":
        factor, length = scaling["factor"], max(tokens, context)
        base = base * (factor * length / context - (factor - 1)) ** (dims / (dims - 2))
        return np.array([base ** (-2 * i / dims) for i in range(dims // 2)]), 1.0
    if kind == "llama3":
        return np.array([_llama3(f, scaling, original) for f in plain]), 1.0
    if kind == "yarn":
        return _yarn(base, dims, plain, scaling, original)
    if kind in ("longrope", "su"):
        divisors = scaling["long_factor" if tokens > original else "short_factor"]
        ratio = scaling.get("factor", context / original)
        usual = math.sqrt(1 + math.log(ratio) / math.log(original)) if ratio > 1 else 1.0
        return np.array(plain) / np.array(divisors), scaling.get("attention_factor", usual)
    return np.array(plain), 1.0


def _llama3(frequency: float, scaling: Mapping, original: int) -> float:
    factor, low, high = (scaling[k] for k in ("factor", "low_freq_factor", "high_freq_factor"))
    wavelength = 2 * math.pi / frequency
    if wavelength < original / high:
        return frequency
    if wavelength > original / low:
        return frequency / factor
    smooth = (original / wavelength - low) / (high - low)
    return (1 - smooth) * frequency / factor + smooth * frequency


def _yarn(
    base: float, dims: int, plain: list[float], scaling: Mapping, original: int
) -> tuple[np.ndarray, float]:
    factor = scaling["factor"]

    def correction(rotations: float) -> float:
        return dims * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(base))

    low = math.floor(correction(scaling.get("beta_fast", 32)))
    high = math.ceil(correction(scaling.get("beta_slow", 1)))
    low, high = max(low, 0), min(high, dims - 1)
    out = []
    for i, frequency in enumerate(plain):
        ramp = min(max((i - low) / max(high - low, 0.001), 0), 1)
        out.append(frequency / factor * ramp + frequency * (1 - ramp))

    def mscale(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1 if factor > 1 else 1.0

    usual = mscale(1)
    if scaling.get("mscale") and scaling.get("mscale_all_dim"):
        usual = mscale(scaling["mscale"]) / mscale(scaling["mscale_all_dim"])
    return np.array(out), scaling.get("attention_factor", usual)


def _rotate(x: np.ndarray, frequencies: np.ndarray, factor: float) -> np.ndarray:
    """Rotate x [H, T, D], halves paired; dimensions past the frequencies stay as they are."""
    half = len(frequencies)
    turn = factor * np.exp(1j * np.arange(x.shape[1])[:, None] * frequencies)
    turned = (x[..., :half] + 1j * x[..., half : 2 * half]) * turn
    return np.concatenate([turned.real, turned.imag, x[..., 2 * half :]], axis=-1)
