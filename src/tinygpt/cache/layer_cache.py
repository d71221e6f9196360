"""One layer's keys and values: positions in front, a storage behind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from tinygpt.cache.layout import LayerLayout
from tinygpt.cache.step import Step, Timeline
from tinygpt.cache.storage.base import Storage
from tinygpt.errors import CacheError
from tinygpt.ops.attention import View, attend
from tinygpt.ops.scoring import Observe, Scoring


@dataclass(frozen=True, slots=True)
class LayerState:
    """One layer's buffers by name, and what cannot be told from the number of tokens seen.

    `chosen` [N, m] are the tokens that `keep` kept, `dropped` how many it did not.
    """

    arrays: Mapping[str, mx.array]
    batch: int | None
    chosen: mx.array | None = None
    dropped: int = 0


class LayerCache:
    """`append` takes un-rotated keys, `attend` un-rotated queries of the same step.

    `seen` counts the tokens appended and not undone. Arrays are `[B, H, T, D]`. Several layers may
    attend to what one has appended, each with queries and a scale of its own.

    While `observe` is set, `mass` is what the last `attend` found: the weights that keys got, as
    `ops.scoring.Observe` says but `[B, H, …]`; `key_numbers` says which tokens they are of.
    """

    def __init__(
        self, timeline: Timeline, storage: Storage, layout: LayerLayout, dtype: mx.Dtype
    ) -> None:
        self._timeline, self._storage, self._layout = timeline, storage, layout
        self._dtype = dtype
        self._now: tuple[Step, View] | None = None
        self._batch: int | None = None
        self._chosen: mx.array | None = None  # [N, m]: the numbers of the tokens that were kept
        self._dropped = 0  # how many tokens fewer the storage counts since then
        self.seen = 0
        self.observe: Observe | None = None
        self.mass: mx.array | None = None

    def append(self, keys: mx.array, values: mx.array) -> None:
        """Take `keys` [B, H_kv, T, D] and `values` [B, H_kv, T, D_v], T ≥ 1: tokens from `seen` on.

        Raises:
            CacheError: the arrays have another shape.
        """
        self._now = None  # a view that is still held would make the next write copy its buffer
        n_rows, tokens = self._checked(keys, values)
        step = self._timeline.step(self.seen, tokens)
        keys = step.rotate_keys(keys).reshape(n_rows, tokens, -1)  # [N, T, D]
        values = values.reshape(n_rows, tokens, -1)  # [N, T, D_v]
        self._now = step, self._storage.append(keys, values, step.shifted(self._dropped))
        self.seen = step.end

    def attend(self, queries: mx.array, scale: float, *, extra: mx.array | None = None) -> mx.array:
        """Attention of `queries` [B, H, t, D] to all that they see: `[B, H, t, D_v]`, compute type.

        They are those of the last t ≤ T tokens appended. `extra` [H] is a logit beyond the keys,
        see `ops.scoring.Scoring`.

        Raises:
            CacheError: there was no append for this step, or the queries do not fit it.
        """
        step, view = self._checked_queries(queries)
        batch, heads, tokens, _ = queries.shape
        kv_heads = self._layout.kv_heads
        by_kv_head = batch * kv_heads, heads // kv_heads, tokens, -1  # [N, G, t, D]
        turned, from_sinks = step.rotate_queries(queries * scale)
        rows = turned.reshape(by_kv_head)
        sink_rows = rows if from_sinks is turned else from_sinks.reshape(by_kv_head)
        how = Scoring(self._layout.softcap, self._by_row(extra, batch), self.observe)
        out, mass = attend(rows, sink_rows, view, how)
        if mass is not None:
            self.mass = mass.reshape(batch, heads, *mass.shape[2:])
        return out.reshape(batch, heads, tokens, -1).astype(self._dtype)

    def key_numbers(self) -> np.ndarray:
        """Token numbers `[B, H_kv, n]` of the keys of the last step, −1 for none.

        A token can be there in two forms, packed and not; each query reads one of them.

        Raises:
            CacheError: nothing was appended since the last commit.
        """
        if self._now is None or self._batch is None:
            raise CacheError("key_numbers must be asked after an append and before the commit")
        rows = self._batch * self._layout.kv_heads
        numbers = np.broadcast_to(self._now[1].numbers(), (rows, len(self._now[1].numbers())))
        if self._chosen is not None:
            kept = np.array(self._chosen)
            old = np.take_along_axis(kept, np.clip(numbers, 0, kept.shape[1] - 1), axis=1)
            numbers = np.where(numbers < kept.shape[1], old, numbers + self._dropped)
        numbers = np.where(self._now[1].numbers() < 0, -1, numbers)
        return numbers.reshape(self._batch, self._layout.kv_heads, -1)

    def commit(self) -> None:
        """Store what is pending. Queries of the last step can no longer attend."""
        self._now = None
        self._storage.commit()

    def undo(self, tokens: int) -> None:
        """Forget the last `tokens`; KVCache checks that slack allows it."""
        self.commit()
        self.seen -= tokens
        self._timeline.forget()
        self._storage.undo(self.seen - self._dropped)

    def reserve(self, tokens: int | None) -> None:
        """Expect no more than `tokens` in all; None: nobody knows."""
        self._storage.reserve(None if tokens is None else max(1, tokens - self._dropped))

    def hold(self, held: bool) -> None:
        """While `held`, nothing more is packed."""
        self._storage.hold(held)

    def keep(self, chosen: mx.array) -> None:
        """Keep of all tokens only `chosen` [B, H_kv, m], their numbers, each kv-head its own.

        They keep their positions; what is appended later sees all of them. A storage that packs
        must have been held since its first token.

        Raises:
            CacheError: `chosen` has another shape, or not every token is there to choose from.
        """
        self.commit()
        wanted = self._batch, self._layout.kv_heads
        if tuple(chosen.shape[:2]) != wanted or not 1 <= chosen.shape[-1] <= self.seen:
            raise CacheError(
                f"chosen is {tuple(chosen.shape)}; it must be [{wanted[0]}, {wanted[1]}, m], "
                f"m from 1 to {self.seen}"
            )
        if self._dropped or self._layout.window is not None or not self._storage.holds_all:
            raise CacheError("a choice needs a cache that still holds every token, unpacked")
        rows = chosen.reshape(-1, chosen.shape[-1]).astype(mx.int32)
        self._storage.keep(rows, self.seen)
        self._chosen, self._dropped = rows, self.seen - rows.shape[1]
        self._timeline.forget()

    def arrays(self) -> dict[str, mx.array]:
        """Every allocated buffer by name, for reports and checks. Do not keep them."""
        chosen = {} if self._chosen is None else {"chosen": self._chosen}
        return self._storage.arrays() | chosen

    def state(self) -> LayerState:
        """Everything that is stored, committed. The arrays are the cache's own: do not write."""
        self.commit()
        return LayerState(self._storage.arrays(), self._batch, self._chosen, self._dropped)

    def load(self, state: LayerState, seen: int, most_seen: int) -> None:
        """Go on from the `state` of a layer of this kind, in arrays of its own; see `Storage.load`.

        A fresh handle of an array costs nothing: the first write copies, and only that array.
        """
        arrays = {name: array[...] for name, array in state.arrays.items()}
        self._batch, self._chosen, self._dropped = state.batch, state.chosen, state.dropped
        self.seen = seen
        self._storage.load(arrays, seen - self._dropped, most_seen - self._dropped)

    def _checked(self, keys: mx.array, values: mx.array) -> tuple[int, int]:
        """N and T."""
        layout, shape = self._layout, tuple(keys.shape)
        fits = len(shape) == 4 and shape[1::2] == (layout.kv_heads, layout.head_dim)
        fits = fits and self._batch in (None, shape[0]) and shape[2] >= 1
        if not fits or tuple(values.shape) != (*shape[:3], layout.value_width):
            b, heads = self._batch or "B", layout.kv_heads
            raise CacheError(
                f"keys {shape} must be [{b}, {heads}, T, {layout.head_dim}] and values "
                f"{tuple(values.shape)} [{b}, {heads}, T, {layout.value_width}], T at least 1"
            )
        self._batch = shape[0]
        return shape[0] * shape[1], shape[2]

    def _checked_queries(self, queries: mx.array) -> tuple[Step, View]:
        if self._now is None or not 1 <= queries.shape[2] <= self._now[0].count:
            raise CacheError("attend needs queries of the tokens that were last appended")
        batch, heads, _, dim = queries.shape
        kv_heads = self._layout.kv_heads
        if heads % kv_heads or dim != self._layout.head_dim or batch != self._batch:
            raise CacheError(
                f"queries [{batch}, {heads}, T, {dim}] do not fit keys [{self._batch}, {kv_heads}, "
                f"T, {self._layout.head_dim}]"
            )
        return self._now

    def _by_row(self, extra: mx.array | None, batch: int) -> mx.array | None:
        """A logit for each head as `[N, G, 1, 1]`."""
        if extra is None:
            return None
        by_kv_head = extra.astype(mx.float32).reshape(1, self._layout.kv_heads, -1)
        rows = mx.broadcast_to(by_kv_head, (batch, *by_kv_head.shape[1:]))
        return rows.reshape(batch * self._layout.kv_heads, -1, 1, 1)
