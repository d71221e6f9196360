"""GGML's block formats, value by value as its C code has them, and random blocks of each.

Imports no tinygpt. Slow on purpose: the loops are those of `dequantize_row_*` in ggml-quants.c.
"""

from __future__ import annotations

import numpy as np

# name: number of the type, values in a block, bytes in a block, where its float16 numbers are
FORMATS = {
    "Q4_0": (2, 32, 18, (0,)),
    "Q4_1": (3, 32, 20, (0, 2)),
    "Q5_0": (6, 32, 22, (0,)),
    "Q5_1": (7, 32, 24, (0, 2)),
    "Q8_0": (8, 32, 34, (0,)),
    "Q2_K": (10, 256, 84, (80, 82)),
    "Q3_K": (11, 256, 110, (108,)),
    "Q4_K": (12, 256, 144, (0, 2)),
    "Q5_K": (13, 256, 176, (0, 2)),
    "Q6_K": (14, 256, 210, (208,)),
}
F = np.float32


def random_blocks(kind: str, count: int, rng: np.random.Generator) -> bytes:
    """Blocks of random codes whose float16 numbers are of a size that weights have."""
    _, _, size, halves = FORMATS[kind]
    blocks = rng.integers(0, 256, (count, size), dtype=np.uint8)
    for at in halves:
        scale = rng.normal(0, 1e-3, (count, 1)).astype("<f2")
        blocks[:, at : at + 2] = scale.view(np.uint8)
    return blocks.tobytes()


def dequantise(raw: bytes, kind: str) -> np.ndarray:
    """The float32 values of quantised bytes."""
    size, halves = FORMATS[kind][2:]
    values: list[np.float32] = []
    for start in range(0, len(raw), size):
        block = raw[start : start + size]
        d, m = (*(F(np.frombuffer(block[at : at + 2], "<f2")[0]) for at in halves), F(0))[:2]
        values += _LOOPS[kind](block, d, m)
    return np.array(values, F)


def _four(b: bytes, d: F, m: F, at: int, shift: int) -> list[F]:
    codes = [byte & 15 for byte in b[at:]] + [byte >> 4 for byte in b[at:]]
    return [d * F(code - shift) + m for code in codes]


def _five(b: bytes, d: F, m: F, at: int, shift: int) -> list[F]:
    high = int.from_bytes(b[at : at + 4], "little")
    codes = [byte & 15 for byte in b[at + 4 :]] + [byte >> 4 for byte in b[at + 4 :]]
    codes = [code | (high >> i & 1) << 4 for i, code in enumerate(codes)]
    return [d * F(code - shift) + m for code in codes]


def _q8_0(b: bytes, d: F, m: F) -> list[F]:
    return [d * F(q) for q in np.frombuffer(b[2:], np.int8)]


def _q2_k(b: bytes, d: F, m: F) -> list[F]:
    values, scale = [], 0
    for half in (16, 48):
        for shift in (0, 2, 4, 6):
            for first in (half, half + 16):
                byte = b[scale]
                dl, ml = d * F(byte & 15), m * F(byte >> 4)
                values += [dl * F(b[first + i] >> shift & 3) - ml for i in range(16)]
                scale += 1
    return values


def _q3_k(b: bytes, d: F, m: F) -> list[F]:
    packed = b[96:108]
    scales = []
    for j in range(16):
        low = packed[j] & 15 if j < 8 else packed[j - 8] >> 4
        scales.append((low | (packed[8 + j % 4] >> 2 * (j // 4) & 3) << 4) - 32)
    values, plane, scale = [], 1, 0
    for half in (32, 64):
        for shift in (0, 2, 4, 6):
            for first in (0, 16):
                dl = d * F(scales[scale])
                for i in range(first, first + 16):
                    q = b[half + i] >> shift & 3
                    values.append(dl * F(q - (0 if b[i] & plane else 4)))
                scale += 1
            plane <<= 1
    return values


def _scale_and_minimum(j: int, q: bytes) -> tuple[int, int]:
    if j < 4:
        return q[j] & 63, q[j + 4] & 63
    return q[j + 4] & 15 | q[j - 4] >> 6 << 4, q[j + 4] >> 4 | q[j] >> 6 << 4


def _q4_k(b: bytes, d: F, m: F) -> list[F]:
    values = []
    for j in range(8):
        scale, minimum = _scale_and_minimum(j, b[4:16])
        d1, m1 = d * F(scale), m * F(minimum)
        nibbles = [byte >> 4 * (j % 2) & 15 for byte in b[16 + j // 2 * 32 :][:32]]
        values += [d1 * F(q) - m1 for q in nibbles]
    return values


def _q5_k(b: bytes, d: F, m: F) -> list[F]:
    values = []
    for j in range(8):
        scale, minimum = _scale_and_minimum(j, b[4:16])
        d1, m1 = d * F(scale), m * F(minimum)
        for i in range(32):
            q = b[48 + j // 2 * 32 + i] >> 4 * (j % 2) & 15
            values.append(d1 * F(q + (16 if b[16 + i] & 1 << j else 0)) - m1)
    return values


def _q6_k(b: bytes, d: F, m: F) -> list[F]:
    values = np.zeros(256, F)
    scales = np.frombuffer(b[192:208], np.int8)
    for half in (0, 1):
        ql, qh, sc, y = 64 * half, 128 + 32 * half, 8 * half, 128 * half
        for i in range(32):
            high = b[qh + i]
            codes = (
                b[ql + i] & 15 | (high & 3) << 4,
                b[ql + 32 + i] & 15 | (high >> 2 & 3) << 4,
                b[ql + i] >> 4 | (high >> 4 & 3) << 4,
                b[ql + 32 + i] >> 4 | (high >> 6 & 3) << 4,
            )
            for k, code in enumerate(codes):
                values[y + 32 * k + i] = d * F(scales[sc + i // 16 + 2 * k]) * F(code - 32)
    return list(values)


_LOOPS = {
    "Q4_0": lambda b, d, m: _four(b, d, F(0), 2, 8),
    "Q4_1": lambda b, d, m: _four(b, d, m, 4, 0),
    "Q5_0": lambda b, d, m: _five(b, d, F(0), 2, 16),
    "Q5_1": lambda b, d, m: _five(b, d, m, 4, 0),
    "Q8_0": _q8_0,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}
