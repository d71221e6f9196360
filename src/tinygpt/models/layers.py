"""The parts of a block. A layer attends through a cache entry and knows not what that keeps."""

from __future__ import annotations

import mlx.core as mx
from mlx import nn

from tinygpt.cache import LayerCache
from tinygpt.models.config import ModelConfig


def make_norm(config: ModelConfig) -> nn.Module:
    """The configuration's norm over `model_dim`."""
    kind = nn.RMSNorm if config.norm == "rmsnorm" else nn.LayerNorm
    return kind(config.model_dim, eps=config.norm_eps)


class Attention(nn.Module):
    """Projections around `entry.append` and `entry.attend`; keys leave it un-rotated."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads = config.heads, config.kv_heads
        self.scale = config.head_dim**-0.5
        query_dim = config.heads * config.head_dim
        key_dim = config.kv_heads * config.head_dim
        bias = config.attention_bias
        self.q_proj = nn.Linear(config.model_dim, query_dim, bias=bias)
        self.k_proj = nn.Linear(config.model_dim, key_dim, bias=bias)
        self.v_proj = nn.Linear(config.model_dim, key_dim, bias=bias)
        self.o_proj = nn.Linear(query_dim, config.model_dim, bias=bias)

    def __call__(self, x: mx.array, entry: LayerCache) -> mx.array:
        """`x` [B, T, C] to [B, T, C]."""
        queries = _by_head(self.q_proj(x), self.heads)
        keys, values = (_by_head(part(x), self.kv_heads) for part in (self.k_proj, self.v_proj))
        entry.append(keys, values)
        out = entry.attend(queries, self.scale)  # [B, H, T, D]
        return self.o_proj(out.swapaxes(1, 2).reshape(*x.shape[:2], -1))


def _by_head(x: mx.array, heads: int) -> mx.array:
    """`[B, T, heads·D]` to `[B, heads, T, D]`."""
    return x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)


class GeluMLP(nn.Module):
    """Two projections around the exact (erf) GELU."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.fc_in = nn.Linear(config.model_dim, config.mlp_dim, bias=config.mlp_bias)
        self.fc_out = nn.Linear(config.mlp_dim, config.model_dim, bias=config.mlp_bias)

    def __call__(self, x: mx.array) -> mx.array:
        """`x` [B, T, C] to [B, T, C]."""
        return self.fc_out(nn.gelu(self.fc_in(x)))


class SwigluMLP(nn.Module):
    """SwiGLU (Shazeer, 2020, arXiv 2002.05202)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.model_dim, config.mlp_dim, bias=config.mlp_bias)
        self.up_proj = nn.Linear(config.model_dim, config.mlp_dim, bias=config.mlp_bias)
        self.down_proj = nn.Linear(config.mlp_dim, config.model_dim, bias=config.mlp_bias)

    def __call__(self, x: mx.array) -> mx.array:
        """`x` [B, T, C] to [B, T, C]."""
        return self.down_proj(nn.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    """A pre-norm block; `residual_scale` is DeepNorm's α (Wang et al., 2022, arXiv 2203.00555)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.residual_scale = config.residual_scale
        self.ln1, self.ln2 = make_norm(config), make_norm(config)
        self.attn = Attention(config)
        self.mlp = SwigluMLP(config) if config.mlp == "swiglu" else GeluMLP(config)

    def __call__(self, x: mx.array, entry: LayerCache) -> mx.array:
        """`x` [B, T, C] to [B, T, C]."""
        x = self._residual(x) + self.attn(self.ln1(x), entry)
        return self._residual(x) + self.mlp(self.ln2(x))

    def _residual(self, x: mx.array) -> mx.array:
        return x if self.residual_scale == 1 else self.residual_scale * x
