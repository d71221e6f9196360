"""Hugging Face directories: what a file may leave open, and what we make of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from oracles import hf_numpy, hf_writer
from oracles.hf_writer import COMMON, CONFIGS, VOCAB
from tinygpt.cli.main import run
from tinygpt.cli.signals import Signals
from tinygpt.errors import CheckpointError, UnsupportedError
from tinygpt.io.checkpoint import read_weights
from tinygpt.io.load import layout_of, load, load_model, open_checkpoint
from tinygpt.models.config import ModelConfig

IDS = [3, 1, 4, 1, 5, 9, 2, 6]
LLAMA = CONFIGS["llama"]
TIED = LLAMA | {"tie_word_embeddings": True}
# float32 against float64 through four layers; logits are of size 1 to 10
TOLERANCE = 1e-4


def config_of(directory: Path, config: dict) -> ModelConfig:
    tensors = hf_writer.random_tensors(config)
    return open_checkpoint(hf_writer.write(directory, config, tensors)).config


@pytest.mark.parametrize("shards", [1, 2, 5])
@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_weights_are_those_of_the_files(tmp_path: Path, dtype: str, shards: int) -> None:
    tensors = hf_writer.random_tensors(LLAMA)
    checkpoint = open_checkpoint(
        hf_writer.write(tmp_path, LLAMA, tensors, dtype=dtype, shards=shards)
    )
    weights = read_weights(checkpoint, "fp32")
    assert len(weights) == len(tensors) == len(checkpoint.tensors)
    for ours, theirs in {
        "token_embedding.weight": "model.embed_tokens.weight",
        "ln_final.weight": "model.norm.weight",
        "lm_head.weight": "lm_head.weight",
        "blocks.3.ln2.weight": "model.layers.3.post_attention_layernorm.weight",
        "blocks.2.attn.k_proj.weight": "model.layers.2.self_attn.k_proj.weight",
        "blocks.1.mlp.down_proj.weight": "model.layers.1.mlp.down_proj.weight",
    }.items():
        np.testing.assert_array_equal(
            np.array(weights[ours]), hf_writer.rounded(tensors[theirs], dtype)
        )
    stored = {"F32": "fp32", "F16": "fp16", "BF16": "bf16"}[dtype]
    assert checkpoint.stored_dtype == stored
    assert {info.dtype for info in checkpoint.tensors} == {stored}
    whole = sum(path.stat().st_size for path in tmp_path.glob("*.safetensors"))
    assert 0 < whole - sum(info.nbytes for info in checkpoint.tensors) < 40_000  # headers


def test_a_tensor_that_lies_at_an_odd_byte_is_read(tmp_path: Path) -> None:
    tensors = hf_writer.random_tensors(LLAMA)
    hf_writer.write(tmp_path, LLAMA, tensors)
    data = (tmp_path / "model.safetensors").read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = data[8 : 8 + size] + b" " * (1 + (8 - size) % 8)
    assert (8 + len(header)) % 4
    odd = len(header).to_bytes(8, "little") + header + data[8 + size :]
    (tmp_path / "model.safetensors").write_bytes(odd)
    weights = read_weights(open_checkpoint(tmp_path), "fp32")
    np.testing.assert_array_equal(np.array(weights["lm_head.weight"]), tensors["lm_head.weight"])


def test_reading_peaks_near_the_size_of_the_weights(tmp_path: Path) -> None:
    config = LLAMA | {"vocab_size": 8000}
    hf_writer.write(tmp_path, config, hf_writer.random_tensors(config), dtype="BF16", shards=2)
    checkpoint = open_checkpoint(tmp_path)
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    weights = read_weights(checkpoint, "fp32")
    total = sum(array.nbytes for array in weights.values())
    largest = max(array.nbytes for array in weights.values())
    # the tensor on its way is there as bfloat16 too, and MLX rounds up to pages; all of them
    # together would be half of the total
    assert mx.get_peak_memory() - before < total + largest // 2 + 2**18 < total * 1.3


def test_weights_come_one_tensor_at_a_time(tmp_path: Path) -> None:
    hf_writer.write(tmp_path, LLAMA, hf_writer.random_tensors(LLAMA))
    checkpoint = open_checkpoint(tmp_path)
    names = [list(part) for part in checkpoint.iter_weights("bf16")]
    assert [name for (name,) in names] == [info.name for info in checkpoint.tensors]


# --- the output layer ------------------------------------------------------------------------


def heads(directory: Path, said: bool | None, tensors: dict[str, np.ndarray]) -> bool:
    config = {key: value for key, value in LLAMA.items() if key != "tie_word_embeddings"}
    config |= {} if said is None else {"tie_word_embeddings": said}
    hf_writer.write(directory, config, tensors)
    checkpoint = open_checkpoint(directory)
    got = np.array(load_model(checkpoint, "fp32")(mx.array([IDS]))[0])
    tied = checkpoint.config.tie_embeddings
    table = tensors.get("model.embed_tokens.weight", tensors.get("lm_head.weight"))
    known = {**tensors, "model.embed_tokens.weight": table}
    if tied:
        known["lm_head.weight"] = table
    expected = hf_numpy.forward(config, known, IDS)
    np.testing.assert_allclose(got, expected, atol=TOLERANCE, rtol=TOLERANCE)
    return tied


@pytest.mark.parametrize("said", [True, None])
def test_without_an_output_layer_the_embedding_is_it(tmp_path: Path, said: bool | None) -> None:
    assert heads(tmp_path, said, hf_writer.random_tensors(TIED))


@pytest.mark.parametrize("said", [False, None])
def test_an_output_layer_of_its_own_is_used(tmp_path: Path, said: bool | None) -> None:
    assert not heads(tmp_path, said, hf_writer.random_tensors(LLAMA))


def test_an_equal_output_layer_is_tied_as_the_configuration_says(tmp_path: Path) -> None:
    tensors = hf_writer.random_tensors(LLAMA)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    assert heads(tmp_path, True, tensors)


def test_another_output_layer_wins_over_what_the_configuration_says(tmp_path: Path) -> None:
    assert not heads(tmp_path, True, hf_writer.random_tensors(LLAMA))


def test_a_tied_embedding_may_be_stored_as_the_output_layer(tmp_path: Path) -> None:
    tensors = hf_writer.random_tensors(LLAMA)
    del tensors["model.embed_tokens.weight"]
    assert heads(tmp_path, True, tensors)


def test_an_output_layer_that_should_be_there_is_missed(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"lm_head\.weight is missing"):
        heads(tmp_path, False, hf_writer.random_tensors(TIED))


# --- config.json -----------------------------------------------------------------------------


def test_layer_types_decide_where_the_windows_are(tmp_path: Path) -> None:
    kinds = ["sliding_attention", "full_attention", "full_attention", "sliding_attention"]
    config = config_of(tmp_path, CONFIGS["gemma2"] | {"layer_types": kinds})
    assert config.sliding_layers == (True, False, False, True)
    assert [config.layer_window(i) for i in range(4)] == [32, None, None, 32]


def test_a_null_window_is_none_and_an_absent_one_the_familys(tmp_path: Path) -> None:
    mistral = {**COMMON, "model_type": "mistral"}
    assert config_of(tmp_path / "a", mistral).sliding_window == 4096
    assert config_of(tmp_path / "n", mistral | {"sliding_window": None}).sliding_window is None


def test_an_unused_window_is_none(tmp_path: Path) -> None:
    config = CONFIGS["qwen2 windows"] | {"use_sliding_window": False}
    assert config_of(tmp_path, config).sliding_window is None


def test_a_null_softcap_is_none_and_an_absent_one_the_familys(tmp_path: Path) -> None:
    config = CONFIGS["gemma2"] | {"attn_logit_softcapping": None}
    del config["final_logit_softcapping"]
    got = config_of(tmp_path, config)
    assert (got.attention_softcap, got.logit_softcap) == (None, 30.0)


def test_gemma_3_turns_its_two_kinds_of_layer_by_two_bases(tmp_path: Path) -> None:
    old = CONFIGS["gemma3_text"]
    new = {k: v for k, v in old.items() if not k.startswith("rope_")}
    new["rope_parameters"] = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
    configs = [config_of(tmp_path / "old", old), config_of(tmp_path / "new", new)]
    assert configs[0] == configs[1]
    ropes = [configs[0].layer_rope(i) for i in range(4)]
    assert [rope.base for rope in ropes if rope] == [1e4, 1e4, 1e6, 1e4]
    assert [rope.scaling is None for rope in ropes if rope] == [True, True, False, True]


def test_the_new_form_of_rope_settings_means_what_the_old_one_does(tmp_path: Path) -> None:
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    old = LLAMA | {"rope_scaling": scaling, "rope_theta": 5e5}
    new = {key: value for key, value in LLAMA.items() if key != "rope_theta"}
    new["rope_parameters"] = scaling | {"rope_theta": 5e5}
    assert config_of(tmp_path / "old", old) == config_of(tmp_path / "new", new)


def test_layers_without_rope_are_those_that_smollm3_names(tmp_path: Path) -> None:
    config = config_of(tmp_path, CONFIGS["smollm3"])
    assert config.rope_layers == (True, True, True, False)
    assert config.layer_rope(3) is None
    layout = layout_of(open_checkpoint(tmp_path))
    assert [layer.rope is None for layer in layout.layers] == [False, False, False, True]


@pytest.mark.parametrize("tokens", [32, 33])
def test_the_layout_of_a_longrope_model_follows_the_length_of_the_text(
    tmp_path: Path, tokens: int
) -> None:
    scaling = {"type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
    config = CONFIGS["phi3"] | {"rope_scaling": scaling, "original_max_position_embeddings": 32}
    hf_writer.write(tmp_path, config, hf_writer.random_tensors(config))
    rope = layout_of(open_checkpoint(tmp_path), tokens=tokens).layers[0].rope
    assert rope is not None and rope.scaling is not None
    assert set(rope.scaling.divisors) == {1.0 if tokens == 32 else 2.0}


def test_frequencies_that_old_files_repeat_are_passed_over(tmp_path: Path) -> None:
    tensors = hf_writer.random_tensors(LLAMA)
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(16, np.float32)
    assert len(open_checkpoint(hf_writer.write(tmp_path, LLAMA, tensors)).tensors) == 39


# --- quantised -------------------------------------------------------------------------------


def pack(
    tensors: dict[str, np.ndarray], keep: Callable[[str], bool], group: int, bits: int
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The tensors with those of `keep` packed, and the values that they then have."""
    packed, values = dict(tensors), dict(tensors)
    for name in [name for name, array in tensors.items() if array.ndim == 2 and keep(name)]:
        words, scales, biases = mx.quantize(mx.array(tensors[name]), group, bits)
        stem = name.removesuffix("weight")
        packed |= {name: np.array(words), f"{stem}scales": np.array(scales)}
        packed[f"{stem}biases"] = np.array(biases)
        values[name] = np.array(mx.dequantize(words, scales, biases, group, bits))
    return packed, values


