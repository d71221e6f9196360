"""What a decoder looks like. One frozen description serves every file format and every family."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tinygpt.errors import ConfigError
from tinygpt.ops.rope import RopeConfig

SIZES = (
    "vocab_size",
    "layers",
    "model_dim",
    "mlp_dim",
    "heads",
    "kv_heads",
    "head_dim",
    "context",
)


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """One decoder-only transformer. Sizes are numbers of elements, `context` is tokens.

    The defaults are the classic model: LayerNorm in front, GELU, learned positions, biases.

    Raises:
        ConfigError: a size or a factor that is not positive, or sizes that do not fit together.
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
    mlp: Literal["gelu", "swiglu", "geglu"] = "gelu"  # geglu: gated by the tanh form of GELU
    attention_bias: bool = True  # of q, k, v, and of o where output_bias is None
    mlp_bias: bool = True
    tie_embeddings: bool = True
    rope: RopeConfig | None = None  # None: a learned position table of `context` rows
    sliding_window: int | None = None  # tokens a query sees, itself included
    deepnorm: bool = False  # the residual stream is scaled by (2·layers)^(1/4)
    embedding_norm: bool = False  # RMSNorm on token embeddings
    output_bias: bool | None = None  # of o_proj, where it differs from attention_bias (Qwen2)
    norm_offset: float = 0.0  # added to the weight of every RMSNorm (1 in Gemma's own files)
    # Norms of a block. pre: ln1 and ln2 before attention and MLP; post: ln1_post and ln2_post
    # after them, inside the residual (OLMo 2); sandwich: all four (Gemma 2 and 3).
    block_norms: Literal["pre", "post", "sandwich"] = "pre"
    # RMSNorm of queries and keys, attn.q_norm and attn.k_norm, before they are rotated. head:
    # [head_dim], shared by the heads (Qwen3, Gemma 3); projection: [heads·head_dim] (OLMo 2).
    qk_norm: Literal["none", "head", "projection"] = "none"
    embedding_scale: float = 1.0  # what token embeddings are multiplied by (Gemma: √model_dim)
    attention_scale: float | None = None  # what scores are multiplied by; None: head_dim^-½
    attention_softcap: float | None = None  # scores s become c·tanh(s/c) before the mask
    logit_softcap: float | None = None  # the same for the logits
    sliding_layers: tuple[bool, ...] | None = None  # which layers have the window; None: all
    rope_layers: tuple[bool, ...] | None = None  # which layers rotate; None: all (SmolLM3: not)
    local_rope: RopeConfig | None = None  # rope of the layers with a window, None: `rope`

    def __post_init__(self) -> None:
        for name in SIZES:
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
        for rope in (self.rope, self.local_rope):
            if rope is not None and (rope.dims % 2 or not 2 <= rope.dims <= self.head_dim):
                raise ConfigError(
                    f"rope dims is {rope.dims}; it must be even and from 2 to head_dim "
                    f"{self.head_dim}"
                )
        for name in ("embedding_scale", "attention_scale", "attention_softcap", "logit_softcap"):
            factor = getattr(self, name)
            if factor is not None and not factor > 0:
                raise ConfigError(f"{name} is {factor}; it must be positive")
        self._check_layers()

    def _check_layers(self) -> None:
        for name in ("sliding_layers", "rope_layers"):
            value = getattr(self, name)
            if value is not None and len(value) != self.layers:
                raise ConfigError(f"{name} has {len(value)} entries for {self.layers} layers")
        if self.rope is None and (self.local_rope or self.rope_layers):
            raise ConfigError("local_rope and rope_layers need a rope: rope is None")

    @property
    def residual_scale(self) -> float:
        """What the residual stream is multiplied by before a sub-layer's output is added."""
        return float((2 * self.layers) ** 0.25) if self.deepnorm else 1.0

    @property
    def score_scale(self) -> float:
        """What the product of a query and a key is multiplied by."""
        return self.head_dim**-0.5 if self.attention_scale is None else self.attention_scale

    @property
    def has_output_bias(self) -> bool:
        """Whether o_proj has a bias."""
        return self.attention_bias if self.output_bias is None else self.output_bias

    def layer_window(self, layer: int) -> int | None:
        """The sliding window of a layer in tokens, None where it sees all."""
        sliding = self.sliding_layers is None or self.sliding_layers[layer]
        return self.sliding_window if sliding else None

    def layer_rope(self, layer: int) -> RopeConfig | None:
        """How a layer rotates, None where it does not."""
        if self.rope_layers is not None and not self.rope_layers[layer]:
            return None
        local = self.local_rope is not None and self.layer_window(layer) is not None
        return self.local_rope if local else self.rope
