"""What a query sees depends on token numbers only: the cache against the per-token reference.

The table crosses every precision with every window and feeds each pair in every chunk size; first
full-precision tokens, positions, heads, rotations and the half type rotate through it.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable

import mlx.core as mx
import numpy as np
import pytest

from oracles.cache_reference import Rope, Settings, Shape, Tokens, attend_all, draw_tokens
from tinygpt.cache import KVCache

# Reference and cache read the same stored numbers (`draw_tokens` keeps keys away from rounding
# borders), so only float32 summation and softmax differ: 1e-6 here. Rule 2 grants 1e-4.
SAME = 1e-4

FLOATS, INTS = ("fp32", "fp16", "bf16"), ("int8", "int4", "int3", "int2")
SIZES = (1, 3, 7, 8, 16, 64, 10**6)
# (sinks, window, group, residual); None and 0 are "no window" and "no sinks".
FLOAT_WINDOWS = (
    (0, None, 32, 32),
    (0, 5, 32, 0),
    (1, 8, 32, 0),
    (4, 8, 32, 0),
    (2, 1, 32, 0),
    (4, 64, 32, 8),
    (6, 40, 32, 0),
)
INT_WINDOWS = (
    (0, None, 32, 32),
    (0, None, 64, 13),
    (0, None, 128, 0),
    (0, 40, 32, 8),
    (1, 64, 32, 32),
    (4, 64, 32, 8),
    (6, 72, 32, 0),
    (4, 75, 32, 5),
    (4, 128, 64, 16),
)
SHAPES = (Shape(2, 2, 32), Shape(6, 2, 64), Shape(4, 1, 96), Shape(3, 1, 64), Shape(2, 1, 128))


def table() -> list[tuple[Settings, Shape, int]]:
    """Settings, shape and prompt length of every case."""
    cases = []
    for family, windows in ((FLOATS, FLOAT_WINDOWS), (INTS, INT_WINDOWS)):
        for (a, precision), (b, window) in itertools.product(enumerate(family), enumerate(windows)):
            cases.append(case(precision, window, a, b))
    return cases


def case(
    precision: str, window: tuple[int, int | None, int, int], a: int, b: int
) -> tuple[Settings, Shape, int]:
    sinks, width, group, residual = window
    shape = SHAPES[(a + 2 * b) % len(SHAPES)]
    ropes = (
        Rope(10000.0, shape.head_dim),
        Rope(10000.0, shape.head_dim // 2),
        Rope(500000.0, shape.head_dim, traditional=True),
        Rope(10000.0, shape.head_dim // 4, traditional=True),
        None,
    )
    settings = Settings(
        precision=precision,
        group=group,
        residual=residual,
        first_fp=(0, 4, 8)[(a + b) % 3],
        sinks=sinks,
        window=width,
        positions=("rolling", "absolute")[(a + b) % 2],
        rope=ropes[(3 * a + b) % len(ropes)],
        half=("fp16", "bf16")[(a + b // 2) % 2],
    )
    several = 3 * (sinks + width) + 11 if width else 2 * group + residual + 80
    return settings, shape, min(several, 270)


TABLE = table()


@functools.lru_cache(maxsize=16)
def answers(settings: Settings, shape: Shape, count: int) -> tuple[Tokens, np.ndarray]:
    """Tokens and the reference's outputs for them."""
    tokens = draw_tokens(count, count, shape, settings)
    return tokens, attend_all(settings, tokens, shape.scale)


def name(case: object) -> str:
    if not isinstance(case, Settings):
        return ""
    return (
        f"{case.precision}-S{case.sinks}-W{case.window}-g{case.group}-R{case.residual}"
        f"-F{case.first_fp}-{case.positions}"
    )


def assert_same(got: np.ndarray, want: np.ndarray, cause: str) -> None:
    error = np.abs(got - want).max(axis=(1, 2))
    first = int(np.argmax(~(error <= SAME)))
    assert error.max() <= SAME, f"{cause}: from query {first} on, by up to {error.max():.2g}"


@pytest.mark.parametrize("settings, shape, count", TABLE, ids=name)
def test_every_query_of_every_chunk_size_sees_what_its_number_grants(
    settings: Settings, shape: Shape, count: int, build: Callable, feed: Callable, chunked: Callable
) -> None:
    tokens, want = answers(settings, shape, count)
    for size in SIZES:
        got = feed(build(settings, shape), tokens, chunked(count, size))
        assert_same(got, want, f"chunks of {size} differ from the per-token reference")