@pytest.mark.parametrize("family", ["phi3", "llama", "gemma2"])
def test_packed_weights_give_the_logits_of_their_values(tmp_path: Path, family: str) -> None:
    config = CONFIGS[family]
    packed, values = pack(hf_writer.random_tensors(config), lambda _: True, 32, 4)
    said = config | {"quantization": {"group_size": 32, "bits": 4}}
    checkpoint = open_checkpoint(hf_writer.write(tmp_path, said, packed))
    expected = hf_numpy.forward(config, values, IDS)
    for dtype in ("fp32", "packed"):
        got = np.array(load_model(checkpoint, dtype)(mx.array([IDS]))[0])
        np.testing.assert_allclose(got, expected, atol=TOLERANCE, rtol=TOLERANCE, err_msg=dtype)
    assert {info.dtype for info in checkpoint.tensors} == {"int4", "fp32"}


@pytest.mark.parametrize("key", ["quantization", "quantization_config"])
def test_a_module_may_be_left_out_or_have_its_own_packing(tmp_path: Path, key: str) -> None:
    keep = "model.layers.1.self_attn.q_proj"
    packed, _ = pack(hf_writer.random_tensors(LLAMA), lambda name: name.startswith(keep), 64, 8)
    quantization = {"group_size": 32, "bits": 4, keep: {"group_size": 64, "bits": 8}}
    quantization |= {"lm_head": False}
    said = LLAMA | {key: quantization}
    checkpoint = open_checkpoint(hf_writer.write(tmp_path, said, packed))
    assert [info.name for info in checkpoint.tensors if info.dtype == "int8"] == [
        "blocks.1.attn.q_proj.weight"
    ]


