"""Minimum-maximum codes, their packing and their way back, against NumPy and MLX's own reader."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from oracles.cache_reference import quantise_group, round_bf16, round_fp16
from tinygpt.ops.quantize import (
    Packed,
    dequantise_k,
    dequantise_v,
    quantise_affine,
    quantise_k,
    quantise_v,
)

BITS, GROUPS = (8, 4, 3, 2), (32, 64, 128)
# Half-precision numbers are on a grid far coarser than float32, so the quotient that is rounded to
# a code is never nearer to a tie than float32 resolves: codes are compared exactly.
HALF_ROUNDING = {"fp16": round_fp16, "bf16": round_bf16}
# A float32 input has no such grid: next to a tie, by this share of a step, both are right.
TIE = 1e-4
# code·scale + zero in float32, with or without fused multiply-add, against float64.
FLOAT32_STEP = 2.0**-22


def unpack(words: mx.array, bits: int) -> np.ndarray:
    """Codes of a little-endian bit stream, bit by bit."""
    as_bytes = np.ascontiguousarray(np.array(words)).astype("<u4").view(np.uint8)
    stream = np.unpackbits(as_bytes, axis=-1, bitorder="little")
    places = stream.reshape(*stream.shape[:-1], -1, bits)
    return (places.astype(np.int64) << np.arange(bits)).sum(-1)


def reference(x: np.ndarray, group: int, bits: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Codes [..., n], scales and zeros [..., n/group] of `x` [..., n]."""
    rows = x.reshape(-1, group)
    codes, scales, zeros = zip(*(quantise_group(row, bits) for row in rows), strict=True)
    heads = (*x.shape[:-1], -1)
    return np.array(codes).reshape(x.shape), *(np.array(a).reshape(heads) for a in (scales, zeros))


def assert_packed_equals_reference(packed: Packed, x: np.ndarray, group: int, bits: int) -> None:
    codes, scales, zeros = reference(x, group, bits)
    assert packed.words.dtype == mx.uint32
    assert packed.words.shape[-1] * 32 == x.shape[-1] * bits, "codes are not really packed"
    assert packed.scales.dtype == packed.zeros.dtype == mx.float16
    np.testing.assert_array_equal(np.array(packed.zeros), zeros)
    np.testing.assert_array_equal(np.array(packed.scales), scales)
    np.testing.assert_array_equal(unpack(packed.words, bits), codes)


@pytest.mark.parametrize("half", HALF_ROUNDING)
@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("bits", BITS)
def test_codes_scales_and_zeros_equal_the_formula_bit_for_bit(
    bits: int, group: int, half: str
) -> None:
    rng = np.random.default_rng(bits * group)
    spread = 10 ** rng.uniform(-2, 2, size=(2, 3, 5, 1))
    x = HALF_ROUNDING[half](rng.normal(size=(2, 3, 5, 2 * group)) * spread + rng.normal())
    packed = quantise_affine(mx.array(x.astype(np.float32)), group, bits)
    assert_packed_equals_reference(packed, x, group, bits)


@pytest.mark.parametrize("bits", BITS)
def test_float32_input_gets_the_nearest_code_of_the_rounded_scale_and_zero(bits: int) -> None:
    rng = np.random.default_rng(bits)
    x = rng.normal(size=(40, 64)).astype(np.float32)
    packed = quantise_affine(mx.array(x), 32, bits)
    _, scales, zeros = reference(x.astype(np.float64), 32, bits)
    np.testing.assert_array_equal(np.array(packed.scales), scales)
    np.testing.assert_array_equal(np.array(packed.zeros), zeros)
    place = (x - np.repeat(zeros, 32, -1)) / np.repeat(scales, 32, -1)
    distance = np.abs(np.clip(place, 0, 2**bits - 1) - unpack(packed.words, bits))
    assert distance.max() <= 0.5 + TIE


