"""Damaged GGUF files of every architecture, block format and vocabulary: a model that runs, or one
of our errors in one line; never anything else."""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Mapping
from pathlib import Path

import mlx.core as mx
import pytest

from oracles import gguf_converter, gguf_spm, gguf_writer, hf_writer
from oracles.damage import damaged
from oracles.gguf_writer import Value
from oracles.hf_writer import CONFIGS
from tinygpt.errors import TinyGPTError
from tinygpt.io.load import load_model, open_checkpoint

ROUNDS = 150
SMALL = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "vocab_size": 262}
SPM = gguf_spm.vocabulary(20)
LONGROPE = {
    "type": "longrope",
    "original_max_position_embeddings": 64,
    "short_factor": [1.0] * 4,
    "long_factor": [2.0] * 4,
}
CASES: dict[str, tuple[dict, str, str]] = {  # config.json, tensor type, vocabulary
    "llama": (CONFIGS["llama"] | SMALL, "Q5_0", "llama-bpe"),
    "qwen2": (CONFIGS["qwen2"] | SMALL, "Q5_1", "qwen2"),
    "qwen3": (CONFIGS["qwen3"] | SMALL | {"head_dim": 32}, "BF16", "deepseek-v3"),
    "phi3": (CONFIGS["phi3 windows"] | SMALL | {"rope_scaling": LONGROPE}, "Q8_0", "tekken"),
    "gemma2": (CONFIGS["gemma2"] | SMALL | {"head_dim": 32}, "F16", "sentencepiece"),
    "gemma3": (CONFIGS["gemma3_text"] | SMALL | {"head_dim": 32}, "Q4_0", "sentencepiece"),
    "blocks of 256": (
        CONFIGS["llama"] | SMALL | {"hidden_size": 256, "intermediate_size": 256},
        "Q4_K",
        "falcon",
    ),
}
NASTY: tuple[Value, ...] = (
    ("u32", 0),
    ("u32", 1),
    ("u32", 7),
    ("u32", 2**31 - 1),
    ("u64", 2**63),
    ("i32", -1),
    ("f32", 0.0),
    ("f32", 1e-30),
    ("f32", 3e38),
    ("f32", math.nan),
    ("bool", 0),
    ("bool", 1),
    ("str", ""),
    ("str", "yarn"),
    ("str", "gemma3\n"),
    ("[u32]", [1, 2]),
    ("[bool]", [1, 0]),
    ("[f32]", [math.inf] * 262),
    ("[i32]", [1] * 262),
    ("[str]", ["a"] * 262),
    ("[str]", []),
)


def vocabulary(pre: str, size: int) -> dict[str, Value]:
    if pre == "sentencepiece":
        tokens = [*SPM["tokens"], *(f"[{i}]" for i in range(size))][:size]
        scores = [*SPM["scores"].tolist(), *(-1e4 - i for i in range(size))][:size]
        types = [*SPM["token_type"].tolist(), *[1] * size][:size]
        own = {"model": ("str", "llama"), "scores": ("[f32]", scores)}
    else:
        tokens, merges, types = gguf_writer.vocabulary(size)
        own = {"model": ("str", "gpt2"), "pre": ("str", pre), "merges": ("[str]", merges)}
    own |= {
        "tokens": ("[str]", tokens),
        "token_type": ("[i32]", types),
        "bos_token_id": ("u32", 1),
        "add_bos_token": ("bool", 1),
        "add_space_prefix": ("bool", 0),
    }
    return {f"tokenizer.ggml.{key}": value for key, value in own.items()}


@functools.cache
def parts(case: str) -> tuple[dict[str, Value], list[gguf_writer.Tensor]]:
    config, kind, pre = CASES[case]
    tensors = gguf_converter.tensors(config, hf_writer.random_tensors(config), kind)
    return gguf_converter.metadata(config) | vocabulary(pre, config["vocab_size"]), tensors


def reads(path: Path, what: str) -> bool:
    """Whether the file opens, loads, runs and tokenises; what it may not do is raise otherwise."""
    try:
        checkpoint = open_checkpoint(path)
        tokenizer = checkpoint.read_tokenizer(None)
        model = load_model(checkpoint, "fp32")
        ids = tokenizer.encode("ban <s>\n🙂 12")[:8] or [0]
        logits = model(mx.array([ids]), last=1)
        mx.eval(logits)
    except TinyGPTError as error:
        assert "\n" not in str(error), what
        return False
    assert logits.shape == (1, 1, checkpoint.config.vocab_size), what
    return True


@pytest.mark.parametrize("case", CASES)
def test_a_whole_file_runs(tmp_path: Path, case: str) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf_writer.encode(*parts(case)))
    assert reads(path, case)


@pytest.mark.parametrize("case", CASES)
def test_a_file_with_damaged_bytes_is_read_or_refused(tmp_path: Path, case: str) -> None:
    metadata, tensors = parts(case)
    data = gguf_writer.encode(metadata, tensors)
    head = len(data) - sum(-(-len(tensor.data) // 32) * 32 for tensor in tensors)
    rng, path, refusals = random.Random(case), tmp_path / "m.gguf", 0
    for i in range(ROUNDS):
        path.write_bytes(damaged(rng, data[: 2 * head]) + data[2 * head :])
        refusals += not reads(path, f"round {i}")
    assert ROUNDS // 4 < refusals < ROUNDS, "the damage is too weak or too strong to test anything"


@pytest.mark.parametrize("case", CASES)
def test_a_file_with_any_value_twisted_is_read_or_refused(tmp_path: Path, case: str) -> None:
    """One key of the metadata gets another type or value, or is gone."""
    honest, tensors = parts(case)
    rng, path, refusals = random.Random(case), tmp_path / "m.gguf", 0
    for i in range(ROUNDS):
        path.write_bytes(gguf_writer.encode(twisted(rng, honest), tensors))
        refusals += not reads(path, f"round {i}")
    assert ROUNDS // 4 < refusals < ROUNDS, "the damage is too weak or too strong to test anything"


def twisted(rng: random.Random, metadata: Mapping[str, Value]) -> dict[str, Value]:
    changed = dict(metadata)
    key = rng.choice(list(changed))
    if rng.random() < 0.15:
        del changed[key]
    elif rng.random() < 0.15:
        changed[key] = changed[rng.choice(list(changed))]
    else:
        changed[key] = rng.choice(NASTY)
    return changed