def test_a_quantised_bf16_model_keeps_bf16_beside_its_packed_weights(tmp_path: Path) -> None:
    packed, _ = pack(hf_writer.random_tensors(LLAMA), lambda _: True, 32, 4)
    said = LLAMA | {"quantization": {"group_size": 32, "bits": 4, "mode": "affine"}}
    checkpoint = open_checkpoint(hf_writer.write(tmp_path, said, packed, dtype="BF16"))
    assert checkpoint.stored_dtype == "packed"
    assert layout_of(checkpoint).half == mx.bfloat16


METHODS = {
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": 128},
    "awq": {"quant_method": "awq", "bits": 4, "group_size": 128},
    "fp8": {"quant_method": "fp8"},
    "bitsandbytes": {"quant_method": "bitsandbytes", "load_in_4bit": True},
    "compressed-tensors": {"quant_method": "compressed-tensors", "format": "float-quantized"},
}


@pytest.mark.parametrize("method", METHODS)
def test_other_quantisations_are_refused_by_name(
    tmp_path: Path, refused: Callable[..., str], method: str
) -> None:
    config = LLAMA | {"quantization_config": METHODS[method]}
    hf_writer.write(tmp_path, config, hf_writer.random_tensors(LLAMA))
    assert method in refused(UnsupportedError, lambda: open_checkpoint(tmp_path))


