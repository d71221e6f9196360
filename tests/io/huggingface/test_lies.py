"""Directories that lie: one line that names the file and what is wrong, or a model that runs."""

from __future__ import annotations

import json
import os
import random
import struct
from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from oracles import hf_writer
from oracles.hf_writer import CONFIGS
from tinygpt.errors import CheckpointError, TinyGPTError, UnsupportedError
from tinygpt.io.huggingface.safetensors_file import read_safetensors
from tinygpt.io.load import load_model, open_checkpoint

Refused = Callable[..., str]
LLAMA = CONFIGS["llama"]
INDEX = "model.safetensors.index.json"
LONGROPE = {
    "type": "longrope",
    "short_factor": [1.0] * 8,
    "long_factor": [2.0] * 8,
    "attention_factor": 1.2,
}
VICTIMS = {
    "llama": LLAMA | {"rope_scaling": {"type": "yarn", "factor": 2.0, "mscale": 1.0}},
    "phi3": CONFIGS["phi3"] | {"rope_scaling": LONGROPE, "original_max_position_embeddings": 64},
    "gemma3_text": CONFIGS["gemma3_text"] | {"layer_types": ["sliding_attention"] * 4},
    "qwen2 windows": CONFIGS["qwen2 windows"],
    "smollm3 windows": CONFIGS["smollm3 windows"],
}
VALUES: list[object] = ["x", "", -1, 0, 1, 3, 7, 2**31, 10**400, 1e-300, 1e300, True, None, [], {}]
VALUES += [[1], {"factor": -1}, {"type": 3}, "silu\nsilu"]


def write(directory: Path, config: object = LLAMA, **form: object) -> Path:
    hf_writer.write(directory, LLAMA, hf_writer.random_tensors(LLAMA), **form)
    (directory / "config.json").write_text(json.dumps(config))
    return directory


# --- config.json -----------------------------------------------------------------------------

NO_JSON = {
    "cut off": b'{"model_type": "llama"',
    "not UTF-8": b'{"model_type": "\xff"}',
    "a list": b"[]",
    "empty": b"",
    "nested": b"[" * 100_000,
    "not a number": b'{"rope_theta": NaN}',
    "a key twice": b'{"vocab_size": 1, "vocab_size": 2}',
}


@pytest.mark.parametrize("case", NO_JSON)
def test_a_configuration_that_is_no_json_object_is_refused(
    tmp_path: Path, refused: Refused, case: str
) -> None:
    (write(tmp_path) / "config.json").write_bytes(NO_JSON[case])
    assert "config.json" in refused(CheckpointError, lambda: open_checkpoint(tmp_path))


