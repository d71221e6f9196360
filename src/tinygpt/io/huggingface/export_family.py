"""ModelConfig and our tensor names in the words of Hugging Face, for models it can express exactly.

The family is chosen by what the model is, not by its name: a model without anything special is a
Llama wherever it came from. What no family here expresses is refused, never approximated.
"""

from __future__ import annotations

from tinygpt.errors import UnsupportedError
from tinygpt.models.config import ModelConfig
from tinygpt.ops.rope import RopeConfig

_CLASSES = {
    "llama": "LlamaForCausalLM",
    "olmo2": "Olmo2ForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "smollm3": "SmolLM3ForCausalLM",
}
_SCALINGS = (None, "linear", "llama3")
_GLOBAL_NAMES = {
    "token_embedding.weight": "model.embed_tokens.weight",
    "ln_final.weight": "model.norm.weight",
    "lm_head.weight": "lm_head.weight",
}
_NORMS = {
    "ln1": "input_layernorm",
    "ln2": "post_attention_layernorm",
    "ln1_post": "post_attention_layernorm",  # where there is no ln2
    "ln2_post": "post_feedforward_layernorm",
}


def config_for_hf(config: ModelConfig) -> dict[str, object]:
    """The config.json of the model, without what its tokenizer and weights add.

    Raises:
        UnsupportedError: no family expresses the model, with the reason.
    """
    family = hf_family(config)
    assert config.rope is not None
    values: dict[str, object] = {
        "architectures": [_CLASSES[family]],
        "model_type": family,
        "vocab_size": config.vocab_size,
        "hidden_size": config.model_dim,
        "intermediate_size": config.mlp_dim,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.context,
        "hidden_act": "silu",
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope.base,
        "rope_scaling": _rope_scaling(config.rope),
        "tie_word_embeddings": config.tie_embeddings,
        "attention_bias": config.attention_bias,
        "mlp_bias": config.mlp_bias,
    }
    if config.rope_layers is not None:
        values["no_rope_layers"] = [int(rotates) for rotates in config.rope_layers]
    return values


def name_for_hf(name: str) -> str:
    """The name there of one of our tensors."""
    if name in _GLOBAL_NAMES:
        return _GLOBAL_NAMES[name]
    _, layer, part, rest = name.split(".", 3)
    inner = {"attn": "self_attn", **_NORMS}.get(part, part)
    return f"model.layers.{layer}.{inner}.{rest}"


def hf_family(config: ModelConfig) -> str:
    """The `model_type` that computes exactly this model.

    Raises:
        UnsupportedError: none does, with the reason.
    """
    reason = _unlike_all(config)
    if reason is None:
        for family, fits in _FITS.items():
            if fits(config):
                return family
        reason = "no family has its biases, norms and positions together"
    raise UnsupportedError(
        f"--to hf: this model cannot be expressed exactly in a Hugging Face directory: {reason}"
    )


def _unlike_all(config: ModelConfig) -> str | None:
    """Something that no family here has, or None."""
    rope = config.rope
    if rope is None:
        return "it has learned positions, with LayerNorm and the exact GELU where GPT-2 has tanh"
    found = {
        f"its norms are {config.norm}": config.norm != "rmsnorm",
        f"its MLP is {config.mlp}": config.mlp != "swiglu",
        "its residual stream is scaled (DeepNorm)": config.deepnorm,
        "its embeddings are normalised": config.embedding_norm,
        "its embeddings are scaled": config.embedding_scale != 1,
        "its attention has a scale of its own": config.attention_scale is not None,
        "its attention scores are soft-capped": config.attention_softcap is not None,
        "its logits are soft-capped": config.logit_softcap is not None,
        "its norm weights have an offset": config.norm_offset != 0,
        # Transformers' Mistral has one, mlx-lm loads it as a model without.
        "its layers have a sliding window": config.sliding_window is not None,
        "its layers rotate differently": config.local_rope is not None,
        "its RoPE pairs neighbours": rope.traditional,
        f"only {rope.dims} of {config.head_dim} dimensions rotate": rope.dims != config.head_dim,
        "its RoPE scaling is not linear or llama3": _scaling_kind(rope) not in _SCALINGS,
    }
    return next((reason for reason, holds in found.items() if holds), None)


def _fits_llama(config: ModelConfig) -> bool:
    return _pre_norm(config) and config.has_output_bias == config.attention_bias


def _fits_qwen2(config: ModelConfig) -> bool:
    only_qkv = config.attention_bias and not (config.has_output_bias or config.mlp_bias)
    return _pre_norm(config) and only_qkv and config.heads * config.head_dim == config.model_dim


def _fits_qwen3(config: ModelConfig) -> bool:
    return _pre_norm(config, "head") and _no_bias(config)


def _fits_olmo2(config: ModelConfig) -> bool:
    post = config.block_norms == "post" and config.qk_norm == "projection"
    return post and config.rope_layers is None and _no_bias(config)


def _fits_smollm3(config: ModelConfig) -> bool:
    pre = config.block_norms == "pre" and config.qk_norm == "none"
    return pre and config.rope_layers is not None and _no_bias(config)


def _pre_norm(config: ModelConfig, qk_norm: str = "none") -> bool:
    """Norms in front, `qk_norm` on queries and keys, and all layers rotate."""
    pre = config.block_norms == "pre" and config.qk_norm == qk_norm
    return pre and config.rope_layers is None


def _no_bias(config: ModelConfig) -> bool:
    return not (config.attention_bias or config.has_output_bias or config.mlp_bias)


_FITS = {
    "llama": _fits_llama,
    "qwen2": _fits_qwen2,
    "qwen3": _fits_qwen3,
    "olmo2": _fits_olmo2,
    "smollm3": _fits_smollm3,
}


def _scaling_kind(rope: RopeConfig) -> str | None:
    return None if rope.scaling is None else rope.scaling.kind


def _rope_scaling(rope: RopeConfig) -> dict[str, object] | None:
    scaling = rope.scaling
    if scaling is None:
        return None
    values: dict[str, object] = {"rope_type": scaling.kind, "factor": scaling.factor}
    if scaling.kind == "llama3":
        values |= {
            "low_freq_factor": scaling.low_freq_factor,
            "high_freq_factor": scaling.high_freq_factor,
            "original_max_position_embeddings": scaling.original_context,
        }
    return values
