"""A real pretrained model: golden greedy tokens, mlx-lm's own, and quality that holds."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from tinygpt.cache import CacheSpec, KVCache
from tinygpt.generate import Generation
from tinygpt.io.checkpoint import Checkpoint
from tinygpt.models.transformer import Transformer

pytestmark = pytest.mark.real

PROMPT = "The first president of the United States was"
TOKENS = 64
# Greedy continuation of PROMPT in float32, the same in mlx-lm 0.32.2 and here (2026-11-30).
GOLDEN = [
    2322, 426, 30, 13676, 30, 909, 436, 253, 4302, 1547, 13790, 617, 2163, 253, 2899, 11183, 327,
    260, 5744, 2646, 282, 216, 33, 41, 38, 34, 28, 527, 436, 2724, 288, 1538, 5580, 327, 260, 1797,
    6950, 30, 909, 436, 597, 253, 4028, 282, 260, 5744, 2646, 282, 216, 33, 41, 38, 34, 28, 527,
    436, 4180, 411, 5061, 281, 216, 33, 41, 38,
]  # fmt: skip
LOGIT_TOLERANCE = 1e-3  # float32 through 30 layers in another order of sums; logits reach 30
TEXT_TOKENS = 640

# Bounds of the mean KL divergence to the full cache over the text below, with room: `tinygpt eval`
# gives the values. They tell the precisions apart from one another and from a bug.
KL_BOUNDS = {"fp16": 1e-5, "int8": 2e-4, "int4": 4e-3, "int3": 2e-2, "int2": 0.4}


@pytest.fixture(scope="module")
def prompt_ids(smollm2_checkpoint: Checkpoint) -> list[int]:
    return smollm2_checkpoint.read_tokenizer(None).encode(PROMPT)


@pytest.fixture(scope="module")
def text_ids(smollm2_checkpoint: Checkpoint) -> list[int]:
    """English that no model was trained on: this project's own source."""
    source = Path(__file__).parents[2] / "src" / "tinygpt" / "cache"
    text = "\n".join(path.read_text() for path in sorted(source.rglob("*.py")))
    return smollm2_checkpoint.read_tokenizer(None).encode(text)[:TEXT_TOKENS]


def greedy(model: Transformer, spec: CacheSpec, ids: list[int], **more: object) -> list[int]:
    cache = KVCache(spec, model.cache_layout())
    return list(Generation(model, cache, ids, mx.argmax, tokens=TOKENS, **more))  # type: ignore[arg-type]


def log_probabilities(
    model: Transformer, spec: CacheSpec, ids: list[int], *, chunk: int = 128, start: int = 0
) -> np.ndarray:
    """`[T, V]`, through the cache."""
    cache, pieces = KVCache(spec, model.cache_layout(), start=start), []
    for at in range(0, len(ids), chunk):
        logits = model(mx.array([ids[at : at + chunk]]), cache)[0]
        pieces.append(np.array(logits - mx.logsumexp(logits, axis=-1, keepdims=True)))
    return np.concatenate(pieces)


def divergence(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """KL(p‖q) at each position, from log-probabilities `[T, V]`."""
    return (np.exp(p.astype(np.float64)) * (p.astype(np.float64) - q)).sum(axis=-1)


@pytest.fixture(scope="module")
def full(smollm2: Transformer, text_ids: list[int]) -> np.ndarray:
    return log_probabilities(smollm2, CacheSpec(), text_ids)


def test_greedy_tokens_are_the_golden_ones(smollm2: Transformer, prompt_ids: list[int]) -> None:
    assert greedy(smollm2, CacheSpec(), prompt_ids) == GOLDEN
    assert greedy(smollm2, CacheSpec(), prompt_ids, prefill_chunk=3) == GOLDEN


@pytest.mark.parametrize("precision", ["fp16", "int8"])
def test_storing_less_keeps_the_golden_tokens(
    smollm2: Transformer, prompt_ids: list[int], precision: str
) -> None:
    assert greedy(smollm2, CacheSpec(precision), prompt_ids) == GOLDEN


def test_greedy_tokens_and_logits_are_mlx_lm_s(
    smollm2: Transformer, smollm2_path: Path, prompt_ids: list[int]
) -> None:
    generate = pytest.importorskip("mlx_lm.generate")
    from oracles import mlx_lm_smollm2

    other = mlx_lm_smollm2.load(smollm2_path)
    steps = generate.generate_step(mx.array(prompt_ids), other, max_tokens=TOKENS)
    assert [int(token) for token, _ in steps] == greedy(smollm2, CacheSpec(), prompt_ids)
    ids = mx.array([prompt_ids + GOLDEN])  # 72 positions, so rotary order would show
    difference = mx.abs(other(ids) - smollm2(ids)).max()
    assert float(difference) <= LOGIT_TOLERANCE


@pytest.mark.parametrize("precision", KL_BOUNDS)
def test_quality_holds_for_every_precision(
    smollm2: Transformer, text_ids: list[int], full: np.ndarray, precision: str
) -> None:
    got = log_probabilities(smollm2, CacheSpec(precision), text_ids)
    assert divergence(full, got).mean() <= KL_BOUNDS[precision]


def test_sinks_are_worth_their_four_tokens(
    smollm2: Transformer, text_ids: list[int], full: np.ndarray
) -> None:
    """With sinks the window's loss stays small; without them it is large on this model."""
    late = slice(200, None)

    def mean_divergence(**window: object) -> float:
        spec = CacheSpec(**window)  # type: ignore[arg-type]
        return float(divergence(full, log_probabilities(smollm2, spec, text_ids))[late].mean())

    bare = mean_divergence(sink=0, window=132)
    assert mean_divergence(sink=4, window=128) < bare / 2
    assert mean_divergence(sink=4, window=128, positions="absolute") < bare / 2
    assert mean_divergence(precision="int8", sink=4, window=128) < bare / 2


def test_a_prompt_in_chunks_has_the_quality_of_one_fed_token_by_token(
    smollm2: Transformer, text_ids: list[int]
) -> None:
    ids = text_ids[:160]
    dense, packed = CacheSpec(window=64), CacheSpec("int8", window=64)
    whole, single = (log_probabilities(smollm2, packed, ids, chunk=n) for n in (160, 1))
    # Sums in another order differ by 1e-7, which moves some values over a border between two half-
    # precision numbers or codes, and 30 layers carry that on: far below what the codes cost.
    cost = np.abs(single - log_probabilities(smollm2, dense, ids)).mean()
    assert np.abs(whole - single).mean() <= cost
    assert divergence(single, whole).mean() <= 1e-5  # int8 itself costs 2e-5


@pytest.mark.parametrize("start", [10**5, 10**8])
@pytest.mark.parametrize(
    "spec", [CacheSpec(), CacheSpec(window=64), CacheSpec("int8", window=64)], ids=str
)
def test_where_a_text_starts_changes_nothing(
    smollm2: Transformer, text_ids: list[int], spec: CacheSpec, start: int
) -> None:
    ids = text_ids[:150]
    near, far = (log_probabilities(smollm2, spec, ids, start=s) for s in (0, start))
    assert np.abs(near - far).max() <= 1e-3
    assert divergence(near, far).max() <= 1e-6
