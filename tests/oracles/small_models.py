"""Small random models of every kind, as a description for the oracle and as our own decoder."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from tinygpt.cache import CacheSpec, KVCache
from tinygpt.models.config import ModelConfig
from tinygpt.models.transformer import Transformer
from tinygpt.ops.rope import RopeConfig

LEARNED = {"mha": {}, "deepnorm": {"deepnorm": True}, "embed norm": {"embedding_norm": True}}
ROPE = {"rope mha": 4, "rope gqa": 2, "rope mqa": 1}
KINDS = (*LEARNED, "sliding", "untied", *ROPE, "traditional", "partial rope")


@dataclass(frozen=True, slots=True)
class SmallModel:
    """`described` is the oracle's dictionary, `weights` are NumPy arrays under canonical names."""

    config: ModelConfig
    described: dict[str, object]
    weights: dict[str, np.ndarray]

    def build(self) -> Transformer:
        return Transformer(self.config, {n: mx.array(w) for n, w in self.weights.items()})


def small_model(kind: str, *, context: int = 96, layers: int = 2, seed: int = 0) -> SmallModel:
    """Two layers of four heads of 32, drawn from `seed`."""
    rotary = kind in (*ROPE, "traditional", "partial rope")
    rope = None
    if rotary:
        rope = RopeConfig(10000.0, 16 if kind == "partial rope" else 32, kind == "traditional")
    config = ModelConfig(
        architecture="llama" if rotary else "tinygpt",
        vocab_size=61,
        layers=layers,
        model_dim=128,
        mlp_dim=96,
        heads=4,
        kv_heads=ROPE.get(kind, 2 if rotary else 4),
        head_dim=32,
        context=context,
        norm="rmsnorm" if rotary else "layernorm",
        mlp="swiglu" if rotary else "gelu",
        attention_bias=not rotary,
        mlp_bias=not rotary,
        tie_embeddings=kind != "untied",
        rope=rope,
        sliding_window=8 if kind == "sliding" else None,
        **LEARNED.get(kind, {}),
    )
    return SmallModel(config, described(config), random_weights(config, seed))


def described(config: ModelConfig) -> dict[str, object]:
    """The same model in the oracle's words."""
    rope = config.rope
    words: dict[str, object] = {
        "layers": config.layers,
        "heads": config.heads,
        "kv_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "norm": config.norm,
        "norm_eps": config.norm_eps,
        "mlp": config.mlp,
        "sliding_window": config.sliding_window,
        "deepnorm": config.deepnorm,
        "embedding_norm": config.embedding_norm,
    }
    if rope is not None:
        words |= {"rope_base": rope.base, "rope_dims": rope.dims}
        words |= {"rope_traditional": rope.traditional}
    return words


def random_weights(config: ModelConfig, seed: int) -> dict[str, np.ndarray]:
    """Weights [out, in] whose attention is far from uniform."""
    rng = np.random.default_rng(seed)
    shapes = weight_shapes(config)

    def draw(name: str, shape: tuple[int, ...]) -> np.ndarray:
        if len(shape) == 1:
            centre = 1.0 if name.endswith("weight") else 0.0
            return (centre + 0.1 * rng.standard_normal(shape)).astype(np.float32)
        gain = 2.0 if "q_proj" in name or "k_proj" in name else 1.0
        return (gain * rng.standard_normal(shape) / np.sqrt(shape[1])).astype(np.float32)

    return {name: draw(name, shape) for name, shape in shapes.items()}


def weight_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    dim, hidden = config.model_dim, config.mlp_dim
    query, key = config.heads * config.head_dim, config.kv_heads * config.head_dim
    shapes = {"token_embedding.weight": (config.vocab_size, dim), "ln_final.weight": (dim,)}
    if config.rope is None:
        shapes["position_embedding.weight"] = (config.context, dim)
    if config.embedding_norm:
        shapes["embed_norm.weight"] = (dim,)
    if not config.tie_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, dim)
    linears = {"attn.q_proj": (query, dim), "attn.k_proj": (key, dim), "attn.v_proj": (key, dim)}
    linears["attn.o_proj"] = (dim, query)
    if config.mlp == "gelu":
        linears |= {"mlp.fc_in": (hidden, dim), "mlp.fc_out": (dim, hidden)}
    else:
        linears |= {"mlp.gate_proj": (hidden, dim), "mlp.up_proj": (hidden, dim)}
        linears["mlp.down_proj"] = (dim, hidden)
    norms = ["ln_final", *(f"blocks.{i}.{n}" for i in range(config.layers) for n in ("ln1", "ln2"))]
    for i in range(config.layers):
        for name, shape in linears.items():
            shapes[f"blocks.{i}.{name}.weight"] = shape
            if config.attention_bias:
                shapes[f"blocks.{i}.{name}.bias"] = shape[:1]
    for norm in norms:
        shapes[f"{norm}.weight"] = (dim,)
        if config.norm == "layernorm":
            shapes[f"{norm}.bias"] = (dim,)
    return shapes


def cached(
    model: Transformer, ids: list[int], chunk: int, spec: CacheSpec | None = None
) -> np.ndarray:
    """The logits [T, V] of `ids` fed in chunks, through a cache of their length."""
    cache = KVCache(spec or CacheSpec(), model.cache_layout(len(ids)))
    pieces = [model(mx.array([ids[i : i + chunk]]), cache) for i in range(0, len(ids), chunk)]
    return np.array(mx.concatenate(pieces, axis=1)[0])
