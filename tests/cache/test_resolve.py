"""Flags, a file's hints and a model become one cache, or a refusal that helps."""

from __future__ import annotations

import pytest

from tinygpt.cache import CacheLayout, KVCache, LayerLayout
from tinygpt.cache.budget import full_bytes
from tinygpt.cache.resolve import resolve_spec
from tinygpt.errors import ConfigError
from tinygpt.ops.rope import RopeConfig

ROPE = CacheLayout((LayerLayout(2, 64, RopeConfig(10000.0, 64)),) * 2)
LEARNED = CacheLayout((LayerLayout(2, 64, None),) * 2)
HINTS = {"kviBits": 8, "streamingSink": 4, "streamingWindow": 64}


def resolve(given: dict[str, object], hints: dict[str, int] | None = None, **more: object):  # type: ignore[no-untyped-def]
    layout = more.get("layout", ROPE)
    return resolve_spec(given, hints or {}, layout, context=more.get("context", 256))  # type: ignore[arg-type]


def test_hints_are_the_defaults_and_flags_win() -> None:
    spec = resolve({}, HINTS).spec
    assert (spec.precision, spec.sinks, spec.window) == ("int8", 4, 64)
    spec = resolve({"precision": "full", "window": "none"}, HINTS).spec
    assert (spec.precision, spec.sinks, spec.window) == ("full", 0, None)
    assert resolve({"window": 100}, HINTS).spec.window == 100
    assert resolve({}, {"streamingSink": 4}).spec.window is None
    assert resolve({}, {"streamingWindow": 0}).spec.window is None


def test_a_budget_chooses_the_window_also_over_a_hint() -> None:
    resolved = resolve({"max_bytes": 1_000_000}, HINTS)
    assert resolved.spec.window > 64
    assert full_bytes(resolved.spec, ROPE) <= 1_000_000
    assert f"--streaming-llm-window {resolved.spec.window}" in resolved.notes[0]


def test_a_budget_works_with_a_residual_larger_than_the_scan() -> None:
    spec = resolve({"precision": "int8", "max_bytes": 64_000_000, "residual": 600}).spec
    assert spec.window > 632


def test_learned_positions_cut_the_window_with_one_note() -> None:
    resolved = resolve({"window": 1000}, layout=LEARNED)
    assert resolved.spec.window == 252
    assert len(resolved.notes) == 1 and "252" in resolved.notes[0]


@pytest.mark.parametrize(
    ("given", "hints", "layout", "named"),
    [
        ({"sink": 0}, {}, ROPE, ["--streaming-llm-sink 0", "--streaming-llm-window"]),
        ({"sink": 8}, {}, ROPE, ["--streaming-llm-sink 8", "--streaming-llm-window"]),
        ({"positions": "rolling"}, {}, ROPE, ["--streaming-llm-positions", "-window"]),
        ({"positions": "rolling", "window": 64}, {}, LEARNED, ["--streaming-llm-positions"]),
        ({"group": "64"}, {}, ROPE, ["--kv-group", "full"]),
        ({"first_fp": 8, "precision": "fp16"}, {}, ROPE, ["--kv-first-fp", "fp16"]),
        ({"window": "none", "max_bytes": 10**6}, {}, ROPE, ["-window none", "--kv-max-bytes"]),
        ({"window": 64, "max_bytes": 100}, {}, ROPE, ["--streaming-llm-window 64", "100"]),
        ({"max_bytes": 100}, {}, ROPE, ["--kv-max-bytes 100", "bytes"]),
        ({"window": 10**20}, {}, ROPE, ["--streaming-llm-window", "2147483647"]),
        ({"precision": "int8", "first_fp": 2**63}, {}, ROPE, ["--kv-first-fp"]),
        ({"sink": 300, "window": 8}, {}, LEARNED, ["--streaming-llm-sink 300", "256"]),
        ({"sink": 300, "max_bytes": 10**7}, {}, LEARNED, ["--streaming-llm-sink 300", "256"]),
        ({}, {"kviBits": 8, "streamingWindow": 16}, ROPE, ["kviBits 8", "streamingWindow 16"]),
    ],
)
def test_what_cannot_be_right_is_refused_naming_the_flags(
    given: dict[str, object], hints: dict[str, int], layout: CacheLayout, named: list[str]
) -> None:
    with pytest.raises(ConfigError) as refused:
        resolve(given, hints, layout=layout)
    assert all(name in str(refused.value) for name in named), refused.value


def test_a_window_that_positions_cut_too_far_says_so() -> None:
    with pytest.raises(ConfigError, match=r"--streaming-llm-window 256 is cut to 28.*at least"):
        resolve({"precision": "int8", "window": 256}, layout=LEARNED, context=32)


def test_every_layer_is_checked_before_loading() -> None:
    own = CacheLayout((ROPE.layers[0], LayerLayout(2, 64, RopeConfig(10000.0, 64), window=8)))
    with pytest.raises(ConfigError, match="window of a layer"):
        resolve({"precision": "int8"}, layout=own)
    assert KVCache(resolve({"precision": "fp16"}, layout=own).spec, own).seen == 0
