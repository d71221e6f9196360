"""A five-digit key, buried in filler, asked for at the end (Mohtashami & Jaggi, 2023,
arXiv 2305.16300). Filler are sentences of *Pride and Prejudice* (1813, public domain) in an order
that the seed gives, so that a text is exactly as long as asked and can be made again.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tinygpt.cache import CacheSpec
from tinygpt.errors import ConfigError
from tinygpt.evaluate.greedy import greedy_tokens
from tinygpt.models.transformer import Transformer

FILLER = (
    "It is a truth universally acknowledged, that a single man in possession of a good fortune, "
    "must be in want of a wife.",
    "However little known the feelings or views of such a man may be on his first entering a "
    "neighbourhood, this truth is so well fixed in the minds of the surrounding families, that he "
    "is considered as the rightful property of some one or other of their daughters.",
    "Mr. Bennet replied that he had not.",
    "Mr. Bennet made no answer.",
    "This was invitation enough.",
    "Mr. Bennet was so odd a mixture of quick parts, sarcastic humour, reserve, and caprice, that "
    "the experience of three-and-twenty years had been insufficient to make his wife understand "
    "his character.",
    "Her mind was less difficult to develop.",
    "She was a woman of mean understanding, little information, and uncertain temper.",
    "When she was discontented, she fancied herself nervous.",
    "The business of her life was to get her daughters married; its solace was visiting and news.",
    "Mr. Bennet was among the earliest of those who waited on Mr. Bingley.",
    "He had always intended to visit him, though to the last always assuring his wife that he "
    "should not go; and till the evening after the visit was paid she had no knowledge of it.",
)
TASK = "There is a pass key hidden in the following text. Remember it.\n\n"
NEEDLE = " The pass key is {key}. Remember it. {key} is the pass key."
QUESTION = "\n\nWhat is the pass key? The pass key is"
DEPTHS = tuple(round(0.1 * tenth, 1) for tenth in range(1, 10))
ANSWER_TOKENS = 12  # a space and five digits, even where each byte is a token
Encode = Callable[[str], list[int]]


@dataclass(frozen=True, slots=True)
class Haystack:
    """Ids of exactly the length that was asked for, and the key that lies in them."""

    ids: tuple[int, ...]
    key: str


@dataclass(frozen=True, slots=True)
class Retrieval:
    """How many of `trials` keys a cache found at `depth` (0 start, 1 end) of `length` tokens."""

    cache: str
    length: int
    depth: float
    trials: int
    hits: int


def haystack(
    encode: Encode, start: Sequence[int], length: int, depth: float, seed: int
) -> Haystack:
    """`length` tokens after `start` (a BOS, or nothing) with a key at `depth` of the filler.

    The same seed, length and depth give the same text for every cache.

    Raises:
        ConfigError: the task alone is longer than `length`.
    """
    rng = random.Random(f"{seed} {length} {depth}")
    key = str(rng.randrange(10_000, 100_000))
    head, tail = [*start, *encode(TASK)], encode(QUESTION)
    needle = encode(NEEDLE.format(key=key))
    room = length - len(head) - len(needle) - len(tail)
    if room < 0:
        raise ConfigError(
            f"--lengths {length} is too short: the task without filler takes {length - room} "
            "tokens of this model; take more"
        )
    filler: list[int] = []
    while len(filler) < room:
        filler += encode(" " + " ".join(rng.sample(FILLER, len(FILLER))))
    before = round(depth * room)
    ids = [*head, *filler[:before], *needle, *filler[before:room], *tail]
    return Haystack(tuple(ids), key)


def found(
    model: Transformer,
    spec: CacheSpec,
    text: Haystack,
    decode: Callable[[list[int]], str],
    check: Callable[[], None],
) -> bool:
    """Does the greedy answer through the cache begin with the key, whatever blanks precede it?"""
    answer = decode(list(greedy_tokens(model, spec, text.ids, ANSWER_TOKENS, check)))
    return answer.replace(" ", "").lstrip().startswith(text.key)
