"""A draft that is taken back and replaced by another of the same length, again and again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from oracles.cache_reference import Rope, Settings, Shape, draw_tokens

GQA = Shape(4, 2, 32)
SLACK = 8
SAME = 1e-5  # the same stored numbers; only sums may run in another order


@pytest.mark.parametrize("precision", ["fp32", "int8", "int3"])
@pytest.mark.parametrize("window", [None, 64])
@pytest.mark.parametrize("count", [1, 4, SLACK])
def test_replaced_drafts_leave_no_trace(
    precision: str, window: int | None, count: int, build: Callable, feed: Callable
) -> None:
    """`count` tokens at a time over several borders between groups and past the ring's end."""
    settings = Settings(
        precision, 32, 8, 4, 4 if window else 0, window, "rolling", Rope(10000.0, 32)
    )
    total = 30 + 30 * count
    tokens = draw_tokens(21, total, GQA, settings)
    wrong = draw_tokens(22, total, GQA, settings)
    drafted, plain = (build(replace(settings), GQA, slack=SLACK) for _ in range(2))
    for cache in (drafted, plain):
        feed(cache, tokens[:30], [30])
    for at in range(30, total, count):
        feed(drafted, wrong[at : at + count], [count])
        drafted.undo(count)
        got = feed(drafted, tokens[at : at + count], [count])
        want = feed(plain, tokens[at : at + count], [count])
        assert np.abs(got - want).max() <= SAME, f"token {at}"
