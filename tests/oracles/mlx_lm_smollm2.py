"""SmolLM2 in mlx-lm's own model code, from the same file but by another way than our loader."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx

LAYERS, HEADS, KV_HEADS, HEAD_DIM = 30, 9, 3, 64
BLOCK = 32  # GGUF weights that share a scale
LINEAR = {
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}


def load(path: Path):  # type: ignore[no-untyped-def]
    """mlx-lm's `llama.Model` in float32; needs mlx-lm."""
    from mlx_lm.models.llama import Model, ModelArgs

    packed = mx.load(str(path))
    weights = {
        "model.embed_tokens.weight": _dequantised(packed, "token_embd"),
        "model.norm.weight": _dequantised(packed, "output_norm"),
    }
    for i in range(LAYERS):
        source, target = f"blk.{i}", f"model.layers.{i}"
        for theirs, name in LINEAR.items():
            weights[f"{target}.{name}.weight"] = _dequantised(packed, f"{source}.{theirs}")
        for part, heads in (("q", HEADS), ("k", KV_HEADS)):
            rows = _dequantised(packed, f"{source}.attn_{part}")
            weights[f"{target}.self_attn.{part}_proj.weight"] = _unpermuted(rows, heads)
    model = Model(
        ModelArgs(
            model_type="llama",
            hidden_size=HEADS * HEAD_DIM,
            num_hidden_layers=LAYERS,
            intermediate_size=1536,
            num_attention_heads=HEADS,
            num_key_value_heads=KV_HEADS,
            rms_norm_eps=1e-5,
            vocab_size=49152,
            rope_theta=100000,
            tie_word_embeddings=True,
        )
    )
    model.load_weights(list(weights.items()), strict=True)
    mx.eval(model.parameters())
    return model


def _dequantised(packed: dict[str, mx.array], name: str) -> mx.array:
    weight = packed[f"{name}.weight"]
    if f"{name}.scales" not in packed:
        return weight.astype(mx.float32)
    scales = packed[f"{name}.scales"].astype(mx.float32)
    biases = packed[f"{name}.biases"].astype(mx.float32)
    bits = 32 * weight.shape[-1] // (scales.shape[-1] * BLOCK)
    return mx.dequantize(weight, scales, biases, group_size=BLOCK, bits=bits)


def _unpermuted(rows: mx.array, heads: int) -> mx.array:
    """Undo llama.cpp's order of a head's rows, in which rotary pairs are neighbours."""
    return rows.reshape(heads, HEAD_DIM // 2, 2, -1).swapaxes(1, 2).reshape(heads * HEAD_DIM, -1)
