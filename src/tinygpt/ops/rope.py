"""Rotary position embedding (Su et al., 2021, arXiv 2104.09864).

Departure from `mx.fast.rope`: angles are computed on the host in float64 and only their cosine and
sine go to the device. A float32 angle is wrong by 1e-7 of the *position*, so at position 10⁸ it
means nothing; a float64 one is right to 1e-8 there, so a stored key never has to be rotated again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import mlx.core as mx
import numpy as np

from tinygpt.errors import ConfigError
from tinygpt.ops.rope_scaling import (
    RopeScaling,
    dynamic_base,
    plain_frequencies,
    scaled_frequencies,
)


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """How a head is rotated.

    `dims` is how many of a head's dimensions are rotated (an even number, at most head_dim).
    `traditional` pairs neighbours (2i, 2i+1) instead of halves (i, i + dims/2).

    Raises:
        ConfigError: a base or a scaling that is no use.
    """

    base: float
    dims: int
    traditional: bool = False
    scaling: RopeScaling | None = None

    def __post_init__(self) -> None:
        if not 0 < self.base < float("inf"):
            raise ConfigError(f"rope base is {self.base}; it must be positive and finite")
        if self.scaling is not None:
            self.scaling.check_pairs(self.dims // 2)
            if self.scaling.kind in ("dynamic", "yarn") and (self.dims < 4 or self.base <= 1):
                raise ConfigError(
                    f"{self.scaling.kind} rope scaling needs at least 4 dims and a base above 1, "
                    f"not {self.dims} and {self.base}"
                )

    def for_length(self, tokens: int) -> RopeConfig:
        """The rotation of a text of `tokens`: dynamic and longrope choose by length, once.

        Keys are rotated when they are stored, so a cache needs one rotation for its whole text.
        """
        scaling = self.scaling
        if scaling is None or scaling.kind not in ("dynamic", "longrope"):
            return self
        if scaling.kind == "dynamic":
            base = dynamic_base(self.base, self.dims, scaling, tokens)
            return replace(self, base=base, scaling=None)
        is_long = tokens > scaling.original_context
        fixed = RopeScaling(
            "divisors",
            divisors=scaling.long_divisors if is_long else scaling.divisors,
            attention_factor=scaling.attention_factor,
        )
        return replace(self, scaling=fixed)

    @property
    def frequencies(self) -> np.ndarray:
        """Radians a position for each pair of dimensions, `[dims/2]`, float64."""
        if self.scaling is None:
            return plain_frequencies(self.base, self.dims)
        return scaled_frequencies(self.base, self.dims, self.scaling)

    @property
    def attention_factor(self) -> float:
        """What rotated queries and keys are multiplied by."""
        return 1.0 if self.scaling is None else self.scaling.attention_factor


@dataclass(frozen=True, slots=True)
class Rotation:
    """Cosines and sines for T positions times the attention factor, each `[T, dims/2]`, float32."""

    cos: mx.array
    sin: mx.array
    traditional: bool

    def later(self, skip: int) -> Rotation:
        """The same without the first `skip` positions."""
        return Rotation(self.cos[skip:], self.sin[skip:], self.traditional) if skip else self


def rotation(rope: RopeConfig, positions: np.ndarray) -> Rotation:
    """The rotation for integer `positions` [T], exact at any distance from zero."""
    angles = np.asarray(positions, dtype=np.float64)[:, None] * rope.frequencies
    factor = rope.attention_factor
    return Rotation(
        mx.array((factor * np.cos(angles)).astype(np.float32)),
        mx.array((factor * np.sin(angles)).astype(np.float32)),
        rope.traditional,
    )


def rotate(x: mx.array, by: Rotation) -> mx.array:
    """Rotate `x` [..., T, D] in float32; dimensions from `2·by.cos.shape[-1]` on pass through."""
    half = by.cos.shape[-1]
    head = x[..., : 2 * half]
    if by.traditional:
        pairs = head.reshape(*head.shape[:-1], half, 2)
        first, second = pairs[..., 0], pairs[..., 1]
    else:
        first, second = head[..., :half], head[..., half:]
    turned = [first * by.cos - second * by.sin, second * by.cos + first * by.sin]
    if by.traditional:
        out = mx.stack(turned, axis=-1).reshape(head.shape)
    else:
        out = mx.concatenate(turned, axis=-1)
    if 2 * half < x.shape[-1]:
        out = mx.concatenate([out, x[..., 2 * half :].astype(out.dtype)], axis=-1)
    return out
