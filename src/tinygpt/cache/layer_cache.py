"""One layer's keys and values: positions in front, a storage behind."""

from __future__ import annotations

import mlx.core as mx

from tinygpt.cache.layout import LayerLayout
from tinygpt.cache.step import Step, Timeline
from tinygpt.cache.storage.base import Storage
from tinygpt.errors import CacheError
from tinygpt.ops.attention import DenseView, View, attend_dense, attend_parts


class LayerCache:
    """`append` takes un-rotated keys, `attend` un-rotated queries of the same step.

    `seen` counts the tokens appended and not undone. Arrays are `[B, H, T, D]`.
    """

    def __init__(
        self, timeline: Timeline, storage: Storage, layout: LayerLayout, dtype: mx.Dtype
    ) -> None:
        self._timeline, self._storage, self._layout = timeline, storage, layout
        self._dtype = dtype
        self._now: tuple[Step, View] | None = None
        self._batch: int | None = None
        self.seen = 0

    def append(self, keys: mx.array, values: mx.array) -> None:
        """Take `keys` and `values` [B, H_kv, T, D], T ≥ 1, as tokens `seen` … `seen + T − 1`.

        Raises:
            CacheError: the arrays have another shape.
        """
        self._now = None  # a view that is still held would make the next write copy its buffer
        batch, heads, tokens, dim = self._checked(keys, values)
        step = self._timeline.step(self.seen, tokens)
        keys = step.rotate_keys(keys).reshape(batch * heads, tokens, dim)
        view = self._storage.append(keys, values.reshape(batch * heads, tokens, dim), step)
        self._now = step, view
        self.seen = step.end

    def attend(self, queries: mx.array, scale: float) -> mx.array:
        """Attention of `queries` [B, H, T, D] to all that they see: `[B, H, T, D]`, compute type.

        Raises:
            CacheError: there was no append for this step, or the queries do not fit it.
        """
        if self._now is None or self._now[0].count != queries.shape[2]:
            raise CacheError("attend needs the queries of the tokens that were last appended")
        step, view = self._now
        batch, heads, tokens, dim = queries.shape
        kv_heads = self._layout.kv_heads
        if heads % kv_heads or dim != self._layout.head_dim or batch != self._batch:
            raise CacheError(
                f"queries [{batch}, {heads}, T, {dim}] do not fit keys [{self._batch}, {kv_heads}, "
                f"T, {self._layout.head_dim}]"
            )
        by_kv_head = batch * kv_heads, heads // kv_heads, tokens, dim
        turned, from_sinks = (
            rotated.reshape(by_kv_head) for rotated in step.rotate_queries(queries * scale)
        )
        if isinstance(view, DenseView):
            out = attend_dense(turned, view)
        else:
            out = attend_parts(turned, from_sinks, view, self._layout.softcap)
        return out.reshape(queries.shape).astype(self._dtype)

    def commit(self) -> None:
        """Store what is pending. Queries of the last step can no longer attend."""
        self._now = None
        self._storage.commit()

    def undo(self, tokens: int) -> None:
        """Forget the last `tokens`; KVCache checks that slack allows it."""
        self.commit()
        self.seen -= tokens
        self._timeline.forget()
        self._storage.undo(self.seen)

    def reserve(self, tokens: int) -> None:
        """Expect no more than `tokens` in all."""
        self._storage.reserve(tokens)

    def arrays(self) -> dict[str, mx.array]:
        """Every allocated buffer by name, for reports and checks. Do not keep them."""
        return self._storage.arrays()

    def _checked(self, keys: mx.array, values: mx.array) -> tuple[int, ...]:
        layout, shape = self._layout, tuple(keys.shape)
        fits = len(shape) == 4 and shape[1::2] == (layout.kv_heads, layout.head_dim)
        fits = fits and self._batch in (None, shape[0])
        if not fits or shape[2] < 1 or tuple(values.shape) != shape:
            wanted = f"[{self._batch or 'B'}, {layout.kv_heads}, T, {layout.head_dim}]"
            raise CacheError(
                f"keys {shape} and values {tuple(values.shape)} must both be {wanted}, T at least 1"
            )
        self._batch = shape[0]
        return shape