def test_the_table_crosses_windows_with_both_kinds_of_positions() -> None:
    rolling = {s.precision for s, _, _ in TABLE if s.rolls and s.rope and s.sinks}
    absolute = {s.precision for s, _, _ in TABLE if s.window and not s.rolls and s.rope and s.sinks}
    assert rolling == absolute == {*FLOATS, *INTS}


GQA = Shape(4, 2, 32)
ROPE = Rope(10000.0, 32)
STREAM = {"sinks": 4, "window": 64, "residual": 8, "first_fp": 4, "rope": ROPE}
PLAIN = {"residual": 16, "first_fp": 8, "rope": ROPE}


def prompt_lengths(settings: Settings) -> list[int]:
    """Prompts shorter than the sinks, one token to either side of a border, several windows."""
    first = settings.first_packed
    packs = first + settings.residual + settings.group
    full = settings.sinks + (settings.window or 0)
    around = [first, packs, packs + settings.group, full, full + settings.group]
    near = {n + d for n in around for d in (-1, 0, 1)}
    return sorted({1, 2, *(n for n in near if n > 0), 3 * full or 200})


@pytest.mark.parametrize("precision", FLOATS + INTS)
@pytest.mark.parametrize("kind", (STREAM, PLAIN), ids=("stream", "plain"))
def test_a_prompt_of_any_length_then_single_tokens_sees_the_same(
    precision: str, kind: dict, build: Callable, feed: Callable
) -> None:
    settings = Settings(precision=precision, **kind)
    tokens, want = answers(settings, GQA, 3 * 68 + 8)
    for length in prompt_lengths(settings):
        sizes = [length, 1, 1, 1, 2, 1]
        got = feed(build(settings, GQA), tokens[: sum(sizes)], sizes)
        assert_same(got, want[: sum(sizes)], f"a prompt of {length}, then decoding")


@pytest.mark.parametrize("precision", FLOATS + INTS)
@pytest.mark.parametrize("kind", (STREAM, PLAIN), ids=("stream", "plain"))
def test_chunks_of_mixed_sizes_see_the_same(
    precision: str, kind: dict, build: Callable, feed: Callable
) -> None:
    settings = Settings(precision=precision, **kind)
    count = 3 * 68 + 8
    tokens, want = answers(settings, GQA, count)
    rng = np.random.default_rng(7)
    for _ in range(4):
        cuts = np.unique([0, count, *rng.integers(1, count, size=8)])
        got = feed(build(settings, GQA), tokens, np.diff(cuts).tolist())
        assert_same(got, want, f"chunks ending at {cuts[1:].tolist()}")


def test_full_precision_by_name_is_the_compute_type(build: Callable, feed: Callable) -> None:
    settings = Settings(precision="fp32", **STREAM)
    tokens, want = answers(settings, GQA, 150)
    got = feed(build(settings, GQA, precision="full"), tokens, [100, 50])
    assert_same(got, want, "precision full")


@pytest.mark.parametrize("start", (10**5, 10**8))
@pytest.mark.parametrize("positions", ("rolling", "absolute"))
def test_a_start_far_from_zero_changes_no_code(
    start: int, positions: str, build: Callable, feed: Callable
) -> None:
    settings = Settings(precision="int8", positions=positions, start=start, **STREAM)
    tokens, want = answers(settings, GQA, 150)
    for sizes in ([150], [60, 1, 1, 20, 68], [1] * 150):
        got = feed(build(settings, GQA), tokens, sizes)
        assert_same(got, want, f"started at {start}, chunks {sizes[:5]}")


def test_rows_of_a_batch_do_not_mix(build: Callable) -> None:
    settings = Settings(precision="int4", **STREAM)
    rows = [draw_tokens(seed, 120, GQA, settings) for seed in (1, 2)]
    q, k, v = (
        mx.array(np.stack([getattr(row, part) for row in rows]).transpose(0, 2, 1, 3))
        for part in "qkv"
    )
    cache = build(settings, GQA)
    layer = cache.layers[0]
    for span in (slice(0, 90), slice(90, 91), slice(91, 120)):
        layer.append(k[:, :, span], v[:, :, span])
        out = np.array(layer.attend(q[:, :, span], GQA.scale)).transpose(0, 2, 1, 3)
        cache.commit()
        for got, row in zip(out, rows, strict=True):
            assert_same(got, attend_all(settings, row, GQA.scale)[span], "a batch of two")


# Far more tokens than are dequantised at a time (1,024): where the packed ones pass that number,
# where the window has slid by a few groups, by about as many tokens again, and the end.
FAR = (*range(1070, 1080), *range(1250, 1262), *range(2225, 2240), *range(2590, 2600))
SINGLE_STEPS = [1065, *[1] * 15, 165, *[1] * 20, 955, *[1] * 20, 360]