WRONG: dict[str, tuple[dict, type[TinyGPTError], str]] = {
    "model type": ({"model_type": "mamba"}, UnsupportedError, "mamba"),
    "no model type": ({"model_type": None}, CheckpointError, "model_type"),
    "model type number": ({"model_type": 3}, CheckpointError, "model_type"),
    "experts": ({"model_type": "mixtral"}, UnsupportedError, "mixtral"),
    "architecture": (
        {"architectures": ["LlamaForSequenceClassification"]},
        UnsupportedError,
        "LlamaForSequenceClassification",
    ),
    "activation": ({"hidden_act": "relu2"}, UnsupportedError, "relu2"),
    "rope type": ({"rope_scaling": {"type": "ntk", "factor": 2.0}}, UnsupportedError, "ntk"),
    "mrope": ({"rope_scaling": {"type": "mrope"}}, UnsupportedError, "mrope"),
    "no factor": ({"rope_scaling": {"type": "linear"}}, CheckpointError, "factor"),
    "attention": (
        {"layer_types": ["chunked_attention"] * 4},
        UnsupportedError,
        "chunked_attention",
    ),
    "window without one": (
        {"layer_types": ["sliding_attention"] * 4},
        UnsupportedError,
        "sliding_attention",
    ),
    "bias in mistral": (
        {"model_type": "mistral", "architectures": None, "attention_bias": True},
        UnsupportedError,
        "attention_bias",
    ),
    "both ways": ({"use_bidirectional_attention": True}, UnsupportedError, "bidirectional"),
    "negative layers": ({"num_hidden_layers": -1}, CheckpointError, "num_hidden_layers"),
    "2³⁰ layers": ({"num_hidden_layers": 2**30}, CheckpointError, "num_hidden_layers"),
    "fewer layers": ({"num_hidden_layers": 2}, CheckpointError, "model.layers.2"),
    "more layers": ({"num_hidden_layers": 5}, CheckpointError, "model.layers.4"),
    "heads": ({"num_attention_heads": 3}, CheckpointError, "num_attention_heads"),
    "kv-heads": ({"num_key_value_heads": 3}, CheckpointError, "kv-heads"),
    "other kv-heads": ({"num_key_value_heads": 4}, CheckpointError, "k_proj"),
    "head_dim": ({"head_dim": 64}, CheckpointError, "q_proj"),
    "odd head_dim": ({"head_dim": 33}, CheckpointError, "head_dim 33"),
    "huge": ({"vocab_size": 2**31 - 1}, CheckpointError, "embed_tokens"),
    "beyond huge": ({"vocab_size": 2**60}, CheckpointError, "vocab_size"),
    "float size": ({"hidden_size": 128.0}, CheckpointError, "hidden_size"),
    "text theta": ({"rope_theta": "10000"}, CheckpointError, "rope_theta"),
    "partial": ({"partial_rotary_factor": 1.5}, CheckpointError, "partial_rotary_factor"),
    "divisors": (
        {"rope_scaling": LONGROPE | {"original_max_position_embeddings": 8}},
        CheckpointError,
        "divisors",
    ),
    "quantization": ({"quantization": {"bits": 4}}, CheckpointError, "group_size"),
    "7 bits": ({"quantization": {"bits": 7, "group_size": 64}}, CheckpointError, "bits"),
    "end ids": ({"eos_token_id": "</s>"}, CheckpointError, "eos_token_id"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_in_the_configuration_is_named(
    tmp_path: Path, refused: Refused, case: str
) -> None:
    change, kind, named = WRONG[case]
    write(tmp_path, LLAMA | change)
    assert named in refused(kind, lambda: open_checkpoint(tmp_path))


@pytest.mark.parametrize("family", VICTIMS)
def test_any_value_of_any_key_gives_one_line_or_a_model_that_runs(
    tmp_path: Path, family: str
) -> None:
    config = VICTIMS[family]
    hf_writer.write(tmp_path, config, hf_writer.random_tensors(config))
    cases = [((key,), value) for key in config for value in VALUES]
    scaling = config.get("rope_scaling") or {}
    cases += [(("rope_scaling", key), value) for key in scaling for value in VALUES]
    ran = 0
    for keys, value in cases:
        changed = json.loads(json.dumps(config))
        at = changed if len(keys) == 1 else changed[keys[0]]
        at[keys[-1]] = value
        (tmp_path / "config.json").write_text(json.dumps(changed))
        try:
            checkpoint = open_checkpoint(tmp_path)
        except TinyGPTError as error:
            assert "\n" not in str(error) and len(str(error)) < 700, (keys, value)
            continue
        assert load_model(checkpoint, "fp32")(mx.array([[1, 2, 3]])).shape == (1, 3, 67)
        ran += 1
    assert 0 < ran < len(cases) / 2, f"{ran} of {len(cases)} changed configurations ran"


# --- the directory ---------------------------------------------------------------------------


def test_a_directory_that_is_a_loop_of_links_is_refused(tmp_path: Path, refused: Refused) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    assert "cannot be opened" in refused(CheckpointError, lambda: open_checkpoint(tmp_path / "a"))


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_file_that_is_a_loop_of_links_is_refused(
    tmp_path: Path, refused: Refused, name: str
) -> None:
    path = write(tmp_path) / name
    path.unlink()
    path.symlink_to(path)
    assert name in refused(CheckpointError, lambda: open_checkpoint(tmp_path))


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_pipe_in_the_place_of_a_file_does_not_block(
    tmp_path: Path, refused: Refused, name: str
) -> None:
    path = write(tmp_path) / name
    path.unlink()
    os.mkfifo(path)
    assert name in refused(CheckpointError, lambda: open_checkpoint(tmp_path))


@pytest.mark.parametrize("name", ["tokenizer_config.json", "generation_config.json"])
def test_a_pipe_beside_the_tokenizer_does_not_block(
    word_tokenizer: Path, refused: Refused, name: str
) -> None:
    write(word_tokenizer)
    checkpoint = open_checkpoint(word_tokenizer)
    os.mkfifo(word_tokenizer / name)
    assert name in refused(CheckpointError, checkpoint.read_tokenizer)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "pytorch_model-00001-of-00002.bin", "m.pt"])
