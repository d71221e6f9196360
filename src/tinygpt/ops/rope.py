"""Rotary position embedding (Su et al., 2021, arXiv 2104.09864).

Departure from `mx.fast.rope`: angles are computed on the host in float64 and only their cosine and
sine go to the device. A float32 angle is wrong by 1e-7 of the *position*, so at position 10⁸ it
means nothing; a float64 one is right to 1e-8 there, so a stored key never has to be rotated again.
"""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx
import numpy as np


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """How a head is rotated.

    `dims` is how many of a head's dimensions are rotated (an even number, at most head_dim).
    `traditional` pairs neighbours (2i, 2i+1) instead of halves (i, i + dims/2).
    """

    base: float
    dims: int
    traditional: bool = False


@dataclass(frozen=True, slots=True)
class Rotation:
    """Cosines and sines for T positions, each `[T, dims/2]`, float32."""

    cos: mx.array
    sin: mx.array
    traditional: bool


def rotation(rope: RopeConfig, positions: np.ndarray) -> Rotation:
    """The rotation for integer `positions` [T], exact at any distance from zero."""
    frequencies = rope.base ** (-np.arange(0, rope.dims, 2, dtype=np.float64) / rope.dims)
    angles = np.asarray(positions, dtype=np.float64)[:, None] * frequencies
    return Rotation(
        mx.array(np.cos(angles).astype(np.float32)),
        mx.array(np.sin(angles).astype(np.float32)),
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
