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

    The three rotations are None for a model without rotary positions; `sink_query` is None also
    where sinks are seen from the query's own position.
    """

    first: int
    count: int
    key: Rotation | None
    query: Rotation | None
    sink_query: Rotation | None
    _masks: dict[object, mx.array | None] = field(default_factory=dict)

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
        return keys if self.key is None else rotate(keys, self.key)

    def rotate_queries(self, queries: mx.array) -> tuple[mx.array, mx.array]:
        """`queries` [..., T, D] as the window sees them, and as the sinks do."""
        if self.query is None:
            return queries, queries
        turned = rotate(queries, self.query)
        return turned, turned if self.sink_query is None else rotate(queries, self.sink_query)


class Timeline:
    """Makes each step once for all the layers that share positions and eviction.

    `start` is the position of the first token. Positions only grow, and are exact at any size.
    """

    def __init__(self, rope: RopeConfig | None, eviction: Eviction, start: int) -> None:
        self._rope, self._eviction, self._start = rope, eviction, start
        self._last: Step | None = None

    def step(self, first: int, count: int) -> Step:
        """The step that appends tokens `first` … `first + count − 1`."""
        last = self._last
        if last is None or (last.first, last.count) != (first, count):
            last = self._last = self._make(first, count)
        return last

    def _make(self, first: int, count: int) -> Step:
        if self._rope is None:
            return Step(first, count, None, None, None)
        numbers = np.arange(first, first + count)
        query = rotation(self._rope, self._start + numbers)
        from_sinks = self._eviction.sink_positions(numbers)
        if from_sinks is None:
            return Step(first, count, query, query, None)
        # Sinks are rotated at their place in the cache, which is their number.
        sinks = numbers < self._eviction.sink
        key = rotation(self._rope, np.where(sinks, numbers, self._start + numbers))
        return Step(first, count, key, query, rotation(self._rope, from_sinks))
