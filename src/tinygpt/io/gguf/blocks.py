"""GGUF tensors as MLX arrays: floats, or MLX's packed layout where that holds a type exactly.

Q4_0, Q4_1 and Q8_0 are affine codes over 32 values, value = scale · code + bias, and so is MLX's
layout: codes 0 … 2^b − 1, low bits first, 32/b to a uint32 word.
"""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from tinygpt.io.gguf.dequant import dequantise
from tinygpt.io.gguf.types import BF16, F32, TensorType

GROUP = 32  # values in a block
_CHUNK = 2**20  # values dequantised at a time

Blocks = NDArray[np.uint8]  # [blocks, block_bytes]
Halves = NDArray[np.float16]


def float_tensor(
    rows: NDArray[np.uint8], kind: TensorType, shape: tuple[int, ...], dtype: mx.Dtype | None
) -> mx.array:
    """The values of bytes `[rows, row_bytes]`; `dtype` None keeps that of a float tensor."""
    if kind.quantised:
        return _dequantised(rows, kind, shape, dtype or mx.float32)
    if kind is BF16:
        array = mx.array(rows.view("<u2")).view(mx.bfloat16)
    else:
        array = mx.array(rows.view("<f4" if kind is F32 else "<f2"))
    array = array.reshape(shape)
    return array if dtype is None else array.astype(dtype)


def packed_tensor(rows: NDArray[np.uint8], kind: TensorType) -> dict[str, mx.array]:
    """weight uint32 `[out, in·bits/32]`, scales and biases float16 `[out, in/32]`."""
    blocks = rows.reshape(-1, kind.block_bytes)
    with np.errstate(over="ignore", invalid="ignore"):  # absurd scales show in the logits
        codes, scales, biases = _UNPACK[kind.name](blocks)
    parts = {"weight": codes.view("<u4"), "scales": scales, "biases": biases}
    return {
        name: mx.array(np.ascontiguousarray(part.reshape(len(rows), -1)))
        for name, part in parts.items()
    }


def _dequantised(
    rows: NDArray[np.uint8], kind: TensorType, shape: tuple[int, ...], dtype: mx.Dtype
) -> mx.array:
    """Values written chunk by chunk into the array that is returned, so that nothing is held twice.

    NumPy has no bfloat16: its bits are written as uint16.
    """
    held = mx.uint16 if dtype == mx.bfloat16 else dtype
    array = mx.zeros(shape, held)
    mx.eval(array)
    values = np.array(array, copy=False).reshape(-1, kind.block)  # a view: writes reach `array`
    blocks = rows.reshape(-1, kind.block_bytes)
    step = _CHUNK // kind.block
    for start in range(0, len(blocks), step):
        chunk = dequantise(blocks[start : start + step], kind.name)
        if dtype != mx.float32:
            chunk = np.array(mx.array(chunk).astype(dtype).view(held))
        values[start : start + step] = chunk
    return array if held == dtype else array.view(dtype)


def _q4_0(blocks: Blocks) -> tuple[Blocks, Halves, Halves]:
    """d · (code − 8); 8·d is exact in fp16 up to its range."""
    scales = _halves(blocks[:, :2])[:, 0]
    return _nibbles(blocks[:, 2:]), scales, scales * np.float16(-8)


def _q4_1(blocks: Blocks) -> tuple[Blocks, Halves, Halves]:
    """d · code + m."""
    halves = _halves(blocks[:, :4])
    return _nibbles(blocks[:, 4:]), halves[:, 0], halves[:, 1]


def _q8_0(blocks: Blocks) -> tuple[Blocks, Halves, Halves]:
    """d · q with q signed; q + 128 is the code."""
    scales = _halves(blocks[:, :2])[:, 0]
    return np.ascontiguousarray(blocks[:, 2:]) ^ np.uint8(0x80), scales, scales * np.float16(-128)


_UNPACK: dict[str, Callable[[Blocks], tuple[Blocks, Halves, Halves]]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q8_0": _q8_0,
}


def _halves(columns: Blocks) -> Halves:
    return np.ascontiguousarray(columns).view("<f2")


def _nibbles(packed: Blocks) -> Blocks:
    """[n, 16] with value j low and value j + 16 high, to [n, 16] with neighbours in one byte."""
    codes = np.empty_like(packed, order="C")
    low, high = packed & 15, packed >> 4
    codes[:, :8] = low[:, 0::2] | low[:, 1::2] << 4
    codes[:, 8:] = high[:, 0::2] | high[:, 1::2] << 4
    return codes
