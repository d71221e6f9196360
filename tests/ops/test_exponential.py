"""Exponentials in plain operations against NumPy in float64, and which side is taken."""

from __future__ import annotations

import math

import mlx.core as mx
import numpy as np
import pytest

from tinygpt.ops import backend
from tinygpt.ops.attention import softmax
from tinygpt.ops.exponential import exp2, gelu_tanh, silu

SIDES = ("plain", "mlx")
CLOSE = 1e-6  # relative, of one exponential


@pytest.fixture(params=SIDES, autouse=True)
def side(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv(backend.VARIABLE, request.param)
    return str(request.param)


def test_a_power_of_two_is_right_over_the_whole_range() -> None:
    y = np.linspace(-126, 126, 20_011, dtype=np.float32)
    np.testing.assert_allclose(np.array(exp2(mx.array(y))), np.exp2(y.astype(np.float64)), CLOSE)


def test_minus_infinity_gives_zero_what_is_too_small_almost_and_nan_stays_nan() -> None:
    y = [-math.inf, -1e30, -127.0, -126.7, -126.4, -126.1, math.nan]
    *small, lost = np.array(exp2(mx.array(y))).tolist()
    assert small[:3] == [0, 0, 0]
    assert all(0 <= value < 2e-38 for value in small)
    assert np.isnan(lost)


@pytest.mark.parametrize("scale", [0.1, 5.0, 300.0])
def test_softmax_is_the_exact_one(scale: float, side: str) -> None:
    scores = scale * np.random.default_rng(1).standard_normal((3, 5, 700))
    scores[:, :, ::7] = -np.inf
    scores = scores.astype(np.float32)
    exact = np.exp(scores.astype(np.float64) - scores.max(-1, keepdims=True))
    exact /= exact.sum(-1, keepdims=True)
    plain = side == "plain"
    unit = math.log2(math.e) if plain else 1.0
    weights, total = softmax(mx.array(scores) * unit, None, plain)
    got = weights if total is None else weights / total
    np.testing.assert_allclose(np.array(got), exact, 2e-4 if scale > 100 else 4e-6, 1e-9)


def test_activations_are_the_exact_ones_and_finite_far_out() -> None:
    x = np.concatenate([np.linspace(-30, 30, 9001), [-1e4, -200, 200, 1e4]]).astype(np.float32)
    wide = x.astype(np.float64)
    with np.errstate(over="ignore"):
        exact = wide / (1 + np.exp(-wide))
    cube = math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)
    np.testing.assert_allclose(np.array(silu(mx.array(x))), exact, 3e-6, 1e-6)
    gelu = 0.5 * wide * (1 + np.tanh(cube))
    np.testing.assert_allclose(np.array(gelu_tanh(mx.array(x))), gelu, 1e-5, 1e-6)


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_activations_keep_a_half_type(dtype: mx.Dtype) -> None:
    x = mx.linspace(-4, 4, 10_000).astype(dtype)
    assert silu(x).dtype == gelu_tanh(x).dtype == dtype


def test_the_side_is_forced_or_follows_from_size_and_device(
    side: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert backend.prefers_plain(1, least=100) == (side == "plain")
    monkeypatch.delenv(backend.VARIABLE)
    on_cpu = mx.default_device().type == mx.DeviceType.cpu
    assert backend.prefers_plain(100, least=100) == on_cpu
    assert not backend.prefers_plain(99, least=100)
