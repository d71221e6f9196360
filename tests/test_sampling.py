"""The sampler against a literal NumPy filter, and its promises about seeds and shapes."""

from __future__ import annotations

import math

import mlx.core as mx
import numpy as np
import pytest

from tinygpt.errors import ConfigError
from tinygpt.sampling import Sampler, SamplingOptions, keep_min_p, keep_top_k, keep_top_p, penalise
from tinygpt.sampling_options import MAX_COUNT, MAX_PENALTY, MAX_TEMPERATURE

V = 50
DRAWS = 4_000
# five standard deviations of a frequency estimated from DRAWS draws, at worst
FREQUENCY_TOLERANCE = 5 * math.sqrt(0.25 / DRAWS)


def logits_of(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(scale=2.0, size=V).astype(np.float32)


def reference_distribution(
    logits: np.ndarray, options: SamplingOptions, recent: list[int]
) -> np.ndarray:
    """The documented order, one token at a time, in float64, with no shared code."""
    values = [float(x) for x in logits]
    window = recent[-options.repetition_window :] if options.repetition_window else []
    for token in set(window):
        if values[token] > 0:
            values[token] /= options.repetition_penalty
        else:
            values[token] *= options.repetition_penalty
    alive = sorted(range(len(values)), key=lambda t: -values[t])
    if options.top_k:
        alive = alive[: options.top_k]
    if options.top_p < 1:
        weights = [math.exp(values[t] - values[alive[0]]) for t in alive]
        reached, kept = 0.0, []
        for token, weight in zip(alive, weights, strict=True):
            if reached >= options.top_p:
                break
            kept.append(token)
            reached += weight / sum(weights)
        alive = kept
    if options.min_p > 0:
        best = values[alive[0]]
        alive = [t for t in alive if math.exp(values[t] - best) >= options.min_p]
    out = np.zeros(len(values))
    for token in alive:
        out[token] = math.exp((values[token] - values[alive[0]]) / options.temperature)
    return out / out.sum()


FILTERS = [
    {},
    {"top_k": 7},
    {"top_p": 0.8},
    {"min_p": 0.1},
    {"top_k": 12, "top_p": 0.7, "min_p": 0.05, "temperature": 1.7},
    {"top_p": 0.6, "repetition_penalty": 1.5},
    {"repetition_penalty": 0.5, "top_k": 5},
]


@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_drawn_frequencies_are_those_of_a_literal_filter(filters: dict[str, float]) -> None:
    options = SamplingOptions(seed=3, **filters)  # type: ignore[arg-type]
    logits = logits_of(1)
    recent = [int(t) for t in np.argsort(-logits)[:6]]
    expected = reference_distribution(logits, options, recent)
    key, drawn = mx.random.key(11), np.zeros(V)
    for _ in range(DRAWS):
        key, sub = mx.random.split(key)
        sampler = Sampler(options, recent)
        sampler._key = sub
        drawn[sampler(mx.array(logits)).item()] += 1
    assert set(np.flatnonzero(drawn)) <= set(np.flatnonzero(expected)), "a dropped token was drawn"
    assert np.abs(drawn / DRAWS - expected).max() < FREQUENCY_TOLERANCE


@pytest.mark.parametrize("seed", range(20))
def test_each_filter_keeps_exactly_the_tokens_of_its_definition(seed: int) -> None:
    logits = logits_of(seed)
    for name, keep, value in (
        ("top_k", keep_top_k, 1 + seed),
        ("top_p", keep_top_p, (seed + 1) / 21),
        ("min_p", keep_min_p, (seed + 1) / 21),
    ):
        options = SamplingOptions(temperature=1.0, **{name: value})  # type: ignore[arg-type]
        expected = np.flatnonzero(reference_distribution(logits, options, []))
        kept = np.flatnonzero(np.isfinite(np.array(keep(mx.array(logits), value))))
        assert kept.tolist() == expected.tolist(), name


def test_top_p_after_top_k_counts_probability_among_the_survivors() -> None:
    # of all four tokens the first has 0.4, of the best two 0.57: 0.5 needs two tokens or one
    logits = mx.log(mx.array([0.4, 0.3, 0.2, 0.1]))
    assert np.isfinite(np.array(keep_top_p(logits, 0.5))).tolist() == [True, True, False, False]
    both = keep_top_p(keep_top_k(logits, 2), 0.5)
    assert np.isfinite(np.array(both)).tolist() == [True, False, False, False]


def test_temperature_zero_takes_the_most_likely_token_after_the_penalty() -> None:
    logits = mx.array([1.0, 3.0, 2.9, -1.0])
    greedy = SamplingOptions(temperature=0)
    assert Sampler(greedy, [])(logits).item() == 1
    penalised = SamplingOptions(temperature=0, repetition_penalty=1.1)
    assert Sampler(penalised, [1])(logits).item() == 2


def test_penalty_makes_a_negative_logit_more_negative_and_counts_a_token_once() -> None:
    out = penalise(mx.array([2.0, -2.0, 1.0]), mx.array([0, 1, 0, 0]), 2.0)
    assert np.array(out).tolist() == [1.0, -4.0, 1.0]


def test_the_window_counts_prompt_tokens_and_forgets_older_ones() -> None:
    options = SamplingOptions(temperature=0, repetition_penalty=100.0, repetition_window=2)
    logits = mx.array([4.0, 3.0, 2.0, 1.0])
    sampler = Sampler(options, [3, 0])  # 3 is as recent as 0: both punished
    assert [sampler(logits).item() for _ in range(5)] == [1, 2, 0, 1, 2]


def test_a_window_of_zero_switches_the_penalty_off() -> None:
    options = SamplingOptions(temperature=0, repetition_penalty=100.0, repetition_window=0)
    assert Sampler(options, [1])(mx.array([1.0, 2.0])).item() == 1


def test_the_same_seed_draws_the_same_tokens_whatever_else_draws() -> None:
    def draw(disturb: bool) -> list[int]:
        sampler = Sampler(SamplingOptions(seed=7), [])
        tokens = []
        for step in range(30):
            if disturb:
                mx.eval(mx.random.uniform(shape=(step + 1,)))
            tokens.append(int(sampler(mx.array(logits_of(step))).item()))
        return tokens

    assert draw(disturb=False) == draw(disturb=True)


def test_unseeded_samplers_differ_and_tell_a_seed_that_repeats_them() -> None:
    flat = mx.zeros(1_000)
    unseeded = [Sampler(SamplingOptions(), []) for _ in range(3)]
    drawn = [[int(s(flat).item()) for _ in range(8)] for s in unseeded]
    assert drawn[0] != drawn[1] != drawn[2]
    again = Sampler(SamplingOptions(seed=unseeded[0].seed), [])
    assert [int(again(flat).item()) for _ in range(8)] == drawn[0]


@pytest.mark.parametrize("temperature", [1e-5, 1e-7, 1e-40, 5e-324])
def test_a_tiny_temperature_is_greedy_and_never_overflows(temperature: float) -> None:
    logits = mx.array([-1e4, 3e4, 2.9e4])
    assert Sampler(SamplingOptions(temperature=temperature, seed=1), [])(logits).item() == 1


def test_what_the_sampler_keeps_stops_growing_at_the_window() -> None:
    options = SamplingOptions(repetition_penalty=1.2, repetition_window=8, seed=1)
    sampler = Sampler(options, [])
    sizes = []
    for step in range(20):
        mx.eval(sampler(mx.array(logits_of(step))))
        sizes.append(sampler._recent.size)
    assert sizes[:8] == list(range(1, 9)) and set(sizes[8:]) == {8}


@pytest.mark.parametrize("p", [1e-300, 1e-46, 1e-39, 1e-8])
def test_a_tiny_top_p_keeps_the_most_likely_token(p: float) -> None:
    logits = mx.array([0.0, 1.0, 3.0, 2.0])
    assert np.isfinite(np.array(keep_top_p(logits, p))).tolist() == [False, False, True, False]


def test_the_hottest_temperature_draws_evenly_from_what_the_filters_kept() -> None:
    sampler = Sampler(SamplingOptions(temperature=MAX_TEMPERATURE, top_k=2, seed=1), [])
    drawn = [int(sampler(mx.array([0.0, 9.0, 1.0, 8.0])).item()) for _ in range(200)]
    assert set(drawn) == {1, 3}
    assert abs(drawn.count(1) / 200 - 0.5) < 5 * math.sqrt(0.25 / 200), "five standard deviations"


@pytest.mark.parametrize("penalty", [1 / MAX_PENALTY, MAX_PENALTY])
def test_the_strongest_penalties_leave_finite_logits(penalty: float) -> None:
    logits = mx.array([-1e5, 0.0, 1e5])
    assert np.isfinite(np.array(penalise(logits, mx.array([0, 1, 2]), penalty))).all()


def test_the_largest_counts_keep_everything() -> None:
    options = SamplingOptions(
        top_k=MAX_COUNT, repetition_window=MAX_COUNT, repetition_penalty=2.0, temperature=0
    )
    assert Sampler(options, [1])(mx.array([1.0, 1.5, 0.5])).item() == 0


@pytest.mark.parametrize(
    ("flag", "options"),
    [
        ("--temperature", {"temperature": -0.1}),
        ("--temperature", {"temperature": math.nan}),
        ("--temperature", {"temperature": math.inf}),
        ("--temperature", {"temperature": 1e39}),
        ("--top-k", {"top_k": -1}),
        ("--top-k", {"top_k": 2**31}),
        ("--top-p", {"top_p": 0.0}),
        ("--top-p", {"top_p": 1.1}),
        ("--min-p", {"min_p": -0.1}),
        ("--min-p", {"min_p": math.nan}),
        ("--repetition-penalty", {"repetition_penalty": 0.0}),
        ("--repetition-penalty", {"repetition_penalty": math.inf}),
        ("--repetition-penalty", {"repetition_penalty": 1e39}),
        ("--repetition-penalty", {"repetition_penalty": 1e-46}),
        ("--repetition-window", {"repetition_window": -1}),
        ("--repetition-window", {"repetition_window": 2**31}),
        ("--seed", {"seed": -1}),
        ("--seed", {"seed": 2**64}),
    ],
    ids=str,
)
def test_a_value_out_of_range_is_refused_naming_its_flag(
    flag: str, options: dict[str, float]
) -> None:
    with pytest.raises(ConfigError, match=flag):
        SamplingOptions(**options)  # type: ignore[arg-type]
