"""What a GGUF file says of its rotation becomes the same frequencies and attention factor."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from oracles import gguf_converter, gguf_writer, hf_writer
from oracles.gguf_writer import Value
from oracles.hf_writer import CONFIGS
from tinygpt.io.load import open_checkpoint
from tinygpt.models.config import ModelConfig
from tinygpt.ops.rope import RopeConfig

PLAIN = 10000.0 ** (-np.arange(0, 32, 2) / 32)  # head_dim 32
LONGROPE = {
    "type": "longrope",
    "original_max_position_embeddings": 64,
    "short_factor": [1.5] * 16,
    "long_factor": [3.0] * 16,
}


def read(path: Path, config: dict, changes: dict[str, Value | None]) -> ModelConfig:
    """The configuration of a file with some of its architecture's keys changed, None removed."""
    keys = gguf_converter.metadata(config)
    for name, value in changes.items():
        key = f"{gguf_converter.architecture(config)}.{name}"
        keys.pop(key, None)
        if value is not None:
            keys[key] = value
    tensors = gguf_converter.tensors(config, hf_writer.random_tensors(config))
    path.write_bytes(gguf_writer.encode(keys, tensors))
    return open_checkpoint(path).config


def rope(tmp_path: Path, config: dict, **changes: Value | None) -> RopeConfig:
    named = {name.replace("__", "."): value for name, value in changes.items()}
    found = read(tmp_path / "m.gguf", config, named).rope
    assert found is not None
    return found


def test_a_file_that_says_nothing_rotates_plainly(tmp_path: Path) -> None:
    found = rope(tmp_path, CONFIGS["llama"], rope__freq_base=None, rope__dimension_count=None)
    assert found == RopeConfig(base=10000.0, dims=32)


@pytest.mark.parametrize("key", ["rope__scaling__factor", "rope__scale_linear"])
def test_a_factor_alone_is_linear_scaling(tmp_path: Path, key: str) -> None:
    found = rope(tmp_path, CONFIGS["llama"], **{key: ("f32", 4.0)})
    np.testing.assert_allclose(found.frequencies, PLAIN / 4)
    assert found.attention_factor == 1


def test_the_kind_none_turns_a_factor_off(tmp_path: Path) -> None:
    changes = {"rope__scaling__type": ("str", "none"), "rope__scaling__factor": ("f32", 4.0)}
    assert rope(tmp_path, CONFIGS["llama"], **changes).scaling is None


def test_yarn_takes_its_betas_and_both_attention_factors(tmp_path: Path) -> None:
    found = rope(
        tmp_path,
        CONFIGS["qwen2"],
        rope__scaling__type=("str", "yarn"),
        rope__scaling__factor=("f32", 4.0),
        rope__scaling__attn_factor=("f32", 0.5),
        rope__scaling__yarn_beta_fast=("f32", 16.0),
        rope__scaling__yarn_beta_slow=("f32", 2.0),
    )
    assert found.scaling is not None
    assert (found.scaling.beta_fast, found.scaling.beta_slow) == (16, 2)
    assert found.scaling.original_context == 256, "the context where the file names no other"
    assert found.attention_factor == pytest.approx(0.5 * (1 + 0.1 * math.log(4)))


def test_longrope_is_told_by_its_tensors(tmp_path: Path) -> None:
    config = CONFIGS["phi3"] | {"rope_scaling": LONGROPE, "partial_rotary_factor": 1.0}
    found = rope(tmp_path, config)
    np.testing.assert_allclose(found.for_length(64).frequencies, PLAIN / 1.5)
    np.testing.assert_allclose(found.for_length(65).frequencies, PLAIN / 3)
    usual = math.sqrt(1 + math.log(256 / 64) / math.log(64))
    assert found.attention_factor == pytest.approx(usual)


@pytest.mark.parametrize(("given", "factor"), [(("f32", 1.25), 1.25), (None, 1.1547005)])
def test_longrope_without_a_factor_takes_the_usual_one(
    tmp_path: Path, given: Value | None, factor: float
) -> None:
    config = CONFIGS["phi3"] | {"rope_scaling": LONGROPE, "partial_rotary_factor": 1.0}
    found = rope(tmp_path, config, rope__scaling__attn_factor=given)
    assert found.attention_factor == pytest.approx(factor)


def test_divisors_take_an_attention_factor(tmp_path: Path) -> None:
    llama3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0}
    llama3 |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 32}
    config = CONFIGS["llama"] | {"rope_scaling": llama3}
    found = rope(tmp_path, config, rope__scaling__attn_factor=("f32", 1.5))
    assert found.scaling is not None
    assert found.scaling.kind == "divisors"
    assert found.attention_factor == 1.5
    assert found.frequencies[0] == 1, "short waves are kept"
    assert found.frequencies[-1] == pytest.approx(PLAIN[-1] / 8), "long ones are stretched"


def test_gemma_3_never_stretches_its_local_rope(tmp_path: Path) -> None:
    """The file of the 270M model does not name the local base either."""
    config = CONFIGS["gemma3_text"] | {"query_pre_attn_scalar": 64}
    found = read(tmp_path / "m.gguf", config, {"rope.freq_base_swa": None})
    assert found.rope is not None
    assert found.rope.scaling is not None
    assert found.local_rope == RopeConfig(base=10000.0, dims=64)


def test_gemma_2_has_one_rope_unless_the_file_says_otherwise(tmp_path: Path) -> None:
    config = CONFIGS["gemma2"] | {"query_pre_attn_scalar": 64}
    path = tmp_path / "m.gguf"
    assert read(path, config, {}).local_rope is None
    told = read(path, config, {"rope.freq_base_swa": ("f32", 500.0)})
    assert told.local_rope == RopeConfig(base=500.0, dims=64)
