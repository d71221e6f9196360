"""Affine minimum–maximum codes, packed so that MLX's own kernels multiply with them.

KIVI (Liu et al., 2024, arXiv 2402.02750) with the floor on the scale that keeps constant groups
exact. Scale and zero are rounded to float16 *before* the codes are computed, so that what is read
back is the nearest value the stored form can express.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx

from tinygpt.ops.backend import prefers_plain

SCALE_FLOOR = 1e-5  # a constant group divides by this, not by zero
LEAST = 4096  # words; below, mx.dequantize is faster than the same in plain operations


@dataclass(frozen=True, slots=True)
class Packed:
    """Codes of `x` [..., n]: value = scale · code + zero, one scale and zero per `group` codes.

    words: uint32 `[..., n·bits/32]`; scales, zeros: float16 `[..., n/group]`.
    """

    words: mx.array
    scales: mx.array
    zeros: mx.array
    group: int
    bits: int

    @property
    def nbytes(self) -> int:
        """Bytes of the three arrays."""
        return int(self.words.nbytes + self.scales.nbytes + self.zeros.nbytes)

    def each(self, change: Callable[[mx.array], mx.array]) -> Packed:
        """The same with each of the three arrays changed."""
        words, scales, zeros = (change(array) for array in (self.words, self.scales, self.zeros))
        return Packed(words, scales, zeros, self.group, self.bits)


def quantise_affine(x: mx.array, group: int, bits: int) -> Packed:
    """Pack `x` [..., n] along its last axis, n a multiple of `group`, with `bits` in 8, 4, 3, 2."""
    levels = (1 << bits) - 1
    grouped = x.astype(mx.float32).reshape(*x.shape[:-1], x.shape[-1] // group, group)
    lowest = grouped.min(axis=-1)
    scale = mx.maximum((grouped.max(axis=-1) - lowest) / levels, SCALE_FLOOR)
    scales, zeros = scale.astype(mx.float16), lowest.astype(mx.float16)
    centred = grouped - zeros.astype(mx.float32)[..., None]
    codes = mx.round(centred / scales.astype(mx.float32)[..., None])
    codes = mx.clip(codes, 0, levels).astype(mx.uint32)
    return Packed(pack(codes.reshape(x.shape), bits), scales, zeros, group, bits)


def pack(codes: mx.array, bits: int) -> mx.array:
    """uint32 `codes` [..., n] as one little-endian bit stream: `[..., n·bits/32]` words."""
    if bits == 3:
        return _pack_three(codes)
    per_word = 32 // bits
    fields = codes.reshape(*codes.shape[:-1], codes.shape[-1] // per_word, per_word)
    return (fields << mx.arange(0, 32, bits, dtype=mx.uint32)).sum(axis=-1)


def _pack_three(codes: mx.array) -> mx.array:
    """32 three-bit codes are four runs of 24 bits, which make three words."""
    fields = codes.reshape(*codes.shape[:-1], codes.shape[-1] // 32, 4, 8)
    runs = (fields << mx.arange(0, 24, 3, dtype=mx.uint32)).sum(axis=-1)
    a, b, c, d = (runs[..., i] for i in range(4))
    words = mx.stack([a | (b << 24), (b >> 8) | (c << 16), (c >> 16) | (d << 8)], axis=-1)
    return words.reshape(*codes.shape[:-1], codes.shape[-1] * 3 // 32)


def dequantise(packed: Packed) -> mx.array:
    """The values `[..., n]` in float32, whatever the scales are stored in."""
    # float16 scales make mx.dequantize five times slower on a CPU.
    scales, zeros = packed.scales.astype(mx.float32), packed.zeros.astype(mx.float32)
    if packed.bits in (8, 4) and prefers_plain(packed.words.size, LEAST):
        codes = _bytes(packed).astype(mx.float32)
        grouped = codes.reshape(*scales.shape, packed.group)
        return (grouped * scales[..., None] + zeros[..., None]).reshape(codes.shape)
    return mx.dequantize(
        packed.words, scales, zeros, group_size=packed.group, bits=packed.bits, mode="affine"
    )


def _bytes(packed: Packed) -> mx.array:
    """Codes of 8 or 4 bits as uint8 `[..., n]`."""
    codes = mx.view(packed.words, mx.uint8)
    if packed.bits == 8:
        return codes
    pairs = codes.astype(mx.uint16)  # 0xBA, which becomes 0x0B0A: low code first, as it is stored
    return mx.view((pairs | (pairs << 4)) & 0x0F0F, mx.uint8)


def quantise_k(keys: mx.array, group: int, bits: int) -> Packed:
    """Keys `[N, T, D]` per channel, in groups of `group` tokens: words `[N, D, T·bits/32]`."""
    return quantise_affine(keys.swapaxes(1, 2), group, bits)


def quantise_v(values: mx.array, group: int, bits: int) -> Packed:
    """Values `[N, T, D]` per token, in groups of `group` channels: words `[N, T, D·bits/32]`."""
    return quantise_affine(values, group, bits)


def dequantise_k(packed: Packed) -> mx.array:
    """Keys `[N, T, D]`, float32, of `quantise_k`'s result."""
    return dequantise(packed).swapaxes(1, 2)


def dequantise_v(packed: Packed) -> mx.array:
    """Values `[N, T, D]`, float32, of `quantise_v`'s result."""
    return dequantise(packed)
