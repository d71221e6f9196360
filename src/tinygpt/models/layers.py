"""The parts of a block. A layer attends through a cache entry and knows not what that keeps."""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx
from mlx import nn

from tinygpt.cache import LayerCache
from tinygpt.cache.rows import LayerRows
from tinygpt.models.config import ModelConfig
from tinygpt.models.tensors import norm_names
from tinygpt.ops.exponential import gelu_tanh, silu

Entry = LayerCache | LayerRows  # what takes a layer's keys and values, and attends to them


class RMSNorm(nn.Module):
    """RMSNorm (Zhang and Sennrich, 2019, arXiv 1910.07467) by `weight + offset`."""

    def __init__(self, dims: int, eps: float, offset: float = 0.0) -> None:
        super().__init__()
        self.weight = mx.ones((dims,))
        self.eps, self.offset = eps, offset

    def __call__(self, x: mx.array) -> mx.array:
        """`x` [..., dims] in its own type."""
        if not self.offset:
            return mx.fast.rms_norm(x, self.weight, self.eps)
        weight = self.weight.astype(mx.float32) + self.offset  # in half precision it would round
        return mx.fast.rms_norm(x.astype(mx.float32), weight, self.eps).astype(x.dtype)


def make_norm(config: ModelConfig) -> nn.Module:
    """The configuration's norm over `model_dim`."""
    if config.norm == "rmsnorm":
        return make_rms_norm(config, config.model_dim)
    return nn.LayerNorm(config.model_dim, eps=config.norm_eps)


def make_rms_norm(config: ModelConfig, dims: int) -> RMSNorm:
    """An RMSNorm over `dims` with the configuration's epsilon and offset."""
    return RMSNorm(dims, config.norm_eps, config.norm_offset)


class Attention(nn.Module):
    """Projections around `entry.append` and `entry.attend`; keys leave it un-rotated."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads = config.heads, config.kv_heads
        self.scale, self.norms_heads = config.score_scale, config.qk_norm == "head"
        query_dim = config.heads * config.head_dim
        key_dim = config.kv_heads * config.head_dim
        bias = config.attention_bias
        self.q_proj = nn.Linear(config.model_dim, query_dim, bias=bias)
        self.k_proj = nn.Linear(config.model_dim, key_dim, bias=bias)
        self.v_proj = nn.Linear(config.model_dim, key_dim, bias=bias)
        self.o_proj = nn.Linear(query_dim, config.model_dim, bias=config.has_output_bias)
        if config.qk_norm != "none":
            sizes = (config.head_dim,) * 2 if self.norms_heads else (query_dim, key_dim)
            self.q_norm, self.k_norm = (make_rms_norm(config, size) for size in sizes)

    def __call__(self, x: mx.array, entry: Entry) -> mx.array:
        """`x` [B, T, C] to [B, T, C]."""
        queries = self._normed("q_norm", self.q_proj(x), self.heads)
        keys = self._normed("k_norm", self.k_proj(x), self.kv_heads)
        entry.append(keys, _by_head(self.v_proj(x), self.kv_heads))
        out = entry.attend(queries, self.scale)  # [B, H, T, D]
        return self.o_proj(out.swapaxes(1, 2).reshape(*x.shape[:2], -1))

    def _normed(self, name: str, x: mx.array, heads: int) -> mx.array:
        if name not in self:
            return _by_head(x, heads)
        norm = self[name]
        return norm(_by_head(x, heads)) if self.norms_heads else _by_head(norm(x), heads)


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


class GatedMLP(nn.Module):
    """SwiGLU or GeGLU (Shazeer, 2020, arXiv 2002.05202), the latter with the tanh form of GELU."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self._act: Callable[[mx.array], mx.array] = gelu_tanh if config.mlp == "geglu" else silu
        self.gate_proj = nn.Linear(config.model_dim, config.mlp_dim, bias=config.mlp_bias)
        self.up_proj = nn.Linear(config.model_dim, config.mlp_dim, bias=config.mlp_bias)
        self.down_proj = nn.Linear(config.mlp_dim, config.model_dim, bias=config.mlp_bias)

    def __call__(self, x: mx.array) -> mx.array:
        """`x` [B, T, C] to [B, T, C]."""
        return self.down_proj(self._act(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    """Attention and MLP, each with the norms the configuration puts before and after it.

    `residual_scale` is DeepNorm's α (Wang et al., 2022, arXiv 2203.00555).
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.residual_scale = config.residual_scale
        for name in norm_names(config):
            self[name] = make_norm(config)
        self.attn = Attention(config)
        self.mlp = GeluMLP(config) if config.mlp == "gelu" else GatedMLP(config)

    def __call__(self, x: mx.array, entry: Entry) -> mx.array:
        """`x` [B, T, C] to [B, T, C]."""
        out = self.attn(self._norm("ln1", x), entry)
        x = self._residual(x) + self._norm("ln1_post", out)
        out = self.mlp(self._norm("ln2", x))
        return self._residual(x) + self._norm("ln2_post", out)

    def _norm(self, name: str, x: mx.array) -> mx.array:
        return self[name](x) if name in self else x

    def _residual(self, x: mx.array) -> mx.array:
        return x if self.residual_scale == 1 else self.residual_scale * x
