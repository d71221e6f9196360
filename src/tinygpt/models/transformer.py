"""One decoder for every family; what differs between them is in `ModelConfig`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import mlx.core as mx
import numpy as np
from mlx import nn

from tinygpt.cache import CacheLayout, CacheSpec, KVCache, LayerLayout
from tinygpt.cache.rows import Rows
from tinygpt.errors import CacheError, CheckpointError, ConfigError
from tinygpt.models.config import ModelConfig
from tinygpt.models.layers import Block, Entry, make_norm, make_rms_norm

Ids = Sequence[int] | Sequence[Sequence[int]] | np.ndarray  # that the host knows


class Transformer(nn.Module):
    """The decoder that `config` describes with `weights`, named as in `.tinygpt` files.

    A linear layer or the token embedding may come packed, as `weight`, `scales` and `biases`, in
    groups and bits of its own.
    `half` is the type of what a packed cache does not pack.

    Raises:
        CheckpointError: a weight is missing, unexpected, or of a shape the configuration excludes.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: dict[str, mx.array],
        *,
        half: mx.Dtype = mx.float16,
    ) -> None:
        super().__init__()
        self.config, self._half = config, half
        self.token_embedding = nn.Embedding(config.vocab_size, config.model_dim)
        if config.rope is None:
            self.position_embedding = nn.Embedding(config.context, config.model_dim)
        if config.embedding_norm:
            self.embed_norm = make_rms_norm(config, config.model_dim)
        self.blocks = [Block(config) for _ in range(config.layers)]
        self.ln_final = make_norm(config)
        if not config.tie_embeddings:
            self.lm_head = nn.Linear(config.model_dim, config.vocab_size, bias=False)
        self._load(weights)
        self.freeze()

    def _load(self, weights: dict[str, mx.array]) -> None:
        if any(name.endswith(".scales") for name in weights):
            nn.quantize(self, class_predicate=lambda name, layer: _packing(weights, name, layer))
        try:
            self.load_weights(list(weights.items()), strict=True)
        except ValueError as error:
            reason = " ".join(str(error).split())
            raise CheckpointError(f"the weights do not fit the model: {reason}") from None

    @property
    def dtype(self) -> mx.Dtype:
        """The compute type: that of the norms, which are never packed."""
        weight: mx.array = self.ln_final.weight
        return weight.dtype

    def cache_layout(self, tokens: int | None = None) -> CacheLayout:
        """Which layers own keys and values, for `KVCache`; see the function of this name."""
        return cache_layout(self.config, self.dtype, self._half, tokens)

    def __call__(
        self, ids: mx.array | Ids, cache: KVCache | None = None, *, last: int | None = None
    ) -> mx.array:
        """Logits [B, T, V] in float32 for `ids` [B, T]; `last` N gives [B, N, V] for the last N.

        Without a cache the tokens are a text of their own. Ids that the host knows, in a list or a
        NumPy array, are checked; those of an MLX array must be in the vocabulary.

        Raises:
            ConfigError: an id is not in the vocabulary.
            CacheError: a learned position past the model's context.
        """
        if not isinstance(ids, mx.array):
            check_ids(ids, self.config.vocab_size)
            ids = mx.array(np.asarray(ids))
        if cache is None:
            cache = KVCache(CacheSpec(), self.cache_layout(ids.shape[1]))
        x = self.hidden(ids, cache)
        return self.logits(x if last is None else x[:, -last:])

    def hidden(self, ids: mx.array, cache: KVCache | Rows) -> mx.array:
        """What the last block gives, [B, T, C], for `ids` [B, T], the next tokens of `cache`.

        Raises:
            CacheError: a learned position past the model's context.
        """
        x = self._embed(ids, cache.spans(ids.shape[1]))
        entries: Sequence[Entry] = cache.layers
        for block, entry in zip(self.blocks, entries, strict=True):
            x = block(x, entry)
        cache.commit()
        return x

    def logits(self, x: mx.array) -> mx.array:
        """Logits [B, T, V] in float32 of the last block's `x` [B, T, C]."""
        x = self.ln_final(x)
        tied = self.config.tie_embeddings
        logits: mx.array = self.token_embedding.as_linear(x) if tied else self.lm_head(x)
        logits = logits.astype(mx.float32)
        cap = self.config.logit_softcap
        return logits if cap is None else cap * mx.tanh(logits / cap)

    def _embed(self, ids: mx.array, spans: Sequence[tuple[int, int]]) -> mx.array:
        x: mx.array = self.token_embedding(ids)
        if self.config.embedding_scale != 1:
            x = x * self.config.embedding_scale
        if self.config.embedding_norm:
            x = self.embed_norm(x)
        if self.config.rope is not None:
            return x
        end = max(end for _, end in spans)
        if end > self.config.context:  # a gather past the table would return foreign memory
            raise CacheError(
                f"position {end - 1} does not exist: this model has {self.config.context} learned "
                "positions; bound the cache with --streaming-llm-window"
            )
        rows = [self.position_embedding.weight[first:end] for first, end in spans]
        return x + (rows[0] if len(rows) == 1 else mx.concatenate(rows))


def check_ids(ids: Ids, vocab_size: int) -> None:
    """Refuse ids past the vocabulary: a gather with them would read foreign memory.

    Raises:
        ConfigError: naming the first of them.
    """
    array = np.asarray(ids)
    bad = array[(array < 0) | (array >= vocab_size)]
    if bad.size:
        raise ConfigError(
            f"token {bad.flat[0]} is not in the vocabulary: ids go from 0 to {vocab_size - 1}; was "
            "the text encoded with this model's tokenizer?"
        )


def _packing(
    weights: dict[str, mx.array], name: str, layer: nn.Module
) -> dict[str, int] | Literal[False]:
    """Group and bits of the layer `name`, False where it is not packed."""
    scales = weights.get(f"{name}.scales")
    if scales is None or not hasattr(layer, "to_quantized"):
        return False
    inputs, words = layer.weight.shape[-1], weights[f"{name}.weight"].shape[-1]
    return {"group_size": inputs // scales.shape[-1], "bits": 32 * words // inputs}


def cache_layout(
    config: ModelConfig, dtype: mx.Dtype, half: mx.Dtype, tokens: int | None = None
) -> CacheLayout:
    """The cache layout of a model that is not loaded yet.

    `tokens` is how long the text is going to be, or how much of it the cache holds: some rotations
    depend on it (`RopeConfig.for_length`). None: as long as the model's context.
    """
    length = config.context if tokens is None else tokens

    def layer(index: int) -> LayerLayout:
        rope = config.layer_rope(index)
        return LayerLayout(
            config.kv_heads,
            config.head_dim,
            None if rope is None else rope.for_length(length),
            config.layer_window(index),
            config.attention_softcap,
        )

    return CacheLayout(tuple(map(layer, range(config.layers))), dtype, half)
