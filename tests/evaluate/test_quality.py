"""Figures of the cached path against a NumPy oracle that caches nothing, and their invariances."""

from __future__ import annotations

import math

import mlx.core as mx
import numpy as np
import pytest

from oracles import numpy_decoder
from oracles.small_models import SmallModel, small_model
from tinygpt.cache import CacheSpec, KVCache
from tinygpt.engine import Engine
from tinygpt.errors import GenerationError
from tinygpt.evaluate.quality import Candidate, Quality, Text, candidate
from tinygpt.evaluate.summary import Result
from tinygpt.models.transformer import Transformer

VOCAB = 61  # of the small models
SAME_CHUNKS_FULL = 1e-6  # relative; float32 sums in another order
SAME_CHUNKS_OTHER = 1e-4  # the same moves a stored value over a border between two codes
SAME_KL = 1e-7  # nats; the same again, where fp16's whole KL is 2.5e-7
ORACLE = 1e-5  # relative; the oracle computes in float64, the model in float32
BOUNDED = {"window": CacheSpec(window=16), "absolute": CacheSpec(window=16, positions="absolute")}
SPECS = {
    "full": CacheSpec(),
    "fp16": CacheSpec("fp16"),
    "int8": CacheSpec("int8"),
    "int4": CacheSpec("int4"),
    "int4 bounded": CacheSpec("int4", window=48),
    **BOUNDED,
}


def text(length: int, seed: int = 0) -> Text:
    ids = np.random.default_rng(seed).integers(0, VOCAB, length)
    return Text(tuple(int(token) for token in ids), (2,) * length)


def evaluate(
    model: Transformer, spec: CacheSpec, *texts: Text, chunk: int = 256, batch: int = 1
) -> Result:
    reference = candidate(model, "full", CacheSpec())
    quality = Quality([candidate(model, "it", spec)], reference, chunk=chunk, batch=batch)
    quality.run(texts, lambda fed: None)
    return quality.results[0]


def oracle_log_probabilities(small: SmallModel, ids: tuple[int, ...]) -> np.ndarray:
    logits = numpy_decoder.forward(small.described, small.weights, list(ids))
    top = logits.max(axis=-1, keepdims=True)
    return logits - top - np.log(np.exp(logits - top).sum(axis=-1, keepdims=True))


def stepwise_logits(model: Transformer, spec: CacheSpec, ids: tuple[int, ...]) -> np.ndarray:
    """What `sample` computes: one token at a time, launched before the next is known."""
    engine = Engine(model, [KVCache(spec, model.cache_layout())])
    return np.array([np.array(engine.launch(mx.array([token]))[0]) for token in ids])


@pytest.mark.parametrize("kind", ["mha", "rope gqa", "untied", "sliding"])
def test_perplexity_is_that_of_numpy_without_a_cache(kind: str) -> None:
    small, one = small_model(kind), text(80)
    expected = oracle_log_probabilities(small, one.ids)[:-1]
    nll = -expected[np.arange(79), one.ids[1:]]
    got = evaluate(small.build(), CacheSpec(), one, chunk=32)
    assert got.tokens == 79
    assert got.perplexity == pytest.approx(math.exp(nll.mean()), rel=ORACLE)
    error = math.exp(nll.mean()) * nll.std(ddof=1) / math.sqrt(79)
    assert got.perplexity_se == pytest.approx(error, rel=ORACLE)
    assert got.bits_per_byte == pytest.approx(nll.mean() / math.log(2) / 2, rel=ORACLE)


