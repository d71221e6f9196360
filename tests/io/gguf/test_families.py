"""Every architecture from a GGUF file to its logits, against NumPy forwards of the definitions."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from oracles import gguf_converter, gguf_writer, hf_numpy, hf_writer
from oracles.hf_writer import COMMON, CONFIGS, VOCAB
from oracles.small_models import cached
from tinygpt.cache import CacheSpec
from tinygpt.io.checkpoint import read_weights
from tinygpt.io.load import load_model, open_checkpoint
from tinygpt.models.transformer import Transformer

LENGTH = 70
POSITIONS = (0, 1, 20, 60)
# float32 against float64 through four layers; logits are of size 1 to 10
TOLERANCE = 1e-4
# what eight bits of every key and value may do to the logits: measured up to 0.016 of them
PACKING_ERROR = 0.03

OWN_SCALE = {"query_pre_attn_scalar": 64}  # head_dim: GGUF has no key for another
LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
LONGROPE = {
    "type": "longrope",
    "short_factor": [1.0 + i / 20 for i in range(16)],
    "long_factor": [1.0 + i for i in range(16)],
}
CASES: dict[str, dict] = {
    "llama": CONFIGS["llama"],
    "llama biases": CONFIGS["llama biases"],
    "qwen2": CONFIGS["qwen2"],
    "qwen3": CONFIGS["qwen3"],
    "phi3": CONFIGS["phi3"],
    "phi3 windows": CONFIGS["phi3 windows"],
    "gemma2": CONFIGS["gemma2"] | OWN_SCALE,
    "gemma3": CONFIGS["gemma3_text"] | OWN_SCALE,
    "llama linear": CONFIGS["llama"] | {"rope_scaling": {"type": "linear", "factor": 4.0}},
    "llama rope_freqs": CONFIGS["llama"]
    | {"rope_scaling": {"rope_type": "llama3", "factor": 8.0, **LLAMA3}},
    "qwen2 yarn": CONFIGS["qwen2"]
    | {
        "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
    },
    "phi3 longrope": {
        **COMMON,
        "model_type": "phi3",
        "rope_scaling": {**LONGROPE, "original_max_position_embeddings": 64},
    },
    "phi3 longrope, short": {
        **COMMON,
        "model_type": "phi3",
        "rope_scaling": {**LONGROPE, "original_max_position_embeddings": 128},
    },
}


@pytest.fixture(scope="module")
def ids() -> list[int]:
    return np.random.default_rng(1).integers(0, VOCAB, LENGTH).tolist()


def built(path: Path, config: dict) -> tuple[Transformer, dict]:
    weights = hf_writer.random_tensors(config)
    checkpoint = open_checkpoint(gguf_converter.write(path / "m.gguf", config, weights))
    return load_model(checkpoint, "fp32"), weights


@pytest.mark.parametrize("case", CASES)
def test_logits_equal_those_of_the_definition(tmp_path: Path, ids: list[int], case: str) -> None:
    model, weights = built(tmp_path, CASES[case])
    expected = hf_numpy.forward(CASES[case], weights, ids)
    for how, got in {
        "whole": np.array(model(mx.array([ids]))[0]),
        "chunks of 7": cached(model, ids, 7),
    }.items():
        for position in POSITIONS:
            np.testing.assert_allclose(
                got[position],
                expected[position],
                atol=TOLERANCE,
                rtol=TOLERANCE,
                err_msg=f"{how}, position {position}; right at 0 and wrong later: row order",
            )


@pytest.mark.parametrize("case", ["llama", "qwen2", "qwen3", "phi3", "gemma2", "gemma3"])
def test_a_gguf_file_and_a_directory_are_one_model(tmp_path: Path, case: str) -> None:
    config = CASES[case]
    weights = hf_writer.random_tensors(config)
    directory = hf_writer.write(tmp_path / "hf", config, weights)
    file = gguf_converter.write(tmp_path / "m.gguf", config, weights)
    ours, theirs = (open_checkpoint(path).config for path in (file, directory))
    for name in ("head_dim", "block_norms", "qk_norm", "embedding_scale", "sliding_layers"):
        assert getattr(ours, name) == getattr(theirs, name), name
    tokens = mx.array([[3, 1, 4, 1, 5, 9, 2, 6]])
    both = [load_model(open_checkpoint(path), "fp32")(tokens) for path in (file, directory)]
    np.testing.assert_allclose(np.array(both[0]), np.array(both[1]), atol=TOLERANCE)


@pytest.mark.parametrize("case", ["phi3 windows", "gemma2", "gemma3"])
def test_a_bounded_int8_cache_runs_on_layers_with_windows(
    tmp_path: Path, ids: list[int], case: str
) -> None:
    model, _ = built(tmp_path, CASES[case])
    packed = cached(model, ids, 7, CacheSpec("int8", window=40))
    full = cached(model, ids, 7)
    assert np.isfinite(packed).all()
    # up to here only the packing differs, 8 bits of each number
    error = np.linalg.norm(packed[:40] - full[:40]) / np.linalg.norm(full[:40])
    assert error < PACKING_ERROR, f"int8 moved the logits by {error:.3f} of their size"


@pytest.mark.parametrize("case", ["qwen3", "phi3", "gemma3"])
def test_quantised_and_float_files_of_a_family_agree(tmp_path: Path, case: str) -> None:
    """Q8_0 rows of every tensor, fused ones too, are where those of F32 are."""
    config = CASES[case]
    weights = hf_writer.random_tensors(config)
    files = {
        kind: gguf_converter.write(tmp_path / f"{kind}.gguf", config, weights, kind)
        for kind in ("F32", "Q8_0")
    }
    exact, rough = (read_weights(open_checkpoint(path), "fp32") for path in files.values())
    assert set(exact) == set(rough)
    for name, array in exact.items():
        step = float(mx.abs(array).max()) / 127  # of a block's codes, at most
        assert float(mx.abs(array - rough[name]).max()) <= step, name


@pytest.mark.parametrize(
    ("case", "layers"), [("gemma2", 46), ("gemma3", 62)], ids=["gemma2", "gemma3"]
)
def test_gemma_27b_scales_scores_by_its_own_rule(tmp_path: Path, case: str, layers: int) -> None:
    """It is told by its layers alone: model_dim / heads in place of head_dim."""
    config = CASES[case] | {"num_hidden_layers": layers, "hidden_size": 64}
    config |= {"num_attention_heads": 4, "intermediate_size": 32, "head_dim": 64}
    weights = hf_writer.random_tensors(config)
    path = gguf_converter.write(tmp_path / "m.gguf", config, weights)
    assert open_checkpoint(path).config.score_scale == 0.25


def test_gemma_3_keeps_its_local_rope_where_a_window_spans_the_context(tmp_path: Path) -> None:
    config = CASES["gemma3"] | {"sliding_window": 256}
    weights = hf_writer.random_tensors(config)
    read = open_checkpoint(gguf_converter.write(tmp_path / "m.gguf", config, weights)).config
    bases = [rope.base for rope in map(read.layer_rope, range(4)) if rope is not None]
    assert bases == [1e4, 1e4, 1e6, 1e4]


def test_windows_by_default_and_by_list(tmp_path: Path) -> None:
    weights = hf_writer.random_tensors(CASES["gemma2"])
    tensors = gguf_converter.tensors(CASES["gemma2"], weights)
    keys = gguf_converter.metadata(CASES["gemma2"])
    path = tmp_path / "m.gguf"

    def windows() -> list[int | None]:
        path.write_bytes(gguf_writer.encode(keys, tensors))
        return [open_checkpoint(path).config.layer_window(layer) for layer in range(4)]

    assert windows() == [32, None, 32, None]
    keys["gemma2.attention.sliding_window_pattern"] = ("[bool]", [0, 1, 1, 0])
    assert windows() == [None, 32, 32, None]
    for key in ("sliding_window", "sliding_window_pattern"):
        del keys[f"gemma2.attention.{key}"]
    assert windows() == [4096, None, 4096, None]


def test_gemma_2_has_soft_caps_unless_the_file_turns_them_off(tmp_path: Path) -> None:
    weights = hf_writer.random_tensors(CASES["gemma2"])
    tensors = gguf_converter.tensors(CASES["gemma2"], weights)
    keys = gguf_converter.metadata(CASES["gemma2"])
    path = tmp_path / "m.gguf"

    def caps() -> tuple[float | None, float | None]:
        path.write_bytes(gguf_writer.encode(keys, tensors))
        config = open_checkpoint(path).config
        return config.attention_softcap, config.logit_softcap

    assert caps() == (5.0, 3.0)
    del keys["gemma2.attn_logit_softcapping"]
    keys["gemma2.final_logit_softcapping"] = ("f32", 0.0)
    assert caps() == (50.0, None)


def test_keys_that_say_nothing_do_no_harm(tmp_path: Path) -> None:
    weights = hf_writer.random_tensors(CASES["llama"])
    neutral = {
        "llama.expert_count": ("u32", 0),
        "llama.pooling_type": ("u32", 0),
        "llama.attention.causal": ("bool", 1),
        "llama.rope.scaling.type": ("str", "none"),
        "llama.tensor_data_layout": ("str", "Meta AI original pth"),
    }
    path = tmp_path / "m.gguf"
    tensors = gguf_converter.tensors(CASES["llama"], weights)
    path.write_bytes(gguf_writer.encode(gguf_converter.metadata(CASES["llama"]) | neutral, tensors))
    config = open_checkpoint(path).config
    assert config.rope is not None
    assert config.rope.scaling is None
