"""Each scaling against its formula, pair by pair, and against a few numbers worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest

from oracles.hf_numpy import scaled
from tinygpt.errors import ConfigError
from tinygpt.ops.rope import RopeConfig, rotate, rotation
from tinygpt.ops.rope_scaling import (
    RopeScaling,
    longrope_attention_factor,
    yarn_attention_factor,
)

BASE, DIMS, CONTEXT = 500000.0, 64, 4096
PAIRS = DIMS // 2
SHORT = tuple(1.0 + i / 100 for i in range(PAIRS))
LONG = tuple(1.0 + i for i in range(PAIRS))

# the words of config.json, and ours
CASES: dict[str, tuple[dict, RopeScaling | None]] = {
    "none": ({}, None),
    "linear": ({"type": "linear", "factor": 4.0}, RopeScaling("linear", factor=4.0)),
    "dynamic": (
        {"type": "dynamic", "factor": 2.0},
        RopeScaling("dynamic", factor=2.0, original_context=CONTEXT),
    ),
    "llama3": (
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 2048,
        },
        RopeScaling("llama3", factor=8.0, original_context=2048),
    ),
    "yarn": (
        {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024},
        RopeScaling(
            "yarn",
            factor=4.0,
            original_context=1024,
            attention_factor=yarn_attention_factor(4.0),
        ),
    ),
    "yarn mscale": (
        {
            "type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 1024,
            "beta_fast": 16,
            "beta_slow": 2,
            "mscale": 0.7,
            "mscale_all_dim": 0.4,
        },
        RopeScaling(
            "yarn",
            factor=4.0,
            original_context=1024,
            beta_fast=16,
            beta_slow=2,
            attention_factor=yarn_attention_factor(4.0, 0.7, 0.4),
        ),
    ),
    "longrope": (
        {
            "type": "longrope",
            "short_factor": SHORT,
            "long_factor": LONG,
            "original_max_position_embeddings": 1024,
        },
        RopeScaling(
            "longrope",
            original_context=1024,
            divisors=SHORT,
            long_divisors=LONG,
            attention_factor=longrope_attention_factor(4.0, 1024),
        ),
    ),
}


@pytest.mark.parametrize("tokens", [1, 1024, 1025, 4096, 4097, 20000])
@pytest.mark.parametrize("name", CASES)
def test_frequencies_are_those_of_the_formula(name: str, tokens: int) -> None:
    words, scaling = CASES[name]
    frequencies, factor = scaled(BASE, DIMS, words, tokens, CONTEXT, {})
    rope = RopeConfig(BASE, DIMS, scaling=scaling).for_length(tokens)
    np.testing.assert_allclose(rope.frequencies, frequencies, rtol=1e-12)
    assert rope.attention_factor == pytest.approx(factor, rel=1e-12)


def test_yarn_divides_slow_pairs_and_keeps_fast_ones() -> None:
    plain = RopeConfig(BASE, DIMS).frequencies
    got = RopeConfig(BASE, DIMS, scaling=CASES["yarn"][1]).frequencies
    np.testing.assert_allclose(got[0], plain[0])
    np.testing.assert_allclose(got[-1], plain[-1] / 4)
    ratios = plain / got
    assert ((ratios > 1) & (ratios < 4)).any()
    assert (np.diff(ratios) >= -1e-12).all()


def test_the_attention_factors_are_those_of_the_papers() -> None:
    assert yarn_attention_factor(4.0) == pytest.approx(1.1386294361119891)
    assert yarn_attention_factor(1.0) == 1.0
    assert yarn_attention_factor(40.0, 1.0, 1.0) == 1.0
    # Phi-3-mini-128k: 131072 tokens from 4096
    assert longrope_attention_factor(32.0, 4096) == pytest.approx(1.1902380714238083)


def test_without_truncation_yarn_blends_between_whole_pairs() -> None:
    scaling = CASES["yarn"][1]
    assert scaling is not None
    whole = RopeConfig(BASE, DIMS, scaling=scaling).frequencies
    between = RopeConfig(BASE, DIMS, scaling=replace(scaling, truncate=False)).frequencies

    def pair(turns: float) -> float:
        return DIMS * math.log(1024 / (turns * 2 * math.pi)) / (2 * math.log(BASE))

    low, high = pair(32), pair(1)
    middle = math.ceil(low)
    ramp = (middle - low) / (high - low)
    plain = BASE ** (-2 * middle / DIMS)
    assert between[middle] == pytest.approx(plain / 4 * ramp + plain * (1 - ramp), rel=1e-12)
    assert whole[middle] != between[middle]


def test_a_rotation_multiplies_what_it_rotates_by_the_attention_factor() -> None:
    """And leaves the dimensions it passes over as they are: partial rotary."""
    scaling = RopeScaling("divisors", divisors=(2.0, 4.0), attention_factor=1.5)
    x = mx.array([[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]])
    turned = np.array(rotate(x, rotation(RopeConfig(100.0, 4, scaling=scaling), np.array([0]))))
    np.testing.assert_allclose(turned, [[1.5, 3.0, 4.5, 6.0, 5.0, 6.0]], rtol=1e-6)
    one = np.array(rotate(x, rotation(RopeConfig(100.0, 4, scaling=scaling), np.array([1]))))
    angle = 1 / 2  # the first pair's frequency is 1
    expected = 1.5 * (1.0 * math.cos(angle) - 3.0 * math.sin(angle))
    assert one[0, 0] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_one_rotation_is_chosen_for_a_whole_text(kind: str) -> None:
    """A cache rotates keys when it stores them; a rotation that changed later would not fit."""
    scaling = CASES[kind][1]
    chosen = RopeConfig(BASE, DIMS, scaling=scaling).for_length(20000)
    assert chosen.for_length(1) == chosen


REFUSED = {
    "an unknown kind": lambda: RopeScaling("ntk"),  # type: ignore[arg-type]
    "a factor of zero": lambda: RopeScaling("linear", factor=0.0),
    "a factor that is not finite": lambda: RopeScaling("linear", factor=math.inf),
    "no original context": lambda: RopeScaling("yarn", factor=2.0),
    "equal llama3 factors": lambda: RopeScaling(
        "llama3", original_context=8, low_freq_factor=4.0, high_freq_factor=4.0
    ),
    "too few divisors": lambda: RopeConfig(
        BASE, DIMS, scaling=RopeScaling("divisors", divisors=(1.0,))
    ),
    "too few long divisors": lambda: RopeConfig(
        BASE,
        DIMS,
        scaling=RopeScaling("longrope", original_context=8, divisors=SHORT, long_divisors=LONG[1:]),
    ),
    "a negative base": lambda: RopeConfig(-1.0, DIMS),
    "a base of one in yarn": lambda: RopeConfig(1.0, DIMS, scaling=CASES["yarn"][1]),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_scaling_that_is_no_use_is_refused(what: str) -> None:
    with pytest.raises(ConfigError) as caught:
        REFUSED[what]()
    assert "\n" not in str(caught.value)