EDGES = {
    "constant": np.full(32, 0.75),
    "zeros": np.zeros(32),
    "constant off the fp16 grid": np.full(32, 0.1, dtype=np.float32),
    "one unit of fp16 apart": np.array([1.0, 1.0 + 2.0**-10] * 16),
    "range below the scale floor": np.linspace(0, 2e-6, 32).astype(np.float16),
    "smallest fp16 numbers": np.arange(32) * 2.0**-24,
    "smallest negative fp16 numbers": -np.arange(32) * 2.0**-24,
    "at the fp16 limits": np.array([-65504.0, 65504.0, 0.0, 1.0] * 8),
    "near the upper fp16 limit": np.linspace(60000, 65504, 32).astype(np.float16),
    "near the lower fp16 limit": -np.linspace(60000, 65504, 32).astype(np.float16),
    "one outlier": np.array([1000.0] + [0.125] * 31),
    "exact ties": np.arange(32) / 2.0,
}


@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize("bits", BITS)
def test_groups_at_the_edges_equal_the_formula_and_stay_finite(bits: int, edge: str) -> None:
    x = np.stack([EDGES[edge]] * 2).astype(np.float64)
    packed = quantise_affine(mx.array(x.astype(np.float32)), 32, bits)
    assert_packed_equals_reference(packed, x, 32, bits)
    back = np.array(dequantise_v(quantise_v(mx.array(x[None].astype(np.float32)), 32, bits)))
    assert np.isfinite(back).all()
    step = np.array(packed.scales).astype(np.float64).max()
    assert np.abs(back[0] - x).max() <= step / 2 + FLOAT32_STEP * np.abs(x).max() + TIE * step


@pytest.mark.parametrize("bits", BITS)
def test_a_constant_group_comes_back_exactly(bits: int) -> None:
    x = mx.full((1, 4, 32), -3.25)
    assert mx.array_equal(dequantise_v(quantise_v(x, 32, bits)), x)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("group", GROUPS)
def test_keys_are_coded_per_channel_and_values_per_token(group: int, bits: int) -> None:
    rng = np.random.default_rng(group + bits)
    x = round_fp16(rng.normal(size=(2, 2 * group, 128)))
    x[:, :, 5] += 20  # a channel far off costs its own group alone
    as_mx = mx.array(x.astype(np.float32))

    keys = quantise_k(as_mx, group, bits)
    assert_packed_equals_reference(keys, x.swapaxes(1, 2), group, bits)
    values = quantise_v(as_mx, group, bits)
    assert_packed_equals_reference(values, x, group, bits)

    for packed, back, turn in (
        (keys, dequantise_k(keys), lambda a: a.swapaxes(1, 2)),
        (values, dequantise_v(values), lambda a: a),
    ):
        codes, scales, zeros = reference(turn(x), group, bits)
        want = turn(codes * np.repeat(scales, group, -1) + np.repeat(zeros, group, -1))
        assert back.dtype == mx.float32
        assert back.shape == as_mx.shape
        np.testing.assert_allclose(np.array(back), want, rtol=0, atol=FLOAT32_STEP * 64)
        by_mlx = mx.dequantize(
            packed.words,
            packed.scales.astype(mx.float32),
            packed.zeros.astype(mx.float32),
            group_size=group,
            bits=bits,
        )
        np.testing.assert_allclose(
            np.array(back), turn(np.array(by_mlx)), rtol=0, atol=FLOAT32_STEP * 64
        )


@pytest.mark.parametrize("bits", BITS)
def test_products_with_the_packed_words_equal_products_with_the_values(bits: int) -> None:
    rng = np.random.default_rng(bits)
    x = mx.array(rng.normal(size=(1, 64, 96)).astype(np.float32))
    q = mx.array(rng.normal(size=(1, 3, 96)).astype(np.float32))
    packed = quantise_k(x, 32, bits)
    scores = mx.quantized_matmul(
        q, packed.words, packed.scales, packed.zeros, transpose=False, group_size=32, bits=bits
    )
    want = np.array(q) @ np.array(dequantise_k(packed)).swapaxes(1, 2)
    np.testing.assert_allclose(np.array(scores), want, rtol=0, atol=1e-4)  # 96 float32 terms
