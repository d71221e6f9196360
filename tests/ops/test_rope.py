"""Rotations against exact arithmetic, near and very far from zero."""

from __future__ import annotations

from decimal import Decimal, getcontext

import mlx.core as mx
import numpy as np
import pytest

from tinygpt.ops.rope import RopeConfig, rotate, rotation

DIM = 64
ROPE = RopeConfig(10000.0, DIM)
# a float64 angle of size 10⁸ is right to 10⁻⁸, and float32 holds a sine to 6·10⁻⁸
ANGLE_TOLERANCE = 2e-7
SCORE_TOLERANCE = 1e-5  # a float32 sum of 64 products of size one


@pytest.mark.parametrize("position", [0, 1, 5000, 10**5, 10**8])
def test_cosines_and_sines_are_exact_at_any_position(position: int) -> None:
    getcontext().prec = 40
    got = rotation(ROPE, np.array([position]))
    two_pi = Decimal("6.283185307179586476925286766559005768394")
    for i in range(DIM // 2):
        frequency = Decimal(10000) ** (Decimal(-2 * i) / DIM)
        angle = float(position * frequency % two_pi)
        assert abs(float(got.cos[0, i]) - np.cos(angle)) <= ANGLE_TOLERANCE
        assert abs(float(got.sin[0, i]) - np.sin(angle)) <= ANGLE_TOLERANCE


@pytest.mark.parametrize("traditional", [False, True])
@pytest.mark.parametrize("dims", [DIM, 32])
def test_near_zero_it_is_mlx_s_own_rotation(traditional: bool, dims: int) -> None:
    x = mx.random.normal((2, 3, 20, DIM), key=mx.random.key(0))
    got = rotate(x, rotation(RopeConfig(10000.0, dims, traditional), np.arange(7, 27)))
    want = mx.fast.rope(x, dims, traditional=traditional, base=10000.0, scale=1.0, offset=7)
    np.testing.assert_allclose(np.array(got), np.array(want), atol=SCORE_TOLERANCE)


@pytest.mark.parametrize("far", [10**5, 10**8])
def test_a_score_depends_on_the_distance_alone(far: int) -> None:
    query, key = mx.random.normal((2, 1, DIM), key=mx.random.key(1)) / DIM**0.5
    for distance in (0, 1, 100, 4096):

        def score(at: int, distance: int = distance) -> float:
            turned = rotate(query, rotation(ROPE, np.array([at + distance])))
            return float((turned * rotate(key, rotation(ROPE, np.array([at])))).sum())

        assert abs(score(far) - score(0)) <= SCORE_TOLERANCE
