"""A decoder in NumPy and float64, one token sequence at a time, no cache. Imports no tinygpt.

Written from the description of the models alone, position by position where that is plainer, so
that it can stand against the real one. Weights are [out, in] under the canonical names.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

DEFAULTS = {
    "norm": "layernorm",
    "norm_eps": 1e-5,
    "mlp": "gelu",
    "rope_base": None,
    "rope_traditional": False,
    "sliding_window": None,
    "deepnorm": False,
    "embedding_norm": False,
}

_erf = np.vectorize(math.erf, otypes=[np.float64])


def forward(config: Mapping, weights: Mapping[str, np.ndarray], ids: list[int]) -> np.ndarray:
    """Logits [T, V], float64.

    `config` has layers, heads, and optionally kv_heads (heads), head_dim (dim/heads) and the keys
    of DEFAULTS; `rope_base` None means learned positions. Biases and an untied head are used where
    the weights have them. `visible` may give a boolean [T, T], query by key, in place of the
    causal mask.
    """
    settings = {**DEFAULTS, **config}
    weights = {name: np.asarray(array, np.float64) for name, array in weights.items()}
    table = weights["token_embedding.weight"]
    x = table[list(ids)]
    if settings["embedding_norm"]:
        x = _rms_norm(x, weights["embed_norm.weight"], settings["norm_eps"])
    if settings["rope_base"] is None:
        x = x + weights["position_embedding.weight"][: len(ids)]
    alpha = (2 * settings["layers"]) ** 0.25 if settings["deepnorm"] else 1.0
    for i in range(settings["layers"]):
        block = f"blocks.{i}"
        x = alpha * x + _attention(
            settings, weights, block, _norm(settings, weights, f"{block}.ln1", x)
        )
        x = alpha * x + _mlp(settings, weights, block, _norm(settings, weights, f"{block}.ln2", x))
    return _norm(settings, weights, "ln_final", x) @ weights.get("lm_head.weight", table).T


def causal(length: int, window: int | None = None) -> np.ndarray:
    """Query i sees keys j ≤ i, and with a window only those with i − j < window."""
    i, j = np.arange(length)[:, None], np.arange(length)[None, :]
    return (j <= i) & (window is None or i - j < (window or 0))


def _attention(settings: Mapping, weights: Mapping, block: str, x: np.ndarray) -> np.ndarray:
    length, heads = len(x), settings["heads"]
    kv_heads = settings.get("kv_heads", heads)
    head_dim = settings.get("head_dim", x.shape[1] // heads)
    q = _linear(weights, f"{block}.attn.q_proj", x).reshape(length, heads, head_dim)
    k = _linear(weights, f"{block}.attn.k_proj", x).reshape(length, kv_heads, head_dim)
    v = _linear(weights, f"{block}.attn.v_proj", x).reshape(length, kv_heads, head_dim)
    if settings["rope_base"] is not None:
        q, k = _rotate(settings, q), _rotate(settings, k)
    visible = settings.get("visible")
    visible = causal(length, settings["sliding_window"]) if visible is None else visible
    out = np.empty((length, heads, head_dim))
    for h in range(heads):
        kv = h // (heads // kv_heads)
        scores = q[:, h] @ k[:, kv].T / math.sqrt(head_dim)
        scores = np.where(visible, scores, -np.inf)
        odds = np.exp(scores - scores.max(axis=1, keepdims=True))
        out[:, h] = odds / odds.sum(axis=1, keepdims=True) @ v[:, kv]
    return _linear(weights, f"{block}.attn.o_proj", out.reshape(length, heads * head_dim))


def _rotate(settings: Mapping, x: np.ndarray) -> np.ndarray:
    """Rotary embedding of x [T, heads, D] at positions 0 … T−1, as complex numbers."""
    dims = settings.get("rope_dims", x.shape[-1])
    half = dims // 2
    pairs = (
        (slice(0, dims, 2), slice(1, dims, 2))
        if settings["rope_traditional"]
        else (slice(0, half), slice(half, dims))
    )
    angles = np.arange(len(x))[:, None] * settings["rope_base"] ** (-2 * np.arange(half) / dims)
    turned = (x[..., pairs[0]] + 1j * x[..., pairs[1]]) * np.exp(1j * angles)[:, None]
    out = x.copy()
    out[..., pairs[0]], out[..., pairs[1]] = turned.real, turned.imag
    return out


def _mlp(settings: Mapping, weights: Mapping, block: str, x: np.ndarray) -> np.ndarray:
    if settings["mlp"] == "gelu":
        hidden = _linear(weights, f"{block}.mlp.fc_in", x)
        hidden = 0.5 * hidden * (1 + _erf(hidden / math.sqrt(2)))
        return _linear(weights, f"{block}.mlp.fc_out", hidden)
    gate = _linear(weights, f"{block}.mlp.gate_proj", x)
    up = _linear(weights, f"{block}.mlp.up_proj", x)
    return _linear(weights, f"{block}.mlp.down_proj", gate / (1 + np.exp(-gate)) * up)


def _linear(weights: Mapping, name: str, x: np.ndarray) -> np.ndarray:
    return x @ weights[f"{name}.weight"].T + weights.get(f"{name}.bias", 0.0)


def _norm(settings: Mapping, weights: Mapping, name: str, x: np.ndarray) -> np.ndarray:
    weight, eps = weights[f"{name}.weight"], settings["norm_eps"]
    if settings["norm"] == "rmsnorm":
        return _rms_norm(x, weight, eps)
    centred = x - x.mean(axis=-1, keepdims=True)
    return centred / np.sqrt(
        (centred**2).mean(axis=-1, keepdims=True) + eps
    ) * weight + weights.get(f"{name}.bias", 0.0)


def _rms_norm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + eps) * weight
