"""Greedy prefixes and buried keys, on random models."""

from __future__ import annotations

import mlx.core as mx
import pytest

from oracles.small_models import small_model
from tinygpt.cache import CacheSpec
from tinygpt.errors import ConfigError
from tinygpt.evaluate.greedy import GreedyMatch, greedy_tokens
from tinygpt.evaluate.passkey import Haystack, found, haystack

IDS = [5, 17, 23, 2, 60, 41] * 8
MODEL = small_model("rope gqa", context=256).build()


def nothing() -> None:
    pass


def encode(text: str) -> list[int]:
    return list(text.encode())


def test_the_full_cache_matches_itself_to_the_end() -> None:
    match = GreedyMatch(MODEL, "p", IDS, 40, nothing).compare("full", CacheSpec())
    assert (match.tokens, match.matched, match.margin) == (40, 40, None)


def test_the_match_ends_at_the_first_difference_and_the_margin_is_the_full_cache_s() -> None:
    tokens = 60
    match = GreedyMatch(MODEL, "p", IDS, tokens, nothing).compare("w", CacheSpec(sink=0, window=2))
    full = list(greedy_tokens(MODEL, CacheSpec(), IDS, tokens, nothing))
    other = list(greedy_tokens(MODEL, CacheSpec(sink=0, window=2), IDS, tokens, nothing))
    same = match.matched
    assert full[:same] == other[:same] and full[same] != other[same]
    logits = MODEL(mx.array([[*IDS, *full[:same]]]))[0, -1]
    expected = float(logits[full[same]] - logits[other[same]])
    assert match.margin == pytest.approx(expected, abs=1e-5)
    assert expected > 0


@pytest.mark.parametrize("depth", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_a_haystack_has_its_length_and_its_key_at_its_depth(depth: float) -> None:
    text = haystack(encode, [1], 1500, depth, seed=7)
    assert len(text.ids) == 1500 and text.ids[0] == 1
    words = bytes(text.ids[1:]).decode()
    at = words.index(f" The pass key is {text.key}. Remember it.")
    filler = 1500 - len(haystack_without_filler())
    task = words.index("\n\n") + 2
    assert at - task == round(depth * filler)
    assert words.endswith("What is the pass key? The pass key is")
    assert words.count(text.key) == 2


def haystack_without_filler() -> tuple[int, ...]:
    """The shortest one: every number of digits is five."""
    for length in range(100, 400):
        try:
            return haystack(encode, [1], length, 0.5, seed=0).ids
        except ConfigError as error:
            assert "--lengths" in str(error)
    raise AssertionError("the task alone takes more than 400 bytes")


def test_the_seed_decides_the_text() -> None:
    one, same, other = (haystack(encode, [], 900, 0.5, seed) for seed in (1, 1, 2))
    assert one == same and one.key != other.key and one.ids != other.ids
    assert haystack(encode, [], 900, 0.6, 1).key != one.key


@pytest.mark.parametrize(
    "answer, hit",
    [
        (" 12345. Remember", True),
        ("\n 1 2 3 4 5", True),
        ("12345", True),
        ("1234", False),
        ("the 12345", False),
        (" 54321", False),
        ("", False),
    ],
)
def test_a_key_is_found_where_the_answer_begins_with_it(answer: str, hit: bool) -> None:
    text = Haystack(tuple(IDS), "12345")
    assert found(MODEL, CacheSpec(), text, lambda ids: answer, nothing) is hit
