"""mlx-lm and we read the same directories, some of them written by mlx-lm itself.

Where mlx-lm departs from the Hugging Face definition the cases step around it, and
`test_families.py` and `test_rope_scaling.py` hold us to that definition in NumPy: mlx-lm gives no
window to Gemma 2, Qwen 2, Mistral and Phi-3, takes LongRoPE's long factors for short texts too,
ignores a YaRN `attention_factor`, and rounds Gemma 3's embedding scale to bfloat16.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx import nn

from oracles import hf_writer
from oracles.hf_writer import COMMON, CONFIGS, LAYERS, VOCAB, WINDOW
from oracles.small_models import cached
from tinygpt.io.load import load_model, open_checkpoint
from tinygpt.models.transformer import Transformer

mlx_lm_utils = pytest.importorskip("mlx_lm.utils", reason="mlx-lm is the oracle of these tests")

LENGTH = 70
POSITIONS = [0, 1, 20, 60]
# two float32 forwards of four layers, whose logits are of size 1 to 10
TOLERANCE = 1e-4

NO_WINDOW = {"sliding_window": 4096}
HALF_SLIDING = {"layer_types": ["full_attention", "sliding_attention"] * (LAYERS // 2)}
WIDE = {"hidden_size": 256}  # its root has a bfloat16
CASES: dict[str, dict] = {
    "llama": CONFIGS["llama"],
    "llama biases": CONFIGS["llama biases"],
    "mistral": CONFIGS["mistral"] | NO_WINDOW,
    "smollm3": CONFIGS["smollm3"],
    "smollm3 windows": CONFIGS["smollm3 windows"] | HALF_SLIDING,
    "qwen2": CONFIGS["qwen2"],
    "qwen3": CONFIGS["qwen3"] | {"tie_word_embeddings": True},
    "phi3": CONFIGS["phi3"],
    "gemma2": CONFIGS["gemma2"] | NO_WINDOW,
    "gemma3_text": CONFIGS["gemma3_text"] | WIDE,
    "olmo2": CONFIGS["olmo2"],
}
LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
LONGROPE = {
    "type": "longrope",
    "short_factor": [1.0 + i / 20 for i in range(16)],
    "long_factor": [1.0 + i for i in range(16)],
}
SCALED: dict[str, dict] = {
    "linear": {"rope_scaling": {"type": "linear", "factor": 4.0}},
    "dynamic": {
        "rope_scaling": {"type": "dynamic", "factor": 2.0},
        "max_position_embeddings": 48,
    },
    "llama3": {"rope_scaling": {"rope_type": "llama3", "factor": 8.0, **LLAMA3}},
    "yarn": {"rope_scaling": YARN},
    "yarn mscale": {"rope_scaling": {**YARN, "mscale": 0.7, "mscale_all_dim": 0.4}},
    "traditional": {"rope_traditional": True},
}


@pytest.fixture(scope="module")
def ids() -> list[int]:
    return np.random.default_rng(1).integers(0, VOCAB, LENGTH).tolist()


def oracle(directory: Path) -> nn.Module:
    model, _ = mlx_lm_utils.load_model(directory)
    model.set_dtype(mx.float32)
    return model


def logits(model: nn.Module | Transformer, ids: list[int]) -> np.ndarray:
    return np.array(model(mx.array([ids])).astype(mx.float32)[0])


def check(directory: Path, expected: np.ndarray, ids: list[int]) -> None:
    model = load_model(open_checkpoint(directory), "fp32")
    for how, got in (("whole", logits(model, ids)), ("chunks of 7", cached(model, ids, 7))):
        np.testing.assert_allclose(
            got[POSITIONS],
            expected[POSITIONS],
            atol=TOLERANCE,
            rtol=TOLERANCE,
            err_msg=f"{how}, positions {POSITIONS}: right at 0 only would be the rotation",
        )


def written(directory: Path, config: dict, **form: Any) -> Path:
    tensors = hf_writer.random_tensors(config)
    return hf_writer.write(directory, config, tensors, **form)


@pytest.mark.parametrize("family", CASES)
def test_logits_equal_those_of_mlx_lm(tmp_path: Path, ids: list[int], family: str) -> None:
    directory = written(tmp_path, CASES[family])
    check(directory, logits(oracle(directory), ids), ids)


@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32"])
@pytest.mark.parametrize("family", ["llama", "phi3", "gemma3_text"])
def test_every_float_type_in_two_shards_gives_the_logits_of_mlx_lm(
    tmp_path: Path, ids: list[int], family: str, dtype: str
) -> None:
    directory = written(tmp_path, CASES[family], dtype=dtype, shards=2)
    check(directory, logits(oracle(directory), ids), ids)


@pytest.mark.parametrize("scaling", SCALED)
def test_a_scaled_rope_gives_the_logits_of_mlx_lm(
    tmp_path: Path, ids: list[int], scaling: str
) -> None:
    directory = written(tmp_path, CONFIGS["llama"] | SCALED[scaling])
    plain = logits(oracle(written(tmp_path / "plain", CONFIGS["llama"])), ids)
    expected = logits(oracle(directory), ids)
    assert np.abs(expected - plain).max() > 0.01, "the scaling changes nothing"
    check(directory, expected, ids)


def test_longrope_in_a_long_text_gives_the_logits_of_mlx_lm(tmp_path: Path, ids: list[int]) -> None:
    config = CONFIGS["phi3"] | {
        "partial_rotary_factor": 1.0,
        "rope_scaling": LONGROPE,
        "original_max_position_embeddings": 64,
    }
    directory = written(tmp_path, config)
    check(directory, logits(oracle(directory), ids), ids)


def quantised(source: Path, directory: Path, *, group: int, bits: int, mixed: bool) -> nn.Module:
    """mlx-lm's own quantised form of a directory, written by mlx-lm."""

    def predicate(path: str, _: nn.Module) -> bool | dict:
        if path.endswith("down_proj"):
            return {"group_size": 32, "bits": 8}
        return not path.endswith("o_proj")

    model, config = mlx_lm_utils.load_model(source)
    model, config = mlx_lm_utils.quantize_model(
        model, config, group, bits, quant_predicate=predicate if mixed else None
    )
    mlx_lm_utils.save_model(directory, model)
    mlx_lm_utils.save_config(config, directory / "config.json")
    return model


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("family", CASES)
def test_weights_that_mlx_lm_quantised_give_its_logits(
    tmp_path: Path, ids: list[int], family: str, bits: int
) -> None:
    source = written(tmp_path / "source", CASES[family])
    model = quantised(source, tmp_path / "packed", group=32, bits=bits, mixed=False)
    expected = logits(model, ids)
    checkpoint = open_checkpoint(tmp_path / "packed")
    assert checkpoint.stored_dtype == "packed"
    check(tmp_path / "packed", expected, ids)
    np.testing.assert_allclose(
        logits(load_model(checkpoint, "packed"), ids)[POSITIONS],
        expected[POSITIONS],
        atol=TOLERANCE,
        rtol=TOLERANCE,
    )


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
def test_modules_may_have_their_own_bits_and_groups(
    tmp_path: Path, ids: list[int], bits: int
) -> None:
    config = {**COMMON, "model_type": "llama", "intermediate_size": 128}
    source = written(tmp_path / "source", config, dtype="BF16")
    quantised(source, tmp_path / "packed", group=64, bits=bits, mixed=True)
    expected = logits(oracle(tmp_path / "packed"), ids)
    said = json.loads((tmp_path / "packed" / "config.json").read_text())["quantization"]
    assert said["model.layers.0.mlp.down_proj"]["bits"] == 8
    check(tmp_path / "packed", expected, ids)
    model = load_model(open_checkpoint(tmp_path / "packed"), "packed")
    packings = {
        name: (module.bits, module.group_size)
        for name, module in model.named_modules()
        if isinstance(module, nn.QuantizedLinear)
    }
    assert packings["blocks.0.mlp.down_proj"] == (8, 32)
    assert packings["blocks.0.mlp.up_proj"] == (bits, 64)
    assert "blocks.0.attn.o_proj" not in packings


