"""What a decoder looks like. One frozen description serves every file format and every family."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tinygpt.errors import ConfigError
from tinygpt.ops.rope import RopeConfig


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """One decoder-only transformer. Sizes are numbers of elements, `context` is tokens.

    Raises:
        ConfigError: a size that is not positive, or sizes that do not fit together.
    """

    architecture: str
    vocab_size: int
    layers: int
    model_dim: int
    mlp_dim: int
    heads: int
    kv_heads: int
    head_dim: int
    context: int
    norm: Literal["layernorm", "rmsnorm"] = "layernorm"
    norm_eps: float = 1e-5
    mlp: Literal["gelu", "swiglu"] = "gelu"
    attention_bias: bool = True
    mlp_bias: bool = True
    tie_embeddings: bool = True
    rope: RopeConfig | None = None  # None: a learned position table of `context` rows
    sliding_window: int | None = None  # tokens a query sees, itself included
    deepnorm: bool = False  # the residual stream is scaled by (2·layers)^(1/4)
    embedding_norm: bool = False  # RMSNorm on token embeddings

    def __post_init__(self) -> None:
        sizes = ("vocab_size", "layers", "model_dim", "mlp_dim", "heads", "kv_heads", "head_dim")
        for name in (*sizes, "context"):
            value = getattr(self, name)
            if value < 1:
                raise ConfigError(f"{name} is {value}; it must be at least 1")
        if self.heads % self.kv_heads:
            raise ConfigError(
                f"{self.heads} heads cannot share {self.kv_heads} kv-heads: "
                "the number of heads must be a multiple of the number of kv-heads"
            )
        if self.sliding_window is not None and self.sliding_window < 1:
            raise ConfigError(f"sliding_window is {self.sliding_window}; it must be at least 1")
        rope = self.rope
        if rope is not None and (rope.dims % 2 or not 2 <= rope.dims <= self.head_dim):
            raise ConfigError(
                f"rope dims is {rope.dims}; it must be even and from 2 to head_dim {self.head_dim}"
            )

    @property
    def residual_scale(self) -> float:
        """What the residual stream is multiplied by before a sub-layer's output is added."""
        return float((2 * self.layers) ** 0.25) if self.deepnorm else 1.0