@pytest.mark.parametrize("name", [name for name in SPECS if name != "full"])
def test_divergence_is_that_of_brute_force(name: str) -> None:
    """Distributions one token at a time, then KL, agreement and percentiles term by term."""
    model, one = small_model("rope gqa").build(), text(80, seed=3)
    log_p, log_q = (
        logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
        for logits in (
            stepwise_logits(model, spec, one.ids[:-1]).astype(np.float64)
            for spec in (CacheSpec(), SPECS[name])
        )
    )
    kl = [
        sum(math.exp(a) * (a - b) for a, b in zip(p, q, strict=True))
        for p, q in zip(log_p, log_q, strict=True)
    ]
    got = evaluate(model, SPECS[name], one, chunk=1)
    assert got.compared == 79
    assert got.kl_mean == pytest.approx(sum(kl) / 79, rel=1e-6, abs=1e-12)
    assert got.kl_max == pytest.approx(max(kl), rel=1e-6)
    below = sorted(kl)[77:]  # 0.99 of the way through 79 values is 77.22: between the last two
    assert got.kl_p99 == pytest.approx(below[0] + 0.22 * (below[1] - below[0]), rel=1e-6)
    same = [p.argmax() == q.argmax() for p, q in zip(log_p, log_q, strict=True)]
    assert got.top1 == pytest.approx(sum(same) / 79)


@pytest.mark.parametrize("kind", ["rope gqa", "mha"])
@pytest.mark.parametrize("name", SPECS)
def test_figures_do_not_depend_on_chunk_or_batch(kind: str, name: str) -> None:
    model = small_model(kind, context=96).build()
    texts = [text(90), text(33, seed=1), text(70, seed=2)]
    tolerance = SAME_CHUNKS_FULL if name == "full" else SAME_CHUNKS_OTHER
    whole = evaluate(model, SPECS[name], *texts)
    assert whole.tokens == 89 + 32 + 69
    for chunk, batch in ((1, 1), (7, 1), (32, 2), (40, 3)):
        got = evaluate(model, SPECS[name], *texts, chunk=chunk, batch=batch)
        assert got.perplexity == pytest.approx(whole.perplexity, rel=tolerance), (chunk, batch)
        assert got.kl_mean == pytest.approx(whole.kl_mean, rel=1e-3, abs=SAME_KL), (chunk, batch)
        assert (got.tokens, got.bytes, got.compared) == (whole.tokens, whole.bytes, whole.compared)


def test_a_model_of_zeros_scores_its_vocabulary_size() -> None:
    small = small_model("mha")
    model = Transformer(small.config, {n: mx.zeros(w.shape) for n, w in small.weights.items()})
    for spec in SPECS.values():
        got = evaluate(model, spec, text(60))
        assert got.perplexity == VOCAB and got.by_position[0].perplexity == VOCAB
        assert got.perplexity_se == 0 and got.kl_max == 0 and got.top1 == 1


@pytest.mark.parametrize("length", [0, 1])
def test_a_text_without_a_next_token_scores_nothing(length: int) -> None:
    got = evaluate(small_model("mha").build(), CacheSpec(), text(length))
    assert (got.tokens, got.perplexity, got.kl_mean, got.by_position) == (0, None, None, ())
    assert got.bytes_per_token is got.tokens_per_second is None


@pytest.mark.parametrize("kind", ["rope gqa", "mha"])
def test_a_long_text_runs_as_far_as_the_cache_allows(kind: str) -> None:
    """Unbounded to the context, bounded to the end; they are compared where both are."""
    model, one = small_model(kind, context=40).build(), text(150)
    unbounded = evaluate(model, CacheSpec("fp16"), one, chunk=16)
    bounded = evaluate(model, CacheSpec(window=16), one, chunk=16)
    assert (unbounded.tokens, unbounded.compared) == (40, 40)
    assert (bounded.tokens, bounded.compared) == (149, 40)


@pytest.mark.parametrize("name", BOUNDED)
def test_learned_positions_start_again_where_the_generation_does(name: str) -> None:
    model, one = small_model("mha", context=40).build(), text(150)
    logits = stepwise_logits(model, BOUNDED[name], one.ids[:-1]).astype(np.float64)
    nll = np.log(np.exp(logits).sum(axis=-1)) - logits[np.arange(149), one.ids[1:]]
    for chunk, batch in ((16, 1), (7, 2)):
        got = evaluate(model, BOUNDED[name], one, one, chunk=chunk, batch=batch)
        assert got.perplexity == pytest.approx(math.exp(nll.mean()), rel=ORACLE)


