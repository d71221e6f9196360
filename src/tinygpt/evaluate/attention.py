"""Where a model looks: the attention weights that its layers give, computed beside the real ones.

A watch stands between each layer and its cache entry; it takes the queries and keys on their way
and works the weights out by the definition, one head's full matrix, which the cache never does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import mlx.core as mx
import numpy as np

from tinygpt.cache import CacheSpec, KVCache, LayerCache, LayerLayout
from tinygpt.models.transformer import Transformer
from tinygpt.ops.rope import rotate, rotation


@dataclass(frozen=True, slots=True)
class AttentionMaps:
    """`sink_mass` [layers, H]: the share of attention that goes to the first `sinks` tokens,
    averaged over the later half of the text. `weights` [T, T]: one layer's, averaged over heads,
    row by query."""

    sink_mass: np.ndarray
    weights: np.ndarray
    sinks: int
    layer: int


class Watch:
    """Passes a layer's queries, keys and values on to `entry`; `weights` is [H, T, T] afterwards.

    For one text, fed in one piece.
    """

    def __init__(self, entry: LayerCache, layout: LayerLayout) -> None:
        self._entry, self._layout = entry, layout
        self._keys: mx.array | None = None
        self.weights: mx.array | None = None

    @property
    def seen(self) -> int:
        """Tokens appended."""
        return self._entry.seen

    def append(self, keys: mx.array, values: mx.array) -> None:
        """See LayerCache."""
        self._keys = keys[0]
        self._entry.append(keys, values)

    def attend(self, queries: mx.array, scale: float) -> mx.array:
        """See LayerCache."""
        assert self._keys is not None
        self.weights = attention_weights(queries[0], self._keys, scale, self._layout)
        return self._entry.attend(queries, scale)

    def commit(self) -> None:
        """See LayerCache."""
        self._entry.commit()

    def arrays(self) -> dict[str, mx.array]:
        """See LayerCache."""
        return self._entry.arrays()


def attention_weights(
    queries: mx.array, keys: mx.array, scale: float, layout: LayerLayout
) -> mx.array:
    """Weights [H, T, T] of `queries` [H, T, D] on `keys` [H_kv, T, D], none rotated yet."""
    heads, tokens, _ = queries.shape
    if layout.rope is not None:
        turn = rotation(layout.rope, np.arange(tokens))
        queries, keys = rotate(queries, turn), rotate(keys, turn)
    keys = mx.repeat(keys, heads // layout.kv_heads, axis=0)
    scores = scale * (queries.astype(mx.float32) @ keys.astype(mx.float32).swapaxes(1, 2))
    if layout.softcap is not None:
        scores = layout.softcap * mx.tanh(scores / layout.softcap)
    seen = mx.array(kept(tokens, 0, layout.window or tokens))
    return mx.softmax(mx.where(seen, scores, -mx.inf), axis=-1)


def kept(tokens: int, sinks: int, window: int) -> np.ndarray:
    """Which keys a query sees in a cache of `sinks` + `window`: boolean [T, T], query by key."""
    query, key = np.arange(tokens)[:, None], np.arange(tokens)[None, :]
    return (key <= query) & ((key < sinks) | (query - key < window))


def watch(model: Transformer, ids: Sequence[int], sinks: int, layer: int) -> AttentionMaps:
    """The attention of `model` over the text `ids`, seen whole."""
    cache = KVCache(CacheSpec(), model.cache_layout())
    watches = [
        Watch(entry, layout)
        for entry, layout in zip(cache.layers, cache.layout.layers, strict=True)
    ]
    cache.layers = cast(list[LayerCache], watches)
    model(mx.array([list(ids)]), cache, last=1)
    masses = []
    for one in watches:
        assert one.weights is not None
        later = one.weights[:, len(ids) // 2 :, :sinks]  # [H, T/2, sinks]
        masses.append(np.array(later.sum(axis=-1).mean(axis=-1)))
    chosen = watches[layer].weights
    assert chosen is not None
    return AttentionMaps(np.stack(masses), np.array(chosen.mean(axis=0)), sinks, layer)
