"""GGML's block formats to float32, in plain NumPy.

A row is a run of blocks of 32 or 256 values. In a 256-block ("K-quant") every 16 or 32 values
share a small integer scale, and the block shares the float16 that scales those. All arithmetic is
float32 and in GGML's order, so that values agree to the bit.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]  # [blocks, block_bytes]
Floats = NDArray[np.float32]  # [blocks, block]


def dequantise(blocks: Bytes, name: str) -> Floats:
    """The values of whole blocks `[n, block_bytes]` of the type `name`, `[n, block]`."""
    with np.errstate(over="ignore", invalid="ignore"):  # absurd scales show in the logits
        return _FORMULAS[name](blocks)


def _q4_0(blocks: Bytes) -> Floats:
    return _half(blocks, 0) * (_nibbles(blocks[:, 2:]).astype(np.float32) - 8)


def _q4_1(blocks: Bytes) -> Floats:
    return _half(blocks, 0) * _nibbles(blocks[:, 4:]).astype(np.float32) + _half(blocks, 2)


def _q5_0(blocks: Bytes) -> Floats:
    codes = _nibbles(blocks[:, 6:]) | _fifth_bits(blocks[:, 2:6])
    return _half(blocks, 0) * (codes.astype(np.float32) - 16)


def _q5_1(blocks: Bytes) -> Floats:
    codes = _nibbles(blocks[:, 8:]) | _fifth_bits(blocks[:, 4:8])
    return _half(blocks, 0) * codes.astype(np.float32) + _half(blocks, 2)


def _q8_0(blocks: Bytes) -> Floats:
    return _half(blocks, 0) * blocks[:, 2:].view(np.int8).astype(np.float32)


def _q2_k(blocks: Bytes) -> Floats:
    """16 groups of 16: a nibble of scale and one of minimum each, then 2-bit codes."""
    scales = _half(blocks, 80) * (blocks[:, :16] & 15).astype(np.float32)
    minima = _half(blocks, 82) * (blocks[:, :16] >> 4).astype(np.float32)
    codes = _fields(blocks[:, 16:80], 2).reshape(-1, 16, 16).astype(np.float32)
    return _flat(scales[..., None] * codes - minima[..., None])


def _q3_k(blocks: Bytes) -> Floats:
    """16 groups of 16 with 6-bit signed scales; the third bit of a code, inverted, is its sign."""
    low, high = _fields(blocks[:, 32:96], 2), _planes(blocks[:, :32])
    codes = low.astype(np.float32) - 4 * (high ^ 1).astype(np.float32)
    packed = blocks[:, 96:108]
    scale_low = np.concatenate([packed[:, :8] & 15, packed[:, :8] >> 4], axis=1)
    scale_high = np.concatenate([packed[:, 8:] >> shift & 3 for shift in (0, 2, 4, 6)], axis=1)
    scales = (scale_low | scale_high << 4).astype(np.float32) - 32
    return _flat((_half(blocks, 108) * scales)[..., None] * codes.reshape(-1, 16, 16))


def _q4_k(blocks: Bytes) -> Floats:
    """8 groups of 32 with 6-bit scales and minima."""
    return _scaled(blocks, _fields(blocks[:, 16:], 4))


def _q5_k(blocks: Bytes) -> Floats:
    """As Q4_K, with a bit plane of fifth bits before the nibbles."""
    high = _planes(blocks[:, 16:48])
    return _scaled(blocks, _fields(blocks[:, 48:], 4) | high << np.uint8(4))


def _q6_k(blocks: Bytes) -> Floats:
    """16 groups of 16 with signed 8-bit scales; 4 low bits, then 2 high bits, offset 32."""
    codes = _fields(blocks[:, :128], 4, run=64) | _fields(blocks[:, 128:192], 2) << 4
    scales = _half(blocks, 208) * blocks[:, 192:208].view(np.int8).astype(np.float32)
    return _flat(scales[..., None] * (codes.astype(np.float32) - 32).reshape(-1, 16, 16))


_FORMULAS: dict[str, Callable[[Bytes], Floats]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}


def _scaled(blocks: Bytes, codes: Bytes) -> Floats:
    """d·scale·code − dmin·minimum over 8 groups of 32, scales and minima 6 bits of 12 bytes."""
    first, second, third = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = np.concatenate([first & 63, third & 15 | first >> 2 & 48], axis=1)
    minima = np.concatenate([second & 63, third >> 4 | second >> 2 & 48], axis=1)
    scale = _half(blocks, 0) * scales.astype(np.float32)
    minimum = _half(blocks, 2) * minima.astype(np.float32)
    return _flat(scale[..., None] * codes.reshape(-1, 8, 32) - minimum[..., None])


def _half(blocks: Bytes, at: int) -> Floats:
    """The float16 at byte `at` of each block, `[n, 1]`."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view("<f2").astype(np.float32)


def _nibbles(packed: Bytes) -> Bytes:
    """[n, 16] with value j low and value j + 16 high, to [n, 32]."""
    return np.concatenate([packed & 15, packed >> 4], axis=1)


def _fifth_bits(packed: Bytes) -> Bytes:
    """[n, 4], one bit for each of 32 values, to [n, 32] of 0 or 16."""
    bits: Bytes = np.unpackbits(packed, axis=1, bitorder="little")
    fifth: Bytes = bits << np.uint8(4)
    return fifth


def _fields(packed: Bytes, bits: int, run: int = 32) -> Bytes:
    """Codes of `bits` bits: each `run` bytes hold one run of codes after the other, low first."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    mask = np.uint8((1 << bits) - 1)
    fields: Bytes = packed.reshape(len(packed), -1, 1, run) >> shifts & mask
    return fields.reshape(len(packed), -1)


def _planes(packed: Bytes) -> Bytes:
    """[n, 32] with bit p of byte j for value 32·p + j, to [n, 256] of 0 or 1."""
    return _fields(packed, 1)


def _flat(groups: Floats) -> Floats:
    return groups.reshape(len(groups), -1)
