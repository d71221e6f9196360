"""Each pre-tokenizer that GGUF files name cuts a text as its rules say."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from oracles import gguf_writer
from tinygpt.errors import UnsupportedError
from tinygpt.io.gguf.pre import PRE_TOKENIZERS
from tinygpt.io.gguf.tokenizer import read_gguf_tokenizer
from tinygpt.tokenizer import HFTokenizer

TEXT = "I'LL pay $12345.67,\n\n  naïve 日本語: x==1;\r\n\tÜberGroß  don't  "
LETTERS = ["a", "B", "é", "ß", "日", "한", "1", "٣", "²", "'s", "'LL", " ", " ", "\n", "\r", "\t"]
LETTERS += ["\u00a0", "\u3000", "-", "$", "_", "。", "\u0301", "🙂", "<sentinel:1>", "ǅ", "ა"]
ROUNDS = 60

# What the rules cut TEXT into, "|" between: worked out with another engine of regular expressions
CUTS = {
    "default": "I|'|LL| pay| |$|123|45|.|67|,|\n\n | naïve| 日本語|:| x|==|1|;|\r\n|"
    "\t|ÜberGroß| | don|'|t|  ",
    "gpt-2": "I|'|LL| pay| $|12345|.|67|,|\n\n | naïve| 日本語|:| x|==|1|;|\r\n|\t|"
    "ÜberGroß| | don|'t|  ",
    "smollm": "I|'|LL| pay| $|1|2|3|4|5|.|6|7|,|\n\n | naïve| 日本語|:| x|==|1|;|"
    "\r\n|\t|ÜberGroß| | don|'t|  ",
    "llama-bpe": "I|'LL| pay| $|123|45|.|67|,\n\n| | naïve| 日本語|:| x|==|1|;\r\n|"
    "\tÜberGroß| | don|'t|  ",
    "qwen2": "I|'LL| pay| $|1|2|3|4|5|.|6|7|,\n\n| | naïve| 日本語|:| x|==|1|;\r\n|"
    "\tÜberGroß| | don|'t|  ",
    "deepseek-llm": "I|'|LL| pay| $|12345|.|67|,|\n|\n| | na|ï|ve| |日本語|:| x|==|1|;|"
    "\r|\n|\tÜ|berGro|ß| | don|'|t|  ",
    "deepseek-coder": "I|'|LL| pay| $|1|2|3|4|5|.|6|7|,|\n|\n| | naïve| |日本語|:| x|==|1|"
    ";|\r|\n|\tÜberGroß| | don|'|t|  ",
    "deepseek-v3": "I|'LL| pay| $|123|45|.|67|,\n\n| | naïve| |日本語|:| x|==|1|;\r\n|"
    "\tÜberGroß| | don|'t|  ",
    "falcon": "I|'|LL| pay| |$|123|45|.|67|,|\n\n | naïve| 日本語|:| x|==|1|;|\r\n|"
    "\t|ÜberGroß| | don|'|t|  ",
    "bloom": "I'LL| pay| $12345|.|67|,\n\n | naïve| 日本語:| x==1;|\r\n\t|ÜberGroß| | don't|  ",
    "tekken": "I|'LL| pay| $|1|2|3|4|5|.|6|7|,\n\n| | naïve| 日本語|:| x|==|1|;\r\n|"
    "\tÜber|Groß| | don|'t|  ",
    "gpt-4o": "I'LL| pay| $|123|45|.|67|,\n\n| | naïve| 日本語|:| x|==|1|;\r\n|"
    "\tÜber|Groß| | don't|  ",
}


def read(pre: str, **changes: object) -> HFTokenizer:
    tokens, merges, types = gguf_writer.vocabulary(258 + 4)
    values = {
        "model": "gpt2",
        "pre": pre,
        "tokens": tokens,
        "merges": merges,
        "token_type": np.array(types, np.int32),
        "bos_token_id": 0,
        **changes,
    }
    keys = {f"tokenizer.ggml.{key}": value for key, value in values.items() if value is not None}
    return read_gguf_tokenizer(Path("m.gguf"), keys, len(values["tokens"]))


def cut(name: str, text: str) -> list[str]:
    built = PRE_TOKENIZERS[name].build()
    return [text[start:end] for _, (start, end) in built.pre_tokenize_str(text)]


@pytest.mark.parametrize("name", CUTS)
def test_a_text_is_cut_where_the_rules_say(name: str) -> None:
    assert "|".join(cut(name, TEXT)) == CUTS[name]


@pytest.mark.parametrize("name", PRE_TOKENIZERS)
def test_another_engine_cuts_at_the_same_places(name: str) -> None:
    regex = pytest.importorskip("regex", reason="the regex package is not installed")
    rng = random.Random(1)
    for _ in range(ROUNDS):
        text = "".join(rng.choice(LETTERS) for _ in range(rng.randint(1, 30)))
        pieces = [text]
        for rule in PRE_TOKENIZERS[name].rules:
            split = [regex.split(f"({_captureless(rule)})", piece) for piece in pieces]
            pieces = [part for parts in split for part in parts if part]
        assert cut(name, text) == pieces, repr(text)


def _captureless(rule: str) -> str:
    """Without groups of its own, which `regex.split` would hand out beside the match."""
    return rule.replace("(IMG", "(?:IMG").replace("((A", "(?:(?:A").replace("([", "(?:[")


@pytest.mark.parametrize("name", PRE_TOKENIZERS)
def test_no_name_loses_a_byte_of_a_text(name: str) -> None:
    tokenizer = read(name)
    ids = tokenizer.encode_plain(TEXT)
    assert tokenizer.decode(ids) == TEXT


@pytest.mark.parametrize("name", ["llama-bpe", "tekken"])
def test_a_piece_that_is_a_token_is_taken_whole(name: str) -> None:
    """No merges make "klm" here; Llama 3 has such tokens."""
    tokens, merges, types = gguf_writer.vocabulary(258 + 4)
    whole = {"tokens": [*tokens, "klm"], "token_type": np.array([*types, 1], np.int32)}
    assert read(name, **whole, merges=merges).encode_plain("klm") == [len(tokens)]
    assert len(read("qwen2", **whole, merges=merges).encode_plain("klm")) == 3


@pytest.mark.parametrize(
    ("name", "adds"), [("llama-bpe", True), ("tekken", True), ("qwen2", False), ("gpt-2", False)]
)
def test_a_silent_file_adds_bos_where_the_name_implies_it(name: str, adds: bool) -> None:
    assert read(name).add_bos is adds
    assert read(name, add_bos_token=not adds).add_bos is not adds
    assert not read(name, bos_token_id=None).add_bos


@pytest.mark.parametrize("name", ["kimi-k2", "superbpe", "gemma4", "nobody\nknows"])
def test_another_name_is_refused(refused: object, name: str) -> None:
    message = refused(UnsupportedError, lambda: read(name))
    assert repr(name) in message
    assert "--tokenizer DIR" in message
