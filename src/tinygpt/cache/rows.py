"""Caches of several texts as one cache for a forward over all of them, laid end to end."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import mlx.core as mx

from tinygpt.cache.kv_cache import KVCache
from tinygpt.cache.layer_cache import LayerCache


class Rows:
    """`counts` new tokens, at least one, for each of `caches`, as one row [1, ΣT] of a model.

    Linear layers see one batch; keys, values and queries go to the row's own cache, whose borders
    and positions are what they would be if it were alone. (Padding on the left would move them.)
    """

    def __init__(self, caches: Sequence[KVCache], counts: Sequence[int]) -> None:
        self._caches, self._counts = caches, counts
        cuts = list(itertools.accumulate(counts))[:-1]
        by_layer = zip(*(cache.layers for cache in caches), strict=True)
        self.layers = [LayerRows(layers, cuts) for layers in by_layer]

    def spans(self, count: int) -> list[tuple[int, int]]:
        """The positions, from and to, of each row's new tokens; `count` is how many in all."""
        assert count == sum(self._counts)
        firsts = [cache.position for cache in self._caches]
        return [(at, at + n) for at, n in zip(firsts, self._counts, strict=True)]

    def commit(self) -> None:
        """See KVCache."""
        for cache in self._caches:
            cache.commit()


class LayerRows:
    """One layer of `Rows`; the tokens of row b end where `cuts[b]` says."""

    def __init__(self, layers: Sequence[LayerCache], cuts: Sequence[int]) -> None:
        self._layers, self._cuts = layers, list(cuts)

    def append(self, keys: mx.array, values: mx.array) -> None:
        """Take `keys` [1, H_kv, ΣT, D] and `values` [1, H_kv, ΣT, D_v]."""
        of_rows = (mx.split(array, self._cuts, axis=2) for array in (keys, values))
        for layer, own_keys, own_values in zip(self._layers, *of_rows, strict=True):
            layer.append(own_keys, own_values)

    def attend(self, queries: mx.array, scale: float, *, extra: mx.array | None = None) -> mx.array:
        """Attention of `queries` [1, H, ΣT, D], each to its own row: `[1, H, ΣT, D_v]`."""
        of_rows = zip(self._layers, mx.split(queries, self._cuts, axis=2), strict=True)
        outs = [layer.attend(own, scale, extra=extra) for layer, own in of_rows]
        return mx.concatenate(outs, axis=2)
