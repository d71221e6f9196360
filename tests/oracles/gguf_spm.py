"""A small SentencePiece vocabulary as GGUF files have one, and llama.cpp's way to segment by it.

Imports no tinygpt. The segmentation is that of `llm_tokenizer_spm`: a queue of neighbours whose
union is a piece, the highest score first and the leftmost of equals. What is no piece becomes
bytes.
"""

from __future__ import annotations

import heapq
import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, _, BYTE = range(1, 7)
SPACE = "\u2581"
TEXT = """the cat sat on the mat and the other cat that sat there said that this was the hat of
the bananas anna banana bandana aaa aaaa abab ababab bababa haha hahaha the end of the thing"""
USER = ("<b>", "\n", "\n\n", "  ")
SPECIALS = ("<unk>", "<s>", "</s>", "<end_of_turn>")


def vocabulary(merges: int = 150, *, space: bool = True) -> dict[str, object]:
    """`tokens`, `scores` and `token_type`: specials, bytes, user's pieces, merges, letters."""
    words = Counter(SPACE + word if space else word for word in TEXT.split())
    pieces = _train(words, merges)
    letters = sorted({letter for word in words for letter in word} | {SPACE, "é", "я"})
    learned = [*pieces, *letters]
    tokens = [*SPECIALS, *(f"<0x{byte:02X}>" for byte in range(256)), *USER, *learned]
    types = [UNKNOWN, *[CONTROL] * 3, *[BYTE] * 256, *[USER_DEFINED] * 4, *[NORMAL] * len(learned)]
    scores = [
        *[-1000.0] * 4,
        *[0.0] * 256,
        *[-1000.0] * 4,
        *(-float(i) for i in range(len(learned))),
    ]
    return {
        "tokens": tokens,
        "scores": np.array(scores, np.float32),
        "token_type": np.array(types, np.int32),
    }


def encode(
    text: str,
    tokens: Sequence[str],
    scores: Sequence[float],
    types: Sequence[int],
    *,
    prefix: bool,
) -> list[int]:
    """Ids of a text in which control, unknown and user's tokens are found first, the longest."""
    ids = {token: i for i, token in enumerate(tokens)}
    kinds = list(zip(tokens, scores, types, strict=True))
    score = {token: float(value) for token, value, kind in kinds if kind == NORMAL}
    found = [token for token, _, kind in kinds if kind in (UNKNOWN, CONTROL, USER_DEFINED)]
    pattern = "|".join(map(re.escape, sorted(found, key=len, reverse=True)))
    out = []
    for piece in re.split(f"({pattern})", text) if pattern else [text]:
        if piece in found:
            out.append(ids[piece])
        elif piece:
            spelled = ((" " if prefix else "") + piece).replace(" ", SPACE)
            out += _segment(spelled, ids, score)
    return out


def _segment(text: str, ids: dict[str, int], score: dict[str, float]) -> list[int]:
    symbols = list(text)
    after, before = [*range(1, len(text)), -1], list(range(-1, len(text) - 1))
    queue: list[tuple[float, int, int, str]] = []

    def push(left: int, right: int) -> None:
        if left >= 0 and right >= 0 and symbols[left] + symbols[right] in score:
            union = symbols[left] + symbols[right]
            heapq.heappush(queue, (-score[union], left, right, union))

    for i in range(1, len(text)):
        push(i - 1, i)
    while queue:
        _, left, right, union = heapq.heappop(queue)
        if not (symbols[left] and symbols[right]) or symbols[left] + symbols[right] != union:
            continue
        symbols[left], symbols[right] = union, ""
        after[left] = after[right]
        if after[right] >= 0:
            before[after[right]] = left
        push(before[left], left)
        push(left, after[left])
    out = []
    for symbol in filter(None, symbols):
        known = symbol in score
        out += [ids[symbol]] if known else [ids[f"<0x{byte:02X}>"] for byte in symbol.encode()]
    return out


def _train(words: Counter[str], merges: int) -> list[str]:
    """Byte-pair encoding by counting, ties by the alphabet."""
    split = {word: list(word) for word in words}
    pieces: list[str] = []
    while len(pieces) < merges:
        pairs = Counter()
        for word, symbols in split.items():
            for pair in pairwise(symbols):
                pairs[pair] += words[word]
        if not pairs:
            break
        left, right = min(pairs, key=lambda pair: (-pairs[pair], pair))
        if left + right not in pieces:
            pieces.append(left + right)
        for symbols in split.values():
            i = 0
            while i < len(symbols) - 1:
                if (symbols[i], symbols[i + 1]) == (left, right):
                    symbols[i : i + 2] = [left + right]
                i += 1
    return pieces
