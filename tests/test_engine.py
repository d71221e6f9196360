"""One text in turns is one text in one pass; rows are what each would be alone."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from oracles.numpy_decoder import forward
from oracles.small_models import SmallModel, small_model
from tinygpt import Engine, Generation
from tinygpt.cache import CacheSpec, KVCache
from tinygpt.errors import CacheError, ConfigError
from tinygpt.models.transformer import Transformer

VOCAB = 61
FLOAT = 1e-4  # float32 through two layers, logits of size 1 to 10
# A product of another shape differs by 1e-7, which now and then moves a key over the border between
# two half-precision numbers or codes; another row's text would give 1 and more.
BOUNDS = {"full": FLOAT, "fp16": 2e-3, "int8": 0.1, "int4": 0.1, "int3": 0.1, "int2": 0.1}


def drawn(length: int, seed: int = 0) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(0, VOCAB, length)]


def new_cache(model: Transformer, spec: CacheSpec) -> KVCache:
    return KVCache(spec, model.cache_layout())


def last_logits(engine: Engine, ids: list[int]) -> np.ndarray:
    return np.array(engine.feed([ids], last=1)[0][-1])


def talk(
    model: Transformer, cache: KVCache, turns: list[list[int]], **options: object
) -> list[int]:
    """The whole text of a conversation of greedy turns over one cache."""
    text: list[int] = []
    for turn in turns:
        text += turn
        text += Generation(model, cache, turn, mx.argmax, tokens=9, **options)  # type: ignore[arg-type]
    return text


@pytest.mark.parametrize("precision", BOUNDS)
@pytest.mark.parametrize("kind, window", [("rope gqa", None), ("rope gqa", 40), ("mha", 12)])
def test_a_conversation_is_one_pass_over_its_text(
    kind: str, window: int | None, precision: str
) -> None:
    """With learned positions it starts again twice on the way."""
    if kind == "mha" and precision.startswith("int"):
        window = 40
    model = small_model(kind, context=48).build()
    spec = CacheSpec(precision, window=window)
    cache = new_cache(model, spec)
    text = talk(model, cache, [drawn(n, n) for n in (30, 1, 50)], prefill_chunk=16)
    assert len(text) == 81 + 27 and cache.total == len(text) - 1, "the last token is not fed yet"
    got = last_logits(Engine(model, [cache]), [7])
    expected = last_logits(Engine(model, [new_cache(model, spec)], chunk=1), [*text, 7])
    np.testing.assert_allclose(got, expected, atol=BOUNDS[precision])
    assert cache.total == len(text) + 1


def test_a_conversation_is_what_numpy_computes_without_a_cache() -> None:
    small = small_model("rope gqa")
    cache = new_cache(small.build(), CacheSpec())
    text = talk(small.build(), cache, [drawn(5), drawn(8, 1)])
    got = last_logits(Engine(small.build(), [cache]), [3])
    expected = forward(small.described, small.weights, [*text, 3])[-1]
    np.testing.assert_allclose(got, expected, atol=FLOAT, rtol=FLOAT)


def test_a_stop_token_is_part_of_the_text() -> None:
    small = small_model("rope gqa")
    model = small.build()
    free = talk(model, new_cache(model, CacheSpec()), [[1, 2, 3]])
    stop, cache = free[6], new_cache(model, CacheSpec())
    text = talk(model, cache, [[1, 2, 3]], stop_ids=frozenset([stop]))
    at = free.index(stop, 3)
    assert text == free[:at]
    got = last_logits(Engine(model, [cache]), [3])
    expected = forward(small.described, small.weights, [*free[: at + 1], 3])[-1]
    np.testing.assert_allclose(got, expected, atol=FLOAT, rtol=FLOAT)


def test_a_generation_may_go_on_without_a_prompt() -> None:
    model = small_model("rope gqa").build()
    whole = talk(model, new_cache(model, CacheSpec()), [[1, 2]])
    cache = new_cache(model, CacheSpec())
    first = list(Generation(model, cache, [1, 2], mx.argmax, tokens=4))
    rest = list(Generation(model, cache, [], mx.argmax, tokens=5))
    assert [1, 2, *first, *rest] == whole


def test_a_second_generation_allocates_once_for_all_that_is_to_come() -> None:
    """A forecast must count what the cache has seen: buffers grow to all of it, and no further."""
    model = small_model("rope gqa").build()
    cache = new_cache(model, CacheSpec())
    list(Generation(model, cache, drawn(1000), mx.argmax, tokens=2))
    sizes = set()
    for _ in Generation(model, cache, [5, 6], mx.argmax, tokens=100):
        sizes.add(cache.layers[0].arrays()["kept_keys"].shape[1])
    assert len(sizes) <= 2 and max(sizes) == 1104, sizes


@pytest.mark.parametrize("precision", BOUNDS)
@pytest.mark.parametrize("kind, window", [("rope gqa", None), ("rope gqa", 40), ("mha", 40)])
def test_rows_of_unequal_length_are_what_each_is_alone(
    kind: str, window: int | None, precision: str
) -> None:
    model, lengths = small_model(kind, context=64).build(), (90, 1, 37)
    spec = CacheSpec(precision, window=window)
    rows = [drawn(length, length) for length in lengths]
    engine = Engine(model, [new_cache(model, spec) for _ in rows], chunk=16)
    together = engine.feed(rows)
    more = drawn(3, 9)
    launched = [np.array(engine.launch(mx.array([token] * 3))) for token in more]
    for row, ids in enumerate(rows):
        alone = Engine(model, [new_cache(model, spec)], chunk=16).feed([[*ids, *more]])[0]
        both = np.concatenate(
            [np.array(together[row]), *(step[row : row + 1] for step in launched)]
        )
        np.testing.assert_allclose(both, np.array(alone), atol=BOUNDS[precision], rtol=FLOAT)


def test_rows_may_have_caches_of_different_kinds_and_end_at_different_times() -> None:
    small = small_model("mha")
    model, rows = small.build(), [drawn(20), drawn(11, 1)]
    engine = Engine(model, [new_cache(model, CacheSpec()), new_cache(model, CacheSpec(window=80))])
    first, second = engine.feed([rows[0][:11], rows[1]])
    (rest, none) = engine.feed([rows[0][11:], []])
    assert none.shape == (0, VOCAB)
    for ids, logits in zip(rows, (mx.concatenate([first, rest]), second), strict=True):
        expected = forward(small.described, small.weights, ids)
        np.testing.assert_allclose(np.array(logits), expected, atol=FLOAT, rtol=FLOAT)


@pytest.mark.parametrize("last, shapes", [(None, [7, 3]), (2, [2, 2]), (5, [5, 3])])
def test_logits_are_those_of_the_last_tokens(last: int | None, shapes: list[int]) -> None:
    model, rows = small_model("rope gqa").build(), [drawn(7), drawn(3, 1)]
    done: list[int] = []
    caches = [new_cache(model, CacheSpec()) for _ in rows]
    got = Engine(model, caches, chunk=2).feed(rows, last=last, report=done.append)
    assert [len(logits) for logits in got] == shapes and done == [4, 7, 9, 10]
    for ids, logits in zip(rows, got, strict=True):
        whole = np.array(model(mx.array([ids]))[0])
        np.testing.assert_allclose(np.array(logits), whole[-len(logits) :], atol=FLOAT)


@pytest.mark.parametrize("window", [None, 20])
def test_undo_takes_back_rows_by_their_own_numbers(window: int | None) -> None:
    model = small_model("rope gqa").build()
    spec = CacheSpec(window=window, slack=6)
    rows, undone, fresh = [drawn(40), drawn(25, 1)], [5, 2], [drawn(4, 2), drawn(2, 3)]
    engine = Engine(model, [new_cache(model, spec) for _ in rows])
    engine.feed(rows)
    engine.undo(undone)
    got = engine.feed(fresh, last=1)
    for ids, back, new, logits in zip(rows, undone, fresh, got, strict=True):
        one = Engine(model, [new_cache(model, spec)])
        np.testing.assert_allclose(
            np.array(logits[0]), last_logits(one, [*ids[:-back], *new]), atol=FLOAT
        )
    with pytest.raises(CacheError, match="slack"):
        engine.undo([0, 7])
    assert engine.caches[0].seen == 39, "a row that could be undone was, though the other could not"


def test_undo_takes_an_unfed_token_first() -> None:
    model = small_model("rope gqa").build()
    cache = new_cache(model, CacheSpec(slack=4))
    text = talk(model, cache, [drawn(5)])
    engine = Engine(model, [cache])
    engine.undo([3])
    assert cache.seen == len(text) - 3
    one = Engine(model, [new_cache(model, CacheSpec())])
    np.testing.assert_allclose(
        last_logits(engine, [4]), last_logits(one, [*text[:-3], 4]), atol=FLOAT
    )


@pytest.mark.parametrize("fed", [49, 60])
def test_a_restart_after_an_undo_feeds_what_is_left(fed: int) -> None:
    """The tokens that a restart feeds again are those of the text as it is then."""
    model = small_model("mha", context=64).build()
    spec = CacheSpec(window=20, slack=6)
    engine, text = Engine(model, [new_cache(model, spec)]), drawn(fed)
    engine.feed([text])
    engine.undo([5])
    text = [*text[:-5], *drawn(30, 1)]
    got = last_logits(engine, text[fed - 5 :])
    expected = last_logits(Engine(model, [new_cache(model, spec)]), text)
    np.testing.assert_allclose(got, expected, atol=FLOAT)


def test_an_undo_over_a_restart_is_refused() -> None:
    model = small_model("mha", context=24).build()
    engine = Engine(model, [new_cache(model, CacheSpec(window=8, slack=6))])
    engine.feed([drawn(26)])
    engine.undo([2])
    with pytest.raises(CacheError, match="of which 0 are left"):
        engine.undo([1])


def test_a_fork_and_a_loaded_state_know_the_text_too() -> None:
    model = small_model("mha", context=24).build()
    cache = new_cache(model, CacheSpec(window=8))
    text = talk(model, cache, [drawn(20), drawn(9, 1)])
    fork, loaded = cache.fork(), new_cache(model, CacheSpec(window=8))
    loaded.load(cache.state())
    expected = last_logits(Engine(model, [new_cache(model, cache.spec)]), [*text, *drawn(15, 2)])
    for one in (fork, loaded, cache):
        got = last_logits(Engine(model, [one]), drawn(15, 2))
        np.testing.assert_allclose(got, expected, atol=FLOAT)


@pytest.mark.parametrize("sink, window", [(4, 1000), (20, 400), (23, 1)])
def test_known_texts_start_again_where_generated_ones_do(sink: int, window: int) -> None:
    """The rule stood in two places: one refused what the other ran."""
    model = small_model("mha", context=24).build()
    spec, text = CacheSpec(sink=sink, window=window), drawn(80)
    known = np.array(Engine(model, [new_cache(model, spec)]).feed([text])[0])
    engine = Engine(model, [new_cache(model, spec)])
    steps = [np.array(engine.launch(mx.array([token]))[0]) for token in text]
    np.testing.assert_allclose(known, np.array(steps), atol=FLOAT)


def test_a_text_that_no_engine_fed_cannot_start_again_and_is_refused() -> None:
    model = small_model("mha", context=24).build()
    cache = new_cache(model, CacheSpec(window=8))
    model(mx.array([[1, 2, 3]]), cache)
    with pytest.raises(CacheError, match="an engine fed 0 of them"):
        Engine(model, [cache])
    cache.reset()
    Engine(model, [cache]).feed([[1, 2, 3]])


@pytest.mark.parametrize("bad", [-1, VOCAB, 10_000])
def test_ids_past_the_vocabulary_are_refused(bad: int) -> None:
    """They would read foreign memory."""
    small: SmallModel = small_model("rope gqa")
    model = small.build()
    cache, allowed = new_cache(model, CacheSpec()), f"token {bad} .* 0 to {VOCAB - 1}"
    with pytest.raises(ConfigError, match=allowed):
        Generation(model, cache, [1, bad], mx.argmax, tokens=1)
    with pytest.raises(ConfigError, match=allowed):
        Engine(model, [cache]).feed([[1, bad]])
    for ids in ([[1, bad]], np.array([[1, bad]])):
        with pytest.raises(ConfigError, match=allowed):
            model(ids, cache)
    assert cache.seen == 0


def test_an_engine_needs_a_cache_for_each_row() -> None:
    model = small_model("rope gqa").build()
    cache = new_cache(model, CacheSpec())
    for caches in ([], [cache, cache]):
        with pytest.raises(ConfigError, match="one for each row"):
            Engine(model, caches)


def test_a_token_that_is_not_fed_yet_is_not_skipped() -> None:
    model = small_model("rope gqa").build()
    cache = new_cache(model, CacheSpec())
    talk(model, cache, [[1, 2]])
    with pytest.raises(CacheError, match="not fed yet"):
        Engine(model, [cache]).launch(mx.array([3]))
