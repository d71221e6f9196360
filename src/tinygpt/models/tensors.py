"""Which tensors a model has, and their shapes: what a reader checks and a writer writes."""

from __future__ import annotations

from collections.abc import Iterator

from tinygpt.models.config import ModelConfig

Shaped = tuple[str, tuple[int, ...]]


def tensor_shapes(config: ModelConfig) -> Iterator[Shaped]:
    """Every tensor's canonical name and shape; linear weights are [out, in]."""
    dim = config.model_dim
    yield "token_embedding.weight", (config.vocab_size, dim)
    if config.rope is None:
        yield "position_embedding.weight", (config.context, dim)
    if config.embedding_norm:
        yield "embed_norm.weight", (dim,)
    for layer in range(config.layers):
        for name, shape in layer_shapes(config):
            yield f"blocks.{layer}.{name}", shape
    yield from _norm(config, "ln_final", dim)
    if not config.tie_embeddings:
        yield "lm_head.weight", (config.vocab_size, dim)


def layer_shapes(config: ModelConfig) -> Iterator[Shaped]:
    """The tensors of one block, named from `ln1` or `attn` on; all blocks have the same."""
    for name in norm_names(config):
        yield from _norm(config, name, config.model_dim)
    yield from _attention(config)
    yield from _mlp(config)


def norm_names(config: ModelConfig) -> tuple[str, ...]:
    """The norms of a block, in the order in which it applies them."""
    names = {
        "pre": ("ln1", "ln2"),
        "post": ("ln1_post", "ln2_post"),
        "sandwich": ("ln1", "ln1_post", "ln2", "ln2_post"),
    }
    return names[config.block_norms]


def _attention(config: ModelConfig) -> Iterator[Shaped]:
    dim, head_dim = config.model_dim, config.head_dim
    queries, keys = config.heads * head_dim, config.kv_heads * head_dim
    for part, rows in (("q", queries), ("k", keys), ("v", keys)):
        yield from _linear(f"attn.{part}_proj", rows, dim, config.attention_bias)
    yield from _linear("attn.o_proj", dim, queries, config.has_output_bias)
    if config.qk_norm != "none":
        per_head = config.qk_norm == "head"
        yield "attn.q_norm.weight", (head_dim if per_head else queries,)
        yield "attn.k_norm.weight", (head_dim if per_head else keys,)


def _mlp(config: ModelConfig) -> Iterator[Shaped]:
    dim, hidden, bias = config.model_dim, config.mlp_dim, config.mlp_bias
    if config.mlp == "gelu":
        yield from _linear("mlp.fc_in", hidden, dim, bias)
        yield from _linear("mlp.fc_out", dim, hidden, bias)
        return
    yield from _linear("mlp.gate_proj", hidden, dim, bias)
    yield from _linear("mlp.up_proj", hidden, dim, bias)
    yield from _linear("mlp.down_proj", dim, hidden, bias)


def _linear(name: str, rows: int, columns: int, bias: bool) -> Iterator[Shaped]:
    yield f"{name}.weight", (rows, columns)
    if bias:
        yield f"{name}.bias", (rows,)


def _norm(config: ModelConfig, name: str, size: int) -> Iterator[Shaped]:
    yield f"{name}.weight", (size,)
    if config.norm == "layernorm":
        yield f"{name}.bias", (size,)
