"""Streamed text equals text decoded at once, and stop strings may be spread over tokens."""

from __future__ import annotations

import random

import pytest

from tinygpt.errors import ConfigError
from tinygpt.text_stream import TextStream

TEXT = "größte 🙂 naïve 東京 — \u0000 end"


class Pieces:
    """A tokenizer whose token i is the i-th piece of bytes."""

    def __init__(self, pieces: list[bytes]) -> None:
        self.pieces = pieces

    def token_bytes(self, token: int) -> bytes:
        return self.pieces[token]


def cut(data: bytes, seed: int) -> list[bytes]:
    """`data` in pieces of 0 to 4 bytes."""
    rng, pieces = random.Random(seed), []
    while data:
        n = rng.randint(0, 4)
        pieces.append(data[:n])
        data = data[n:]
    return pieces


def streamed(pieces: list[bytes], stop: tuple[str, ...] = ()) -> list[str]:
    stream = TextStream(Pieces(pieces), stop)
    return [*(stream.push(i) for i in range(len(pieces))), stream.finish()]


@pytest.mark.parametrize("seed", range(30))
def test_pieces_joined_are_the_text_wherever_characters_are_cut(seed: int) -> None:
    assert "".join(streamed(cut(TEXT.encode(), seed))) == TEXT


@pytest.mark.parametrize("seed", range(30))
def test_bytes_that_are_not_utf8_decode_as_they_would_at_once(seed: int) -> None:
    data = random.Random(seed).randbytes(60)
    assert "".join(streamed(cut(data, seed))) == data.decode("utf-8", "replace")


def test_a_character_is_printed_with_its_last_byte_and_an_unfinished_one_at_the_end() -> None:
    smile = "🙂".encode()
    assert streamed([smile[:1], smile[1:3], smile[3:]]) == ["", "", "🙂", ""]
    assert streamed([b"a", smile[:2]]) == ["a", "", "\ufffd"]


def before_stop(text: str, stop: tuple[str, ...]) -> str:
    """`text` up to the stop string that ends first, the longest one where several end there."""
    for end in range(len(text) + 1):
        ending = [len(s) for s in stop if text[:end].endswith(s)]
        if ending:
            return text[: end - max(ending)]
    return text


@pytest.mark.parametrize(
    ("text", "stop", "expected"),
    [
        ("€aaäab", ("ä", "aäa"), "€aa"),
        ("€aaäab", ("aäa", "aä"), "€a"),
        ("xabc", ("abc", "b"), "xa"),
        ("xabc", ("c", "bc", "abc"), "x"),
        ("aab", ("aab", "ab"), ""),
    ],
)
def test_of_overlapping_stop_strings_the_first_to_end_wins_and_then_the_longest(
    text: str, stop: tuple[str, ...], expected: str
) -> None:
    assert before_stop(text, stop) == expected
    for seed in range(20):
        assert "".join(streamed(cut(text.encode(), seed), stop)) == expected
    assert "".join(streamed([text.encode()], stop)) == expected


@pytest.mark.parametrize("seed", range(300))
def test_no_token_boundary_changes_where_overlapping_stop_strings_end_the_text(seed: int) -> None:
    rng = random.Random(seed)
    text = "".join(rng.choices("aä€", k=12))
    stop = tuple("".join(rng.choices("aä€", k=rng.randint(1, 4))) for _ in range(3))
    expected = before_stop(text, stop)
    for split in range(10):
        assert "".join(streamed(cut(text.encode(), split), stop)) == expected, (text, stop)


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("stop", [("naïve",), ("🙂 ", "東"), ("e e", "end"), ("absent",), ("g",)])
def test_the_text_ends_before_the_first_stop_string_wherever_it_is_cut(
    seed: int, stop: tuple[str, ...]
) -> None:
    expected = before_stop(TEXT, stop)
    stream = TextStream(Pieces(cut(TEXT.encode(), seed)), stop)
    out = ""
    for token in range(len(stream._tokenizer.pieces)):  # type: ignore[attr-defined]
        out += stream.push(token)
        assert expected.startswith(out), "text after a stop string, or part of one, was printed"
    assert out + stream.finish() == expected
    assert stream.stopped == any(s in TEXT for s in stop)


def test_a_false_start_of_a_stop_string_is_held_back_and_then_printed() -> None:
    assert streamed([b"a\n", b"\n", b"b", b"\n"], ("\n\nc",)) == ["a", "", "\n\nb", "", "\n"]


def test_a_stop_string_whose_beginning_repeats_is_found() -> None:
    assert "".join(streamed([b"x", b"a", b"a", b"a", b"b", b"y"], ("aab",))) == "xa"


def test_a_stop_string_in_the_prompt_is_not_looked_for() -> None:
    stream = TextStream(Pieces([b"END", b"E", b"x"]), ("END",))
    assert stream.echo([0]) + stream.push(1) + stream.push(2) == "ENDEx"
    assert not stream.stopped


def test_a_character_begun_in_the_prompt_is_finished_by_the_first_token() -> None:
    smile = "🙂".encode()
    stream = TextStream(Pieces([smile[:2], smile[2:]]))
    assert stream.echo([0]) + stream.push(1) == "🙂"


def test_nothing_is_kept_that_grows_with_the_text() -> None:
    stream = TextStream(Pieces([b"abab"]), ("ababc",))
    for _ in range(1_000):
        stream.push(0)
        assert len(stream._held) < len("ababc")


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(ConfigError, match="--stop"):
        TextStream(Pieces([]), ("",))