def test_figures_by_position_add_up() -> None:
    model, one = small_model("rope mqa", context=3000).build(), text(2300)
    got = evaluate(model, CacheSpec(window=16), one, text(300, seed=1))
    spans = [(part.start, part.stop, part.tokens) for part in got.by_position]
    expected = [(0, 256, 510), (256, 1024, 768 + 44), (1024, 2048, 1024), (2048, 4096, 252)]
    assert spans == expected
    total = sum(part.tokens * math.log(part.perplexity) for part in got.by_position)
    assert math.exp(total / got.tokens) == pytest.approx(got.perplexity)
    mean = sum(part.compared * (part.kl_mean or 0) for part in got.by_position) / got.compared
    assert mean == pytest.approx(got.kl_mean)


def test_bytes_are_those_of_one_sequence() -> None:
    model = small_model("rope gqa", context=512).build()
    per_token = 2 * 2 * 2 * 32 * 4  # layers, keys and values, kv-heads, head_dim, float32
    got = evaluate(model, CacheSpec(), text(301), text(100), batch=2)
    assert (got.bytes, got.bytes_per_token) == (300 * per_token, per_token)
    assert evaluate(model, CacheSpec(window=16), text(301)).bytes == 20 * per_token
    assert evaluate(model, CacheSpec("int8"), text(301)).bytes < got.bytes / 2


def test_the_peak_is_that_of_the_cache_and_not_of_the_reference() -> None:
    """1,500 tokens of the full cache take 1.5 MB, which a bounded one must not be charged for."""
    model = small_model("rope gqa", context=2000).build()
    weights = sum(w.nbytes for w in small_model("rope gqa").weights.values())
    small = evaluate(model, CacheSpec(window=16), text(1500), chunk=16)
    large = evaluate(model, CacheSpec(), text(1500), chunk=16)
    assert weights < small.peak_bytes < large.peak_bytes - 1_000_000


def test_logits_that_are_not_finite_are_an_error_that_names_the_position() -> None:
    small = small_model("mha")
    small.weights["position_embedding.weight"][5] = np.nan
    with pytest.raises(GenerationError, match="it: the logits for position 6 are not finite"):
        evaluate(small.build(), CacheSpec(), text(20), chunk=1)


def test_a_result_can_be_asked_for_in_the_middle() -> None:
    model = small_model("mha").build()
    full: Candidate = candidate(model, "full", CacheSpec())
    other = candidate(model, "int8", CacheSpec("int8"))
    quality = Quality([full, other], full, chunk=16, batch=1)

    def stop(fed: int) -> None:
        if fed >= 64:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quality.run([text(80)], stop)
    whole = evaluate(model, CacheSpec(), Text(text(80).ids[:33], (2,) * 33))
    of_full, of_other = quality.results
    assert of_full.tokens == of_other.tokens == 32
    assert of_full.perplexity == pytest.approx(whole.perplexity, rel=SAME_CHUNKS_FULL)
    assert of_full.kl_max == 0 < of_other.kl_max


def test_a_run_may_stop_between_two_caches_of_one_chunk() -> None:
    model = small_model("mha").build()
    ones = [candidate(model, name, CacheSpec(name)) for name in ("full", "int8")]
    quality = Quality(ones, ones[0], chunk=16, batch=1)

    def stop(fed: int) -> None:
        if fed >= 48:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quality.run([text(80)], stop)
    assert [result.tokens for result in quality.results] == [32, 16]


def test_caches_in_lockstep_have_the_figures_that_each_has_alone() -> None:
    model = small_model("gqa").build()
    full = candidate(model, "full", CacheSpec())
    names = ("full", "int8", "int4 bounded", "window")
    ones = [full, *(candidate(model, name, SPECS[name]) for name in names[1:])]
    texts = text(90), text(130, seed=1)
    together = Quality(ones, full, chunk=32, batch=2)
    together.run(texts, lambda fed: None)
    for name, result in zip(names, together.results, strict=True):
        alone = evaluate(model, SPECS[name], *texts, chunk=32, batch=2)
        for figure in ("tokens", "perplexity", "kl_mean", "kl_max", "top1", "bytes"):
            own, its = getattr(result, figure), getattr(alone, figure)
            assert own == pytest.approx(its, rel=1e-9), figure
