"""A cache as text says what the flags of sample say, and nothing else."""

from __future__ import annotations

import pytest

from oracles.small_models import small_model
from tinygpt.cache import CacheSpec
from tinygpt.cache.spec import FLAGS
from tinygpt.errors import ConfigError
from tinygpt.evaluate.cache_text import GRID, parse_cache, read_cache

LAYOUT = small_model("rope gqa").build().cache_layout()


@pytest.mark.parametrize(
    "text, spec",
    [
        ("full", CacheSpec()),
        ("fp32", CacheSpec("fp32")),
        ("int4,group=64", CacheSpec("int4", group=64)),
        ("int8,sink=4,window=256", CacheSpec("int8", sink=4, window=256)),
        ("window=16,positions=absolute", CacheSpec(window=16, positions="absolute")),
        (" int2 , residual=0,first_fp=8 ", CacheSpec("int2", residual=0, first_fp=8)),
        ("precision=int3,window=none", CacheSpec("int3")),
    ],
)
def test_a_text_is_the_cache_of_the_same_flags(text: str, spec: CacheSpec) -> None:
    got, notes = read_cache(text, LAYOUT, context=96)
    assert (got.precision, got.sinks, got.window, notes) == (
        spec.precision,
        spec.sinks,
        spec.window,
        (),
    )
    assert (got.group, got.residual_for(got.window)) == (spec.group, spec.residual_for(spec.window))
    assert (got.first_fp, got.positions) == (spec.first_fp, spec.positions)


def test_a_budget_chooses_the_window() -> None:
    spec, notes = read_cache("fp16,max_bytes=64K", LAYOUT, context=96)
    assert spec.window is not None and len(notes) == 1


@pytest.mark.parametrize(
    "text, reason",
    [
        ("int8,sinks=4", "there is no key 'sinks'; the keys are precision, group, residual"),
        ("int8,prefill_chunk=4", "there is no key 'prefill_chunk'"),
        ("int5", "'int5' is neither key=value nor one of the precisions full, fp32"),
        ("", "'' is neither"),
        ("int8,int4", "precision is given twice"),
        ("int8,", "nothing after a comma"),
        ("int8,window=3.5", "--cache 'int8,window=3.5': window is '3.5'"),
        ("fp16,group=64", "group has no meaning with precision fp16"),
        ("sink=4", "sink 4 needs window"),
        ("int8,window=20", "window 20 is smaller than residual"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=r"(?s).*") as caught:
        read_cache(text, LAYOUT, context=96)
    assert reason in str(caught.value) and "\n" not in str(caught.value)


def test_an_unknown_key_is_refused_with_every_key_there_is() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_cache("bits=8")
    keys = {flag.key for flag in FLAGS} - {"prefill_chunk"}
    assert all(key in str(caught.value) for key in keys)


def test_the_grid_can_be_read() -> None:
    assert len({read_cache(text, LAYOUT, context=96)[0] for text in GRID}) == len(GRID)