def test_pickled_weights_are_refused_with_the_reason(
    tmp_path: Path, refused: Refused, name: str
) -> None:
    (write(tmp_path) / "model.safetensors").rename(tmp_path / name)
    message = refused(UnsupportedError, lambda: open_checkpoint(tmp_path))
    assert name in message
    assert "run code" in message


def test_a_directory_without_weights_is_refused(tmp_path: Path, refused: Refused) -> None:
    (write(tmp_path) / "model.safetensors").unlink()
    message = refused(CheckpointError, lambda: open_checkpoint(tmp_path))
    assert "holds no model.safetensors" in message


def test_a_directory_of_a_gguf_file_says_what_to_give(tmp_path: Path, refused: Refused) -> None:
    (write(tmp_path) / "model.safetensors").rename(tmp_path / "m.gguf")
    message = refused(CheckpointError, lambda: open_checkpoint(tmp_path))
    assert str(tmp_path / "m.gguf") in message


@pytest.mark.parametrize("name", ["m.gguf", "m.tinygpt"])
def test_a_directory_of_model_files_alone_says_what_to_give(
    tmp_path: Path, refused: Refused, name: str
) -> None:
    (tmp_path / name).touch()
    message = refused(CheckpointError, lambda: open_checkpoint(tmp_path))
    assert f"config.json: no such file; give the file {tmp_path / name}" in message


# --- shards ----------------------------------------------------------------------------------


def test_a_missing_shard_is_named_with_a_tensor_of_it(tmp_path: Path, refused: Refused) -> None:
    write(tmp_path, shards=3)
    (tmp_path / "model-00002-of-00003.safetensors").unlink()
    message = refused(CheckpointError, lambda: open_checkpoint(tmp_path))
    assert "model-00002-of-00003.safetensors" in message
    assert "model.norm.weight" in message


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("missing", [1, 4, 1000, 60_000])
def test_a_short_shard_is_named_with_the_tensor_that_it_cuts(
    tmp_path: Path, refused: Refused, shards: int, missing: int
) -> None:
    file = max(write(tmp_path, shards=shards).glob("*.safetensors"))
    file.write_bytes(file.read_bytes()[:-missing])
    message = refused(CheckpointError, lambda: open_checkpoint(tmp_path))
    assert file.name in message
    assert "tensor" in message and "cut off" in message


INDICES: dict[str, tuple[object, str]] = {
    "upwards": ({"lm_head.weight": "../model.safetensors"}, "../model.safetensors"),
    "absolute": ({"lm_head.weight": "/etc/model.safetensors"}, "/etc/model.safetensors"),
    "below": ({"lm_head.weight": "a/b.safetensors"}, "a/b.safetensors"),
    "nul": ({"lm_head.weight": "a\0.safetensors"}, "x00"),
    "pickle": ({"lm_head.weight": "pytorch_model.bin"}, "pytorch_model.bin"),
    "a number": ({"lm_head.weight": 3}, "3"),
    "a list": (["lm_head.weight"], "weight_map"),
    "empty": ({}, "weight_map"),
}


