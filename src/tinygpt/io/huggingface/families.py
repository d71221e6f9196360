"""The families of Hugging Face models: how they differ, and what they leave out of config.json."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from tinygpt.io.huggingface.rope import RopeDefaults

# How a family's layers get their sliding window, where config.json has no `layer_types`.
#   none        no layer has one
#   all         every layer, if there is a `sliding_window`
#   upper       with `use_sliding_window`: the layers from `max_window_layers` on (Qwen)
#   unrotated   with `use_sliding_window`: the layers without rope (SmolLM3)
#   pattern     all but every `sliding_window_pattern`-th (Gemma)
Windows = Literal["none", "all", "upper", "unrotated", "pattern"]


@dataclass(frozen=True, slots=True)
class Family:
    """One value of `model_type`. `sizes` are what config.json may leave out."""

    architecture: str  # the class that config.json names in `architectures`
    context: int
    norm_eps: float = 1e-6
    sizes: dict[str, int] = field(default_factory=dict)
    rope: RopeDefaults = field(default_factory=RopeDefaults)
    activation_key: str = "hidden_act"
    activation: str = "silu"
    biases: Literal["none", "qkv", "config"] = "config"  # config: of all four, `attention_bias`
    mlp_biases: bool = False  # config.json may ask for them by `mlp_bias`
    block_norms: Literal["pre", "post", "sandwich"] = "pre"
    qk_norm: Literal["none", "head", "projection"] = "none"
    fused: bool = False  # qkv_proj and gate_up_proj
    windows: Windows = "none"
    window: int | None = None  # where config.json has no `sliding_window`
    pattern: int = 0
    no_rope_interval: int = 0  # every so many-th layer does not rotate, 0: all do
    is_gemma: bool = False  # norms by weight + 1, embeddings times √model_dim, own score scale
    attention_softcap: float | None = None
    logit_softcap: float | None = None


_GEMMA2 = Family(
    "Gemma2ForCausalLM",
    8192,
    sizes={"head_dim": 256, "num_attention_heads": 8, "num_key_value_heads": 4},
    activation_key="hidden_activation",
    activation="gelu_pytorch_tanh",
    block_norms="sandwich",
    windows="pattern",
    window=4096,
    pattern=2,
    is_gemma=True,
    attention_softcap=50.0,
    logit_softcap=30.0,
)
_GEMMA3 = Family(
    "Gemma3ForCausalLM",
    131072,
    sizes={**_GEMMA2.sizes, "vocab_size": 262208},
    rope=RopeDefaults(1e6, local_base=1e4),
    activation_key="hidden_activation",
    activation="gelu_pytorch_tanh",
    block_norms="sandwich",
    qk_norm="head",
    windows="pattern",
    window=4096,
    pattern=6,
    is_gemma=True,
)
FAMILIES = {
    "llama": Family("LlamaForCausalLM", 2048, mlp_biases=True),
    "mistral": Family("MistralForCausalLM", 131072, biases="none", windows="all", window=4096),
    "smollm3": Family(
        "SmolLM3ForCausalLM",
        32768,
        rope=RopeDefaults(2e6),
        mlp_biases=True,
        windows="unrotated",
        no_rope_interval=4,
    ),
    "qwen2": Family("Qwen2ForCausalLM", 32768, biases="qkv", windows="upper", window=4096),
    "qwen3": Family(
        "Qwen3ForCausalLM",
        32768,
        sizes={"head_dim": 128},
        qk_norm="head",
        windows="upper",
        window=4096,
    ),
    "phi3": Family(
        "Phi3ForCausalLM",
        4096,
        norm_eps=1e-5,
        rope=RopeDefaults(yarn_is_longrope=True),
        biases="none",
        fused=True,
        windows="all",
    ),
    "gemma2": _GEMMA2,
    "gemma3_text": _GEMMA3,
    "olmo2": Family(
        "Olmo2ForCausalLM", 2048, norm_eps=1e-5, block_norms="post", qk_norm="projection"
    ),
}
WRAPPERS = {"gemma3": ("Gemma3ForConditionalGeneration", "gemma3_text")}
