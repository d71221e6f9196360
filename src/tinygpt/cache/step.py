"""What all layers of a kind share in one forward step: numbers, rotations and masks."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

import mlx.core as mx
import numpy as np

from tinygpt.cache.eviction.base import Eviction
from tinygpt.cache.slots import Slots
from tinygpt.ops.backend import on_cpu
from tinygpt.ops.rope import RopeConfig, Rotation, rotate, rotation


@dataclass(frozen=True, slots=True)
class Step:
    """Tokens `first` … `first + count − 1` enter the cache, and are its queries.

    `own` rotates keys and queries at their numbers, None for a model without rotary positions.
    `from_sinks` rotates the queries as their sinks see them, None where that is the same.
    """

    first: int
    count: int
    eviction: Eviction
    own: Rotation | None = None
    from_sinks: Rotation | None = None
    _masks: dict[Hashable, mx.array | None] = field(default_factory=dict)
    _matrices: dict[Hashable, mx.array] = field(default_factory=dict)
    _shifted: dict[int, Step] = field(default_factory=dict)

    @property
    def end(self) -> int:
        """One past the last token's number."""
        return self.first + self.count

    @property
    def numbers(self) -> np.ndarray:
        """The token numbers `[T]`."""
        return np.arange(self.first, self.end)

    def mask(self, build: Callable[..., np.ndarray | None], *about: Hashable) -> mx.array | None:
        """The boolean mask `[T, n]` that `build(self, *about)` gives; None where all is True.

        It is made once for all layers. `build` is a module's function and sees nothing but its
        arguments, so they are the key: layers that ask for different masks cannot share one.
        """
        key = (build, *about)
        if key not in self._masks:
            mask = build(self, *about)
            self._masks[key] = None if mask is None or mask.all() else mx.array(mask)
        return self._masks[key]

    def shifted(self, by: int) -> Step:
        """The same step for a storage that counts `by` tokens fewer; it has masks of its own."""
        if not by:
            return self
        if by not in self._shifted:
            self._shifted[by] = Step(self.first - by, self.count, self.eviction)
        return self._shifted[by]

    def rotate_keys(self, keys: mx.array) -> mx.array:
        """`keys` [..., T, D] at their positions."""
        return keys if self.own is None else self._rotate(keys, self.own)

    def rotate_queries(self, queries: mx.array) -> tuple[mx.array, mx.array]:
        """`queries` [..., t, D] of the last t ≤ T tokens, as the window and as the sinks see them.

        The two are one object where they are the same.
        """
        skip = self.count - queries.shape[-2]
        turned = queries if self.own is None else self._rotate(queries, self.own, skip)
        if self.from_sinks is None:
            return turned, turned
        return turned, self._rotate(queries, self.from_sinks, skip)

    def _rotate(self, x: mx.array, by: Rotation, skip: int = 0) -> mx.array:
        """One token is rotated by one product with a matrix that all layers share: on a CPU.

        The element-wise form takes nine operations a layer, which cost more than their arithmetic.
        On a GPU a product may be computed in TF32, 5e-4 from the element-wise form of a prefill; a
        key must not depend on how it came, so there both are element-wise.
        """
        if self.count > 1 or not on_cpu():
            return rotate(x, by.later(skip))
        name = id(by), x.shape[-1]
        if name not in self._matrices:
            basis = mx.eye(x.shape[-1])[:, None]  # [D, 1, D]
            self._matrices[name] = rotate(basis, by)[:, 0]  # [D, D]
        return x.astype(mx.float32) @ self._matrices[name]


def visible(step: Step, slots: Slots) -> np.ndarray | None:
    """`[T, n]`: which of the tokens in `slots` each query of `step` sees; None for all.

    For `Step.mask`. What can be told from the ends alone costs the same however many slots.
    """
    span = slots.span
    if span is not None and step.eviction.sees(step.first, step.end, *span):
        return None
    return step.eviction.visible(step.numbers, slots.numbers())


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
            return Step(first, count, self._eviction)
        numbers = np.arange(first, first + count)
        own = rotation(self._rope, numbers)
        from_sinks = self._eviction.sink_positions(numbers)
        if from_sinks is None or (from_sinks == numbers).all():
            return Step(first, count, self._eviction, own)
        return Step(first, count, self._eviction, own, rotation(self._rope, from_sinks))