@pytest.mark.parametrize("case", INDICES)
def test_an_index_names_files_of_its_directory_only(
    tmp_path: Path, refused: Refused, case: str
) -> None:
    weight_map, named = INDICES[case]
    (write(tmp_path, shards=2) / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    message = refused(CheckpointError, lambda: open_checkpoint(tmp_path))
    assert INDEX in message and named in message


def test_a_tensor_that_the_index_puts_elsewhere_is_missed(tmp_path: Path, refused: Refused) -> None:
    index = json.loads((write(tmp_path, shards=2) / INDEX).read_text())
    index["weight_map"]["model.norm.weight"] = "model-00001-of-00002.safetensors"
    (tmp_path / INDEX).write_text(json.dumps(index))
    message = refused(CheckpointError, lambda: open_checkpoint(tmp_path))
    assert "model.norm.weight" in message and "model-00001-of-00002.safetensors" in message


def test_a_tensor_in_two_shards_is_refused(tmp_path: Path, refused: Refused) -> None:
    write(tmp_path, shards=2)
    part = {"model.norm.weight": np.zeros(128, np.float32)}
    index = json.loads((tmp_path / INDEX).read_text())
    index["weight_map"]["extra"] = "model-00003.safetensors"
    (tmp_path / INDEX).write_text(json.dumps(index))
    (tmp_path / "model-00003.safetensors").write_bytes(hf_writer.encode(part))
    message = refused(CheckpointError, lambda: open_checkpoint(tmp_path))
    assert "model.norm.weight" in message


# --- tensors ---------------------------------------------------------------------------------


def changed(directory: Path, name: str, array: np.ndarray | None) -> Path:
    tensors = hf_writer.random_tensors(LLAMA)
    tensors.pop(name, None)
    if array is not None:
        tensors[name] = array
    return hf_writer.write(directory, LLAMA, tensors)


NORM = "model.layers.2.input_layernorm.weight"
TENSORS = {
    "missing": (NORM, None),
    "another shape": (NORM, np.zeros((1, 128), np.float32)),
    "too short": (NORM, np.zeros(127, np.float32)),
    "no place": ("model.layers.2.self_attn.q_norm.weight", np.zeros(32, np.float32)),
    "line\nbreak": ("line\nbreak", np.zeros(32, np.float32)),
    "scales without quantization": ("lm_head.scales", np.zeros((67, 4), np.float32)),
}


@pytest.mark.parametrize("case", TENSORS)
def test_a_tensor_that_does_not_fit_is_named(tmp_path: Path, refused: Refused, case: str) -> None:
    name, array = TENSORS[case]
    changed(tmp_path, name, array)
    message = refused(CheckpointError, lambda: open_checkpoint(tmp_path))
    assert (name.split("\n")[0] if case != "scales without quantization" else "lm_head") in message


def test_a_type_that_is_not_read_is_named(tmp_path: Path, refused: Refused) -> None:
    path = write(tmp_path) / "model.safetensors"
    path.write_bytes(path.read_bytes().replace(b'"F32"', b'"I32"', 1))
    message = refused(UnsupportedError, lambda: open_checkpoint(tmp_path))
    assert "I32" in message and "model.embed_tokens.weight" in message


@pytest.mark.parametrize("part", ["scales", "biases"])
def test_a_quantised_module_has_all_its_parts(tmp_path: Path, refused: Refused, part: str) -> None:
    config, tensors = quantised()
    del tensors[f"lm_head.{part}"]
    hf_writer.write(tmp_path, config, tensors)
    assert "lm_head" in refused(TinyGPTError, lambda: open_checkpoint(tmp_path))


@pytest.mark.parametrize(
    "shapes", [(16, 3), (15, 4), (28, 4), (16, 8), (0, 4), (16, 0)], ids=lambda pair: str(pair)
)
def test_packed_shapes_that_do_not_go_together_are_refused(
    tmp_path: Path, refused: Refused, shapes: tuple[int, int]
) -> None:
    words, groups = shapes
    config, tensors = quantised()
    tensors["lm_head.weight"] = np.zeros((67, words), np.uint32)
    for part in ("scales", "biases"):
        tensors[f"lm_head.{part}"] = np.zeros((67, groups), np.float32)
    hf_writer.write(tmp_path, config, tensors)
    assert "lm_head" in refused(CheckpointError, lambda: open_checkpoint(tmp_path))


def test_a_packing_that_the_configuration_denies_is_refused(
    tmp_path: Path, refused: Refused
) -> None:
    for said in ({"bits": 8, "group_size": 32}, False):
        config, tensors = quantised()
        config["quantization"]["lm_head"] = said
        hf_writer.write(tmp_path, config, tensors)
        assert "lm_head" in refused(CheckpointError, lambda: open_checkpoint(tmp_path))


def quantised() -> tuple[dict, dict[str, np.ndarray]]:
    """A llama whose output layer has 4 bits in groups of 32."""
    tensors = hf_writer.random_tensors(LLAMA)
    parts = mx.quantize(mx.array(tensors["lm_head.weight"]), 32, 4)
    for part, array in zip(("weight", "scales", "biases"), parts, strict=True):
        tensors[f"lm_head.{part}"] = np.array(array)
    return {**LLAMA, "quantization": {"group_size": 32, "bits": 4}}, tensors


# --- safetensors headers ---------------------------------------------------------------------

A = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}
BODY = b"\0" * 24
HEADERS: dict[str, tuple[object, str]] = {
    "short": ({"a": A | {"data_offsets": [0, 23]}}, "safetensors"),
    "beyond": ({"a": A | {"data_offsets": [4, 28]}}, "cut off"),
    "backwards": ({"a": A | {"data_offsets": [24, 0]}}, "data_offsets"),
    "negative": ({"a": A | {"data_offsets": [-8, 16]}}, "data_offsets"),
    "three offsets": ({"a": A | {"data_offsets": [0, 8, 24]}}, "data_offsets"),
    "larger": ({"a": A | {"shape": [2, 4]}}, "safetensors"),
    "negative shape": ({"a": A | {"shape": [-2, -3]}}, "shape"),
    "overflow": ({"a": A | {"shape": [2**62, 2**62]}}, "safetensors"),
    "unknown type": ({"a": A | {"dtype": "F99"}}, "safetensors"),
    "gap": ({"a": A | {"shape": [2], "data_offsets": [0, 8]}}, "safetensors"),
    "overlap": ({"a": A, "b": A}, "safetensors"),
    "no object": ({"a": 3}, "'a'"),
    "a list": ([A], "list"),
    "metadata": ({"a": A, "__metadata__": {"x": 1}}, "safetensors"),
}


