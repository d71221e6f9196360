"""Attention over parts of every form, blockwise and at once, against NumPy in float64."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from tinygpt.ops import backend
from tinygpt.ops.attention import DenseView, PartsView, View, attend
from tinygpt.ops.parts import DensePart, PackedPart, Part
from tinygpt.ops.quantize import dequantise_k, dequantise_v, quantise_k, quantise_v
from tinygpt.ops.scoring import Scoring

N, HEADS, DIM = 2, 3, 32
CLOSE = 2e-5  # float32 sums over 1,100 tokens, outputs of size one


@pytest.fixture(params=["plain", "mlx"], autouse=True)
def side(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(backend.VARIABLE, request.param)


def draw(*shape: int, seed: int, scale: float = 1.0) -> mx.array:
    values = scale * np.random.default_rng(seed).standard_normal(shape)
    return mx.array(values.astype(np.float32))


def unasked() -> np.ndarray:
    raise AssertionError("attention itself does not need the numbers of the tokens")


def view_of(parts: list[Part]) -> View:
    return PartsView(parts, unasked)


def parts_of(tokens: int, seed: int) -> list[Part]:
    """Sinks in half precision, packed tokens that some queries see, dense ones more than a block.

    The first queries see nothing of the packed part, so a block of scores can be masked whole.
    """
    rng = np.random.default_rng(seed)
    sink = DensePart(
        *(draw(N, 4, DIM, seed=seed + i).astype(mx.float16) for i in (1, 2)), sink=True
    )
    mask = rng.random((tokens, 64)) < 0.5
    mask[: tokens // 2] = False
    keys, values = (draw(N, 64, DIM, seed=seed + i, scale=3) for i in (3, 4))
    packed = PackedPart(quantise_k(keys, 32, 8), quantise_v(values, 32, 8), mx.array(mask))
    length = backend.CPU_SIZES.kept + 517
    seen = np.arange(length) <= length - tokens + np.arange(tokens)[:, None]
    dense = DensePart(*(draw(N, length, DIM, seed=seed + i) for i in (5, 6)), mx.array(seen))
    return [sink, packed, dense]


def exact(
    queries: mx.array, sink_queries: mx.array, parts: list[Part], softcap: float | None
) -> np.ndarray:
    """The same in one softmax over everything, in float64."""
    scores, values = [], []
    for part in parts:
        rows = np.array(sink_queries if part.sink else queries, dtype=np.float64)
        packed = isinstance(part, PackedPart)
        read_keys, read_values = (dequantise_k, dequantise_v) if packed else (mx.array, mx.array)
        keys = np.array(read_keys(part.keys).astype(mx.float32), dtype=np.float64)
        score = np.einsum("ngtd,nkd->ngtk", rows, keys)
        if softcap is not None:
            score = softcap * np.tanh(score / softcap)
        if part.allowed is not None:
            score = np.where(np.array(part.allowed), score, -np.inf)
        scores.append(score)
        values.append(np.array(read_values(part.values).astype(mx.float32), dtype=np.float64))
    score = np.concatenate(scores, -1)
    weights = np.exp(score - score.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return np.einsum("ngtk,nkd->ngtd", weights, np.concatenate(values, 1))


@pytest.mark.parametrize("softcap", [None, 5.0])
@pytest.mark.parametrize("tokens", [1, 2, 31, 32, 33, 100])
@pytest.mark.parametrize("scale", [0.2, 30.0])
def test_parts_give_one_exact_softmax(tokens: int, softcap: float | None, scale: float) -> None:
    queries, turned = (draw(N, HEADS, tokens, DIM, seed=seed, scale=scale) for seed in (7, 8))
    parts = parts_of(tokens, 10)
    got, _ = attend(queries, turned, view_of(parts), Scoring(softcap))
    wanted = exact(queries, turned, parts, softcap)
    size = float(np.abs(wanted).max())
    np.testing.assert_allclose(np.array(got), wanted, atol=CLOSE * size * max(1, scale))


@pytest.mark.parametrize("tokens", [1, 5, 40])
@pytest.mark.parametrize("before", [0, 3, 700])
def test_a_dense_view_is_causal(tokens: int, before: int) -> None:
    length = before + tokens
    keys, values = (draw(N, length, DIM, seed=seed) for seed in (1, 2))
    queries = draw(N, HEADS, tokens, DIM, seed=3, scale=0.3)
    seen = np.arange(length) <= before + np.arange(tokens)[:, None]
    wanted = exact(queries, queries, [DensePart(keys, values, mx.array(seen))], None)
    got, _ = attend(queries, queries, DenseView(keys, values, unasked))
    np.testing.assert_allclose(np.array(got), wanted, atol=CLOSE)


def test_nan_in_what_a_query_sees_is_not_hidden() -> None:
    keys, values = draw(N, 600, DIM, seed=1), draw(N, 600, DIM, seed=2)
    keys[0, 550, 0] = float("nan")
    queries = draw(N, HEADS, 40, DIM, seed=3)
    got = np.array(attend(queries, queries, view_of([DensePart(keys, values)]))[0])
    assert np.isnan(got[0]).all()
    assert np.isfinite(got[1]).all()
