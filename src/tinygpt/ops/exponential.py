"""Exponentials for a CPU, where MLX's own take 12–16 ns each.

MLX computes one exponential at a time on a CPU; that is most of an attention over many tokens. Here
2^y is split into a power of two, made of bits, and a polynomial of degree 5 on [−½, ½]: plain
operations that do run several elements at a time, 3 ns in all. The relative error is 2e-7, that of
float32. Elsewhere, and for few elements, MLX's own functions are used: see `ops.backend`.
"""

from __future__ import annotations

import math
from typing import cast

import mlx.core as mx
from mlx import nn

from tinygpt.ops.backend import on_cpu, prefers_plain

LEAST = 8192  # elements; below, the number of operations costs more than their arithmetic
LOG2_E = 1 / math.log(2)
# From 2^−126 down float32 has no bits for the exponent; −127 gives 0, what is between is tiny.
LOWEST, HIGHEST = -127.0, 126.0
# 2^f on [−½, ½] to 2e-7, the least largest error with 2^0 = 1: at LOWEST all bits must cancel
POLYNOMIAL = (1.0, 0.693147004, 0.240222424, 0.0555073358, 0.00967151299, 0.00132647273)
TO_WHOLE = 1.5 * 2.0**23  # added to y, it leaves no bits for a fraction: y's whole part ends low


def exp2(y: mx.array) -> mx.array:
    """2^y for float32 `y` up to 126; −∞ gives 0, what is below −126 at most 1e-38, NaN itself."""
    y = mx.maximum(y, LOWEST)
    shifted = y + TO_WHOLE
    rest = y - (shifted - TO_WHOLE)
    power = rest * POLYNOMIAL[5] + POLYNOMIAL[4]
    for coefficient in reversed(POLYNOMIAL[:4]):
        power = power * rest + coefficient
    exponent = mx.view(shifted, mx.int32) << 23
    return mx.view(mx.view(power, mx.int32) + exponent, mx.float32)


def powers(y: mx.array) -> mx.array:
    """2^y for float32 `y` ≤ 0, on the device's faster side."""
    return exp2(y) if on_cpu() else mx.exp(y * math.log(2))


def silu(x: mx.array) -> mx.array:
    """x · sigmoid(x), in the type of `x`."""
    if _is_left_to_mlx(x):
        return cast(mx.array, nn.silu(x))
    return _times_sigmoid(x, x * LOG2_E)


def gelu_tanh(x: mx.array) -> mx.array:
    """GELU in its tanh form (Hendrycks and Gimpel, 2016, arXiv 1606.08415), in the type of `x`."""
    if _is_left_to_mlx(x):
        return cast(mx.array, nn.gelu_approx(x))
    argument = 2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)
    return _times_sigmoid(x, argument * LOG2_E)


def _is_left_to_mlx(x: mx.array) -> bool:
    return x.dtype != mx.float32 or not prefers_plain(x.size, LEAST)


def _times_sigmoid(x: mx.array, y: mx.array) -> mx.array:
    """x / (1 + 2^−y)."""
    return x / (1 + exp2(mx.minimum(-y, HIGHEST)))
