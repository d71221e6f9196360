"""Which layers own keys and values, and of what shape. It knows nothing of how they are kept."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx

from tinygpt.ops.rope import RopeConfig


@dataclass(frozen=True, slots=True)
class LayerLayout:
    """One owning layer. `window` is the layer's own sliding window in tokens, None for all.

    `rope` None: keys and queries arrive with their positions already in them. `softcap` bounds the
    scores to ± its value by a tanh (Gemma 2, arXiv 2408.00118), None does not. `value_dim` is the
    width of a value where it is not the keys' `head_dim`.
    """

    kv_heads: int
    head_dim: int
    rope: RopeConfig | None
    window: int | None = None
    softcap: float | None = None
    value_dim: int | None = None

    @property
    def value_width(self) -> int:
        """How many channels a value has."""
        return self.head_dim if self.value_dim is None else self.value_dim


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """The owning layers in order, the model's compute type, and its half-precision type."""

    layers: tuple[LayerLayout, ...]
    dtype: mx.Dtype = mx.float32
    half: mx.Dtype = mx.float16