@pytest.mark.parametrize("case", HEADERS)
def test_a_header_that_lies_is_refused(tmp_path: Path, refused: Refused, case: str) -> None:
    header, named = HEADERS[case]
    path = tmp_path / "a.safetensors"
    path.write_bytes(hf_writer.encode_raw(header, BODY))
    message = refused(CheckpointError, lambda: read_safetensors(path))
    assert str(path) in message and named in message.removeprefix(str(path))


@pytest.mark.parametrize("length", [0, 7, 2**20, 2**62, 2**64 - 1])
def test_a_header_of_a_length_that_lies_is_refused(
    tmp_path: Path, refused: Refused, length: int
) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(struct.pack("<Q", length) + b'{"a":{}}')
    assert str(path) in refused(CheckpointError, lambda: read_safetensors(path))


@pytest.mark.parametrize("size", [0, 1, 8])
def test_a_file_too_short_for_a_header_is_refused(
    tmp_path: Path, refused: Refused, size: int
) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(bytes(size))
    assert str(path) in refused(CheckpointError, lambda: read_safetensors(path))


def test_a_name_that_occurs_twice_is_refused(tmp_path: Path, refused: Refused) -> None:
    half = b'"a":{"dtype":"F32","shape":[6],"data_offsets":[0,24]}'
    text = b"{" + half + b"," + half + b"}"
    path = tmp_path / "a.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text + BODY)
    assert "twice" in refused(CheckpointError, lambda: read_safetensors(path))


def test_flipped_bytes_of_a_header_give_one_line_or_a_model_that_runs(tmp_path: Path) -> None:
    path = write(tmp_path) / "model.safetensors"
    sound = path.read_bytes()
    length = 8 + int.from_bytes(sound[:8], "little")
    rng = random.Random(0)
    outcomes = set()
    for _ in range(300):
        data = bytearray(sound)
        for _ in range(rng.choice([1, 1, 2, 8])):
            data[rng.randrange(length)] = rng.choice([rng.randrange(256), *b'0129[]{}",:'])
        path.write_bytes(data)
        try:
            checkpoint = open_checkpoint(tmp_path)
        except TinyGPTError as error:
            assert "\n" not in str(error) and len(str(error)) < 700
            outcomes.add("refused")
            continue
        load_model(checkpoint, "fp32")(mx.array([[1, 2, 3]]))
        outcomes.add("ran")
    assert "refused" in outcomes
