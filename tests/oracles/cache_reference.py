"""One attention layer with a KV cache, token by token, in NumPy float64: slow and obvious.

It knows which tokens a query sees, at which positions and in which form, and nothing of tinygpt or
MLX: no buffers, chunks or masks, only token numbers. Papers: StreamingLLM (Xiao et al., 2023, arXiv
2309.17453), KIVI (Liu et al., 2024, arXiv 2402.02750), RoPE (Su et al., 2021, arXiv 2104.09864).
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

import numpy as np

SCALE_FLOOR = 1e-5
# A float32 rotation is within a few units of 2^-24 of the pair's length; a rotated key nearer than
# this to a rounding border may fall on either side of it.
ROTATION_ERROR = 1e-6


@dataclass(frozen=True)
class Rope:
    """Rotation of the first `dims` dimensions, by halves (i, i + dims/2) or by neighbours."""

    base: float
    dims: int
    traditional: bool = False


@dataclass(frozen=True)
class Settings:
    """What one layer's cache does. `residual` is in tokens and already resolved.

    `start` is the position of the first token; rotations, sinks and borders count from it.
    """

    precision: str = "fp32"  # fp32 | fp16 | bf16 | int8 | int4 | int3 | int2
    group: int = 32
    residual: int = 32
    first_fp: int = 4
    sinks: int = 0
    window: int | None = None
    positions: str = "rolling"
    rope: Rope | None = None
    half: str = "fp16"
    start: int = 0

    @property
    def bits(self) -> int | None:
        return int(self.precision[3:]) if self.precision.startswith("int") else None

    @property
    def rounding(self) -> str:
        """The form of a token that is not packed."""
        return self.half if self.bits else self.precision

    @property
    def first_packed(self) -> int:
        """F: the tokens before it are never packed."""
        return max(self.sinks, self.first_fp)

    @property
    def rolls(self) -> bool:
        return self.window is not None and self.positions == "rolling"

    def sees(self, i: int, j: int) -> bool:
        """Whether query i may look at token j."""
        if self.window is None:
            return j <= i
        return j <= i and (j < self.sinks or i - j < self.window)

    def border(self, i: int) -> int:
        """Query i reads token j packed iff j < border(i)."""
        if self.bits is None:
            return 0
        full = max(0, i - self.first_packed - self.residual) // self.group
        return self.first_packed + self.group * full


def round_fp32(x: np.ndarray) -> np.ndarray:
    return np.asarray(x).astype(np.float32).astype(np.float64)


def round_fp16(x: np.ndarray) -> np.ndarray:
    return np.asarray(x).astype(np.float16).astype(np.float64)


def round_bf16(x: np.ndarray) -> np.ndarray:
    """The upper 16 bits of a float32, rounded to nearest, ties to even."""
    bits = np.ascontiguousarray(np.asarray(x).astype(np.float32)).view(np.uint32)
    bits += np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return np.asarray((bits & np.uint32(0xFFFF0000)).view(np.float32), dtype=np.float64)


ROUND = {"fp32": round_fp32, "fp16": round_fp16, "bf16": round_bf16}


def rotate(x: np.ndarray, position: float, rope: Rope | None) -> np.ndarray:
    """Rotate `x` [..., D] as the token at `position`; a negative position rotates back."""
    if rope is None:
        return x
    half = rope.dims // 2
    angle = position * rope.base ** (-np.arange(half) * 2.0 / rope.dims)
    first, second = pair_slices(rope)
    out = np.array(x, dtype=np.float64)
    out[..., first] = x[..., first] * np.cos(angle) - x[..., second] * np.sin(angle)
    out[..., second] = x[..., first] * np.sin(angle) + x[..., second] * np.cos(angle)
    return out


def pair_slices(rope: Rope) -> tuple[slice, slice]:
    """Where the first and the second members of the rotated pairs are."""
    if rope.traditional:
        return slice(0, rope.dims, 2), slice(1, rope.dims, 2)
    return slice(0, rope.dims // 2), slice(rope.dims // 2, rope.dims)


def quantise_group(x: np.ndarray, bits: int) -> tuple[np.ndarray, float, float]:
    """Codes [g], scale and zero of one group `x` [g]; scale and zero are fp16 numbers."""
    levels = 2**bits - 1
    zero = float(round_fp16(x.min()))
    scale = float(round_fp16(np.maximum(SCALE_FLOOR, (x.max() - x.min()) / levels)))
    codes = np.clip(np.rint((x - zero) / scale), 0, levels)  # rint: ties to even
    return codes, scale, zero


def through_codes(x: np.ndarray, bits: int) -> np.ndarray:
    """One group `x` [g], packed and read back."""
    codes, scale, zero = quantise_group(x, bits)
    return codes * scale + zero


def value_group(group: int, head_dim: int) -> int:
    """Channels of one token that share a scale: the largest MLX group that fits."""
    return next(g for g in (128, 64, 32) if g <= group and head_dim % g == 0)


class LayerReference:
    """The tokens of one layer as a list; `attend` answers the query of the last one."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.keys: list[np.ndarray] = []  # un-rotated, [H_kv, D] each
        self.values: list[np.ndarray] = []
        self._unpacked: list[tuple[np.ndarray, np.ndarray]] = []
        self._packed: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    def append(self, k: np.ndarray, v: np.ndarray) -> None:
        """One more token: k, un-rotated, and v, [H_kv, D]."""
        j = len(self.keys)
        self.keys.append(np.asarray(k, dtype=np.float64))
        self.values.append(np.asarray(v, dtype=np.float64))
        self._unpacked.append((self._stored_key(j), ROUND[self.settings.rounding](v)))

    def attend(self, q: np.ndarray, scale: float) -> np.ndarray:
        """Outputs [H, D] of the last token's queries q [H, D]."""
        i = len(self.keys) - 1
        visible = [j for j in range(i + 1) if self.settings.sees(i, j)]
        numbers = range(len(visible)) if self.settings.rolls else visible
        offset = 0 if self.settings.rolls else self.settings.start
        rope, stored = self.settings.rope, [self._form(i, j) for j in visible]
        placed = zip(stored, numbers, strict=True)
        turned = [rotate(key, offset + p, rope) for (key, _), p in placed]
        query = rotate(np.asarray(q, dtype=np.float64), offset + numbers[-1], rope)

        outputs = np.empty(q.shape)
        per_kv_head = q.shape[0] // self.keys[i].shape[0]
        for h in range(q.shape[0]):
            kv = h // per_kv_head
            scores = np.array([scale * float(query[h] @ key[kv]) for key in turned])
            weights = np.exp(scores - scores.max())
            weights /= weights.sum()
            outputs[h] = sum(w * value[kv] for w, (_, value) in zip(weights, stored, strict=True))
        return outputs

    def _form(self, i: int, j: int) -> tuple[np.ndarray, np.ndarray]:
        """Key (un-rotated) and value of token j as query i reads them."""
        if j >= self.settings.border(i) or j < self.settings.first_packed:
            return self._unpacked[j]
        if j not in self._packed:
            self._pack_group_of(j)
        return self._packed[j]

    def _stored_key(self, j: int) -> np.ndarray:
        """An unpacked key as stored: rounded when rotated to its number in the cache.

        Rounding a sink un-rotated would be as true to the paper, but would not equal a plain cache
        while nothing has been evicted.
        """
        rotated = rotate(self.keys[j], j, self.settings.rope)
        return rotate(ROUND[self.settings.rounding](rotated), -j, self.settings.rope)

    def _pack_group_of(self, j: int) -> None:
        """KIVI: keys per channel over the group's tokens, values per token over channels."""
        s, bits = self.settings, self.settings.bits
        assert bits is not None
        first = j - (j - s.first_packed) % s.group
        tokens = range(first, first + s.group)
        rotated = [rotate(self.keys[t], t, s.rope) for t in tokens]
        keys = ROUND[s.half](np.stack(rotated))  # [g, H_kv, D]
        _, heads, dims = keys.shape
        for h, d in np.ndindex(heads, dims):
            keys[:, h, d] = through_codes(keys[:, h, d], bits)
        gv = value_group(s.group, dims)
        for t in tokens:
            value = ROUND[s.half](self.values[t])
            for h in range(heads):
                for d in range(0, dims, gv):
                    value[h, d : d + gv] = through_codes(value[h, d : d + gv], bits)
            self._packed[t] = (rotate(keys[t - first], -t, s.rope), value)