@pytest.mark.parametrize("mode", ["mxfp4", "nvfp4"])
def test_other_modes_are_refused_by_name(
    tmp_path: Path, refused: Callable[..., str], mode: str
) -> None:
    config = LLAMA | {"quantization": {"group_size": 32, "bits": 4, "mode": mode}}
    hf_writer.write(tmp_path, config, hf_writer.random_tensors(LLAMA))
    assert mode in refused(UnsupportedError, lambda: open_checkpoint(tmp_path))


# --- tokenizer and command line --------------------------------------------------------------


@pytest.fixture
def directory(word_tokenizer: Path) -> Path:
    """A whole model directory, with a tokenizer of 259 ids."""
    config = CONFIGS["qwen3"] | {"vocab_size": 272, "eos_token_id": [1, 40]}
    return hf_writer.write(word_tokenizer, config, hf_writer.random_tensors(config), dtype="BF16")


def test_stop_ids_are_those_of_all_files_together(directory: Path) -> None:
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": [41, 42]}))
    (directory / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>"}))
    (directory / "chat_template.jinja").write_text("{{ messages[0].content }}!")
    _, tokenizer = load(directory)
    assert tokenizer.eos_ids >= {1, 40, 41, 42}
    assert tokenizer.chat_template == "{{ messages[0].content }}!"
    assert tokenizer.vocab_size == 272


@pytest.mark.parametrize("command", [["sample", "--prompt", "abc", "--tokens", "5"], ["inspect"]])
def test_the_command_line_takes_a_directory(
    directory: Path, capfd: pytest.CaptureFixture[str], command: list[str]
) -> None:
    name, *options = command
    assert run([name, str(directory), *options], Signals()) == 0
    out = capfd.readouterr().out
    assert out.startswith("abc") if name == "sample" else "qwen3" in out


def test_a_link_into_a_store_of_blobs_is_followed(tmp_path: Path) -> None:
    """As the cache of the hub has it."""
    hf_writer.write(tmp_path / "blobs", LLAMA, hf_writer.random_tensors(LLAMA))
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    for name in ("config.json", "model.safetensors"):
        (snapshot / name).symlink_to(tmp_path / "blobs" / name)
    assert open_checkpoint(snapshot).config.vocab_size == VOCAB
