"""Damaged files at random: each gives a checkpoint or one of our errors, never anything else."""

from __future__ import annotations

import functools
import json
import random
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from oracles import gguf_writer, tinygpt_writer
from oracles.damage import damaged
from oracles.gguf_writer import Llama
from tinygpt.errors import TinyGPTError
from tinygpt.io.checkpoint import read_weights
from tinygpt.io.load import open_checkpoint

ROUNDS = 400
CONFIG = {"vocabSize": 256, "ctx": 8, "layers": 1, "heads": 2, "dModel": 8, "dMlp": 8}
MODEL = Llama(vocab=258, layers=1, dim=32, hidden=32, heads=2, kv_heads=1)
NASTY = (
    None,
    True,
    -1,
    0,
    1,
    2,
    63,
    2**31,
    2**64,
    10**40,
    0.5,
    8.0,
    "",
    "x\ny",
    [],
    [0],
    [[8]],
    {},
)


@functools.cache
def tinygpt_file() -> bytes:
    return tinygpt_writer.encode(CONFIG, tinygpt_writer.random_model(CONFIG), "int4")


@functools.cache
def tinygpt_parts() -> tuple[str, bytes]:
    """Header text and body."""
    data = tinygpt_file()
    (length,) = struct.unpack_from("<I", data, 8)
    return data[12 : 12 + length].decode(), data[16 + length :]


@functools.cache
def gguf_file() -> bytes:
    tensors = gguf_writer.llama_tensors(MODEL, gguf_writer.llama_weights(MODEL), "Q4_1")
    return gguf_writer.encode(gguf_writer.llama_metadata(MODEL), tensors)


@pytest.mark.parametrize(
    ("build", "seed"), [(tinygpt_file, 1), (tinygpt_file, 2), (gguf_file, 3), (gguf_file, 4)]
)
def test_a_damaged_file_is_read_or_refused(
    tmp_path: Path, build: Callable[[], bytes], seed: int
) -> None:
    rng, data = random.Random(seed), build()
    path, refusals = tmp_path / "m", 0
    for i in range(ROUNDS):
        path.write_bytes(damaged(rng, data))
        try:
            checkpoint = open_checkpoint(path)
            weights = read_weights(checkpoint, "fp32")
            assert weights["token_embedding.weight"].shape == (
                checkpoint.config.vocab_size,
                checkpoint.config.model_dim,
            )
            checkpoint.read_tokenizer(None)
        except TinyGPTError as error:
            refusals += 1
            assert "\n" not in str(error), f"round {i}"
    assert ROUNDS // 4 < refusals < ROUNDS, "the damage is too weak or too strong to test anything"


def twisted(rng: random.Random, node: object) -> object:
    """The same JSON with one value, at any depth, turned nasty, copied, or dropped."""
    keys = list(node) if isinstance(node, dict) else list(range(len(node)))
    key = rng.choice(keys)
    if isinstance(node[key], (dict, list)) and node[key] and rng.random() < 0.8:
        node[key] = twisted(rng, node[key])
    elif rng.random() < 0.15:
        del node[key]
    else:
        node[key] = rng.choice((*NASTY, node[rng.choice(keys)]))
    return node


def test_a_header_with_any_value_twisted_is_read_or_refused(tmp_path: Path) -> None:
    rng, (text, body) = random.Random(5), tinygpt_parts()
    path, refusals = tmp_path / "m", 0
    for i in range(ROUNDS):
        header = json.dumps(twisted(rng, json.loads(text))).encode()
        path.write_bytes(tinygpt_writer.assemble(header, body))
        try:
            checkpoint = open_checkpoint(path)
            read_weights(checkpoint, "fp32")
            checkpoint.read_tokenizer(None)
        except TinyGPTError as error:
            refusals += 1
            assert "\n" not in str(error), f"round {i}"
    assert ROUNDS // 2 < refusals < ROUNDS, "the damage is too weak or too strong to test anything"