@dataclass(frozen=True)
class Shape:
    """The heads of one layer."""

    heads: int
    kv_heads: int
    head_dim: int

    @property
    def scale(self) -> float:
        return float(self.head_dim**-0.5)


@dataclass(frozen=True)
class Tokens:
    """What a layer gives its cache for T tokens: q [T, H, D], k and v [T, H_kv, D], un-rotated."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray

    def __len__(self) -> int:
        return len(self.q)

    def __getitem__(self, span: slice) -> Tokens:
        return Tokens(self.q[span], self.k[span], self.v[span])

    def but(self, j: int, *, key: bool = True, value: bool = True) -> Tokens:
        """The same tokens with another key and value at j."""
        k, v = self.k.copy(), self.v.copy()
        for x, changes in ((k, key), (v, value)):
            x[j] = 1.5 - x[j] if changes else x[j]
        return Tokens(self.q, k, v)


def attend_all(
    settings: Settings, tokens: Tokens, scale: float, queries: Container[int] | None = None
) -> np.ndarray:
    """Outputs [T, H, D] of the tokens, fed one by one; of `queries` alone where they are given."""
    layer, outputs = LayerReference(settings), []
    for i, (q, k, v) in enumerate(zip(tokens.q, tokens.k, tokens.v, strict=True)):
        layer.append(k, v)
        if queries is None or i in queries:
            outputs.append(layer.attend(q, scale))
    return np.stack(outputs)


def draw_tokens(seed: int, count: int, shape: Shape, settings: Settings) -> Tokens:
    """The first `count` tokens of a stream, random, float32; two key channels are outliers.

    No key is so near to a rounding border that float32 and float64 rotations round it apart. With
    equal rounded keys both arithmetics give equal codes, and what is left is float32 summation.
    """
    rng = np.random.default_rng(seed)
    gain = np.ones(shape.head_dim)
    gain[[3, shape.head_dim - 2]] = 6, 9
    centre = rng.normal(size=(shape.kv_heads, shape.head_dim)) * 0.5

    def draw(heads: int) -> np.ndarray:
        return rng.normal(size=(count, heads, shape.head_dim)).astype(np.float32)

    def draw_keys() -> np.ndarray:
        return ((draw(shape.kv_heads) + centre) * gain).astype(np.float32)

    q, k, v = draw(shape.heads), draw_keys(), draw(shape.kv_heads)
    while (doubtful := _near_a_border(k, settings)).any():
        k = np.where(doubtful, draw_keys(), k)
    return Tokens(q, k, v)


def _near_a_border(k: np.ndarray, settings: Settings) -> np.ndarray:
    """Which elements of `k` belong to a pair that may round either way once rotated."""
    doubtful = np.zeros(k.shape, dtype=bool)
    rope, keep = settings.rope, ROUND[settings.rounding]
    if rope is None or keep is round_fp32:
        return doubtful
    a, b = pair_slices(rope)
    for t, key in enumerate(k):
        turned = rotate(key.astype(np.float64), t, rope)
        reach = ROTATION_ERROR * np.hypot(turned[:, a], turned[:, b])
        near = [keep(turned[:, p] - reach) != keep(turned[:, p] + reach) for p in (a, b)]
        doubtful[t][:, a] = doubtful[t][:, b] = near[0] | near[1]
    return doubtful