@pytest.mark.parametrize("precision", ("fp32", "int8", "int3"))
@pytest.mark.parametrize("window", (None, 1203))
def test_thousands_of_tokens_see_the_same(
    precision: str, window: int | None, build: Callable, feed: Callable, chunked: Callable
) -> None:
    shape, count = Shape(2, 1, 32), 2600
    settings = Settings(precision, 32, 16, 4, 4 if window else 0, window, rope=ROPE)
    tokens = draw_tokens(3, count, shape, settings)
    want = attend_all(settings, tokens, shape.scale, FAR)
    for sizes in ([count], chunked(count, 300), SINGLE_STEPS):
        got = feed(build(settings, shape), tokens, sizes)[list(FAR)]
        assert_same(got, want, f"chunks {sizes[:3]}, queries counted along FAR")


def three_ways(count: int) -> dict[str, list[int]]:
    """The same tokens as one prompt, in chunks, and mostly decoded."""
    seventh = [7] * (count // 7) + ([count % 7] if count % 7 else [])
    return {"one prompt": [count], "chunks of 7": seventh, "decoded": [5] + [1] * (count - 5)}


def changed_queries(
    cache: Callable[[], KVCache], feed: Callable, tokens: Tokens, other: Tokens, sizes: list[int]
) -> np.ndarray:
    """Which queries [T] of `tokens` get another output when `other` is fed instead, at all."""
    difference = feed(cache(), tokens, sizes) - feed(cache(), other, sizes)
    return np.abs(difference).max(axis=(1, 2)) != 0


@pytest.mark.parametrize("precision", FLOATS)
@pytest.mark.parametrize("positions", ("rolling", "absolute"))
@pytest.mark.parametrize("sinks, window", ((0, 8), (4, 8), (4, 21), (1, 1)))
def test_a_token_moves_the_window_queries_after_it_and_no_other(
    precision: str, positions: str, sinks: int, window: int, build: Callable, feed: Callable
) -> None:
    settings = Settings(precision, 32, 0, 4, sinks, window, positions, ROPE)
    count = 3 * (sinks + window) + 20
    tokens = draw_tokens(1, count, GQA, settings)
    i = np.arange(count)
    for way, sizes in three_ways(count).items():
        for j in (sinks, sinks + window + 2, count - window - 1):
            changed = changed_queries(
                lambda: build(settings, GQA), feed, tokens, tokens.but(j), sizes
            )
            want = (i >= j) & (i - j < window)
            assert (changed == want).all(), f"{way}: token {j} moved {np.flatnonzero(changed)}"


@pytest.mark.parametrize("precision", FLOATS + INTS)
@pytest.mark.parametrize("positions", ("rolling", "absolute"))
def test_a_sink_moves_every_query_after_it(
    precision: str, positions: str, build: Callable, feed: Callable
) -> None:
    settings = Settings(precision=precision, positions=positions, **STREAM)
    tokens = draw_tokens(2, 160, GQA, settings)
    for way, sizes in three_ways(160).items():
        changed = changed_queries(lambda: build(settings, GQA), feed, tokens, tokens.but(3), sizes)
        assert (changed == (np.arange(160) >= 3)).all(), way


@pytest.mark.parametrize("precision", INTS)
@pytest.mark.parametrize("positions", ("rolling", "absolute"))
def test_an_evicted_packed_token_moves_nothing(
    precision: str, positions: str, build: Callable, feed: Callable
) -> None:
    """A value is packed alone; a key shares scale and zero with its group, and goes with it."""
    settings = Settings(precision=precision, positions=positions, **STREAM | {"window": 40})
    window, group, first = 40, settings.group, settings.first_packed
    count = 150
    tokens, i = draw_tokens(3, count, GQA, settings), np.arange(count)
    for way, sizes in three_ways(count).items():
        for j in (first, first + 2 * group - 1):
            other = tokens.but(j, key=False)
            changed = changed_queries(lambda: build(settings, GQA), feed, tokens, other, sizes)
            assert not changed[(i < j) | (i - j >= window)].any(), f"{way}: value of {j}"
            assert changed[j : j + window].all(), f"{way}: value of {j} is not seen"

            other = tokens.but(j, value=False)
            changed = changed_queries(lambda: build(settings, GQA), feed, tokens, other, sizes)
            last_of_group = first + group * ((j - first) // group + 1) - 1
            gone = (i < j) | (i - last_of_group >= window)
            assert not changed[gone].any(), f"{way}: key of {j}"
            assert changed[j : j + 5].all(), f"{way}: key of {j} is not seen"