def test_a_gemma_3_that_also_sees_is_read_for_its_text(tmp_path: Path, ids: list[int]) -> None:
    """mlx-lm's form of it, and the one that newer Hugging Face files have."""
    text = CASES["gemma3_text"]
    config = {"model_type": "gemma3", "text_config": text, "vocab_size": VOCAB}
    named = {f"language_model.{name}": w for name, w in hf_writer.random_tensors(text).items()}
    sees = {"vision_tower.patch.weight": np.zeros((2, 3), np.float32)}
    directory = hf_writer.write(tmp_path / "one", config, named | sees)
    expected = logits(oracle(directory), ids)
    check(directory, expected, ids)
    newer = {
        name.replace("language_model.model.", "model.language_model."): w
        for name, w in named.items()
    }
    check(hf_writer.write(tmp_path / "two", config, newer | sees), expected, ids)


@pytest.mark.parametrize("family", ["smollm3 windows", "gemma3_text"])
def test_the_windows_of_these_cases_are_crossed(
    tmp_path: Path, ids: list[int], family: str
) -> None:
    """Without this the window cases above would prove nothing."""
    config = CASES[family]
    got = logits(oracle(written(tmp_path / "window", config)), ids)
    whole = logits(oracle(written(tmp_path / "whole", config | NO_WINDOW)), ids)
    np.testing.assert_allclose(got[: WINDOW - 1], whole[: WINDOW - 1], atol=TOLERANCE)
    assert np.abs(got[60] - whole[60]).max() > 100 * TOLERANCE
