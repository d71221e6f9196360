"""The block formats of GGUF tensors, as bytes to arrays.

A quantised block holds 32 values of a row. Each format here is an affine code, value =
scale · code + bias, so it becomes MLX's packed layout without loss: codes 0 … 2^b − 1, low bits
first, 32/b to a uint32 word.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

GROUP = 32  # values in a block

Blocks = NDArray[np.uint8]  # [blocks, block_bytes]


@dataclass(frozen=True, slots=True)
class TensorType:
    """A GGUF tensor type: `block` values take `block_bytes` bytes. `bits` is None for floats."""

    name: str
    block: int
    block_bytes: int
    bits: int | None = None


@dataclass(frozen=True, slots=True)
class PackedTensor:
    """MLX's affine layout: weight uint32 `[out, in·bits/32]`, scales and biases `[out, in/32]`."""

    weight: mx.array
    scales: mx.array
    biases: mx.array
    bits: int

    def dequantise(self, dtype: mx.Dtype) -> mx.array:
        """The values, computed in float32 (half-precision scales are five times slower)."""
        values = mx.dequantize(
            self.weight,
            self.scales.astype(mx.float32),
            self.biases.astype(mx.float32),
            group_size=GROUP,
            bits=self.bits,
        )
        return values.astype(dtype)


F32 = TensorType("F32", 1, 4)
F16 = TensorType("F16", 1, 2)
BF16 = TensorType("BF16", 1, 2)
Q4_0 = TensorType("Q4_0", GROUP, 18, bits=4)
Q4_1 = TensorType("Q4_1", GROUP, 20, bits=4)
Q8_0 = TensorType("Q8_0", GROUP, 34, bits=8)
TENSOR_TYPES = {0: F32, 1: F16, 2: Q4_0, 3: Q4_1, 8: Q8_0, 30: BF16}

_OTHER_NAMES = {
    6: "Q5_0",
    7: "Q5_1",
    9: "Q8_1",
    10: "Q2_K",
    11: "Q3_K",
    12: "Q4_K",
    13: "Q5_K",
    14: "Q6_K",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    20: "IQ4_NL",
    21: "IQ3_S",
    22: "IQ2_S",
    23: "IQ4_XS",
    24: "I8",
    25: "I16",
    26: "I32",
    27: "I64",
    28: "F64",
    29: "IQ1_M",
    34: "TQ1_0",
    35: "TQ2_0",
    39: "MXFP4",
}


def type_name(number: int) -> str:
    """GGML's name of a tensor type, or its number."""
    return _OTHER_NAMES.get(number, str(number))


def float_tensor(raw: NDArray[np.uint8], kind: TensorType, shape: tuple[int, ...]) -> mx.array:
    """An F32, F16 or BF16 tensor in its own dtype."""
    if kind is BF16:
        return mx.array(raw.view("<u2")).view(mx.bfloat16).reshape(shape)
    return mx.array(raw.view("<f4" if kind is F32 else "<f2")).reshape(shape)


def packed_tensor(
    raw: NDArray[np.uint8], kind: TensorType, shape: tuple[int, ...], rows: NDArray[np.intp] | None
) -> PackedTensor:
    """A quantised tensor `[out, in]` in MLX's layout, its rows taken in the order `rows`."""
    blocks = raw.reshape(-1, kind.block_bytes)
    with np.errstate(over="ignore", invalid="ignore"):  # absurd scales show in the logits
        codes, scales, biases = _UNPACK[kind.name](blocks)
    parts = [part.reshape(shape[0], -1) for part in (codes.view("<u4"), scales, biases)]
    if rows is not None:
        parts = [part[rows] for part in parts]
    weight, scale, bias = (mx.array(np.ascontiguousarray(part)) for part in parts)
    assert kind.bits is not None
    return PackedTensor(weight, scale, bias, kind.bits)


def _q4_0(blocks: Blocks) -> tuple[Blocks, NDArray[np.float16], NDArray[np.float16]]:
    """d · (code − 8); 8·d is exact in fp16 up to its range."""
    scales = _halves(blocks[:, :2])[:, 0]
    return _nibbles(blocks[:, 2:]), scales, scales * np.float16(-8)


def _q4_1(blocks: Blocks) -> tuple[Blocks, NDArray[np.float16], NDArray[np.float16]]:
    """d · code + m."""
    halves = _halves(blocks[:, :4])
    return _nibbles(blocks[:, 4:]), halves[:, 0], halves[:, 1]


def _q8_0(blocks: Blocks) -> tuple[Blocks, NDArray[np.float16], NDArray[np.float16]]:
    """d · q with q signed; q + 128 is the code."""
    scales = _halves(blocks[:, :2])[:, 0]
    return np.ascontiguousarray(blocks[:, 2:]) ^ np.uint8(0x80), scales, scales * np.float16(-128)


_UNPACK: dict[str, Callable[[Blocks], tuple[Blocks, NDArray[np.float16], NDArray[np.float16]]]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q8_0": _q8_0,
}


def _halves(columns: Blocks) -> NDArray[np.float16]:
    return np.ascontiguousarray(columns).view("<f2")


def _nibbles(packed: Blocks) -> Blocks:
    """[n, 16] with value j low and value j + 16 high, to [n, 16] with neighbours in one byte."""
    codes = np.empty_like(packed, order="C")
    low, high = packed & 15, packed >> 4
    codes[:, :8] = low[:, 0::2] | low[:, 1::2] << 4
    codes[:, 8:] = high[:, 0::2] | high[:, 1::2] << 4
    return codes
