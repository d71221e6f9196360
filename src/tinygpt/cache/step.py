"""What all layers of a kind share in one forward step: numbers, rotations and masks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import mlx.core as mx
import numpy as np

from tinygpt.cache.eviction.base import Eviction
from tinygpt.ops.rope import RopeConfig, Rotation, rotate, rotation


@dataclass(frozen=True, slots=True)
class Step:
    """Tokens `first` … `first + count − 1` enter the cache, and are its queries.

    `own` rotates keys and queries at their numbers, None for a model without rotary positions.
    `from_sinks` rotates the queries as their sinks see them, None where that is the same.
    """

    first: int
    count: int
    own: Rotation | None
    from_sinks: Rotation | None
    _masks: dict[object, mx.array | None] = field(default_factory=dict)
    _matrices: dict[object, mx.array] = field(default_factory=dict)

    @property
    def end(self) -> int:
        """One past the last token's number."""
        return self.first + self.count

    @property
    def numbers(self) -> np.ndarray:
        """The token numbers `[T]`."""
        return np.arange(self.first, self.end)

    def mask(self, name: object, build: Callable[[], np.ndarray]) -> mx.array | None:
        """The boolean mask `[T, n]` that `build` gives, made once for all layers; None if all True.

        `name` must tell apart all masks of one step.
        """
        if name not in self._masks:
            mask = build()
            self._masks[name] = None if mask.all() else mx.array(mask)
        return self._masks[name]

    def rotate_keys(self, keys: mx.array) -> mx.array:
        """`keys` [..., T, D] at their positions."""
        return keys if self.own is None else self._rotate(keys, self.own)

    def rotate_queries(self, queries: mx.array) -> tuple[mx.array, mx.array]:
        """`queries` [..., T, D] as the window sees them, and as the sinks do."""
        turned = self.rotate_keys(queries)
        return turned, turned if self.from_sinks is None else self._rotate(queries, self.from_sinks)

    def _rotate(self, x: mx.array, by: Rotation) -> mx.array:
        """One token is rotated by one product with a matrix that all layers share.

        The element-wise form takes nine operations a layer, which cost more than their arithmetic.
        """
        if self.count > 1:
            return rotate(x, by)
        name = id(by), x.shape[-1]
        if name not in self._matrices:
            basis = mx.eye(x.shape[-1])[:, None]  # [D, 1, D]
            self._matrices[name] = rotate(basis, by)[:, 0]
        return x.astype(mx.float32) @ self._matrices[name]


class Timeline:
    """Makes each step once for all the layers that share positions and eviction.

    A token's position is its number: rotations count from the cache's first token, whatever came
    before it, only grow, and are exact at any size.
    """

    def __init__(self, rope: RopeConfig | None, eviction: Eviction) -> None:
        self._rope, self._eviction = rope, eviction
        self._last: Step | None = None

    def step(self, first: int, count: int) -> Step:
        """The step that appends tokens `first` … `first + count − 1`."""
        last = self._last
        if last is None or (last.first, last.count) != (first, count):
            last = self._last = self._make(first, count)
        return last

    def forget(self) -> None:
        """Tokens were undone: the next step may look like the last but finds others stored."""
        self._last = None

    def _make(self, first: int, count: int) -> Step:
        if self._rope is None:
            return Step(first, count, None, None)
        numbers = np.arange(first, first + count)
        own = rotation(self._rope, numbers)
        from_sinks = self._eviction.sink_positions(numbers)
        if from_sinks is None or (from_sinks == numbers).all():
            return Step(first, count, own, None)
        return Step(first, count, own, rotation(self._rope, from_sinks))
