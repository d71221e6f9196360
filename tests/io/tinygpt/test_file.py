"""What a `.tinygpt` file gives back is what was written into it, in each of its three layouts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from oracles import tinygpt_writer as writer
from tinygpt.errors import CheckpointError, ConfigError, UnsupportedError
from tinygpt.io.checkpoint import read_weights
from tinygpt.io.load import open_checkpoint
from tinygpt.models.config import ModelConfig

CONFIG = {"vocabSize": 320, "ctx": 24, "layers": 2, "heads": 4, "dModel": 32, "dMlp": 48}
WEIGHTS = writer.random_model(CONFIG)


def kept(name: str, array: np.ndarray, layout: str) -> np.ndarray:
    """What a layout keeps of a tensor, float32 [out, in]."""
    if layout == "training":
        return array
    if layout == "fp16":
        return array.astype(np.float16).astype(np.float32)
    values = writer.int4_values(writer.stored_order(name, array))
    linear = array.ndim == 2 and name not in writer.TABLES
    return values.reshape(array.shape[::-1]).T if linear else values.reshape(array.shape)


def read(path: Path, dtype: str = "fp32") -> dict[str, np.ndarray]:
    weights = read_weights(open_checkpoint(path), dtype)
    return {name: np.array(array.astype(mx.float32)) for name, array in weights.items()}


@pytest.mark.parametrize("layout", writer.LAYOUTS)
def test_every_tensor_of_a_layout_comes_back_exactly(tmp_path: Path, layout: str) -> None:
    path = writer.write(tmp_path / "m.tinygpt", CONFIG, WEIGHTS, layout)
    got = read(path)
    assert set(got) == set(WEIGHTS)
    for name, array in WEIGHTS.items():
        np.testing.assert_array_equal(got[name], kept(name, array, layout), err_msg=name)


def test_a_square_linear_is_transposed_and_a_square_table_is_not(tmp_path: Path) -> None:
    config = {**CONFIG, "ctx": 32, "dMlp": 32}  # ctx = dModel = dMlp
    weights = writer.random_model(config)
    got = read(writer.write(tmp_path / "m.tinygpt", config, weights, "fp16"))
    for name in ("position_embedding.weight", "blocks.1.attn.q_proj.weight"):
        written = kept(name, weights[name], "fp16")
        np.testing.assert_array_equal(got[name], written, err_msg="a transpose too many or few")
        assert not np.array_equal(written, written.T), "the test needs an asymmetric matrix"


def test_bytes_of_a_linear_stand_input_major_in_the_file(tmp_path: Path) -> None:
    """Against the writer's own idea of the order: the first C values are one input's column."""
    path = writer.write(tmp_path / "m.tinygpt", CONFIG, WEIGHTS, "fp16")
    names, body = list(WEIGHTS), path.read_bytes()
    name = "blocks.0.mlp.fc_in.weight"
    before = sum(WEIGHTS[other].size for other in names[: names.index(name)])
    size = sum(array.size for array in WEIGHTS.values())
    values = np.frombuffer(body[-2 * size :], "<f2")[before : before + CONFIG["dMlp"]]
    np.testing.assert_array_equal(read(path)[name][:, 0], values.astype(np.float32))


@pytest.mark.parametrize("padding", range(4))
@pytest.mark.parametrize("layout", writer.LAYOUTS)
def test_a_body_at_any_byte_alignment_reads_the_same(
    tmp_path: Path, layout: str, padding: int
) -> None:
    path = tmp_path / "m.tinygpt"
    writer.write(path, CONFIG, WEIGHTS, layout, header={"savedAt": "x" * padding})
    for name, array in read(path).items():
        np.testing.assert_array_equal(array, kept(name, WEIGHTS[name], layout), err_msg=name)


def test_offsets_may_be_absent_or_out_of_order(tmp_path: Path) -> None:
    plain = writer.write(tmp_path / "a.tinygpt", CONFIG, WEIGHTS, "fp16", offsets=False)
    manifest = [
        {"name": name, "shape": list(array.shape), "floatOffset": 0}
        for name, array in WEIGHTS.items()
    ]
    backwards, start = list(reversed(WEIGHTS)), 0
    for name in backwards:
        next(line for line in manifest if line["name"] == name)["floatOffset"] = start
        start += WEIGHTS[name].size
    body = b"".join(
        writer.stored_order(name, WEIGHTS[name]).astype("<f2").tobytes() for name in backwards
    )
    text = {"config": CONFIG, "manifest": manifest, "weightDtype": "fp16"}
    reordered = tmp_path / "b.tinygpt"
    reordered.write_bytes(writer.assemble(json.dumps(text).encode(), body))
    first, second = read(plain), read(reordered)
    for name, array in WEIGHTS.items():
        np.testing.assert_array_equal(first[name], kept(name, array, "fp16"), err_msg=name)
        np.testing.assert_array_equal(second[name], kept(name, array, "fp16"), err_msg=name)


def test_a_file_without_optimiser_state_is_fp16_whatever_it_calls_itself(tmp_path: Path) -> None:
    header = {"weightDtype": "fp32", "includesOptimizerState": False}
    path = writer.write(tmp_path / "m.tinygpt", CONFIG, WEIGHTS, "fp16", header=header)
    assert open_checkpoint(path).stored_dtype == "fp16"
    name = "ln_final.weight"
    np.testing.assert_array_equal(read(path)[name], kept(name, WEIGHTS[name], "fp16"))


@pytest.mark.parametrize(
    ("dtype", "expected"), [("fp32", mx.float32), ("fp16", mx.float16), ("bf16", mx.bfloat16)]
)
@pytest.mark.parametrize("layout", writer.LAYOUTS)
def test_weights_come_in_the_dtype_that_was_asked_for(
    tmp_path: Path, layout: str, dtype: str, expected: mx.Dtype
) -> None:
    path = writer.write(tmp_path / "m.tinygpt", CONFIG, WEIGHTS, layout)
    weights = read_weights(open_checkpoint(path), dtype)
    assert {array.dtype for array in weights.values()} == {expected}


@pytest.mark.parametrize("dtype", ["packed", "int8", ""])
def test_a_weights_dtype_that_cannot_be_had_is_refused(tmp_path: Path, dtype: str) -> None:
    path = writer.write(tmp_path / "m.tinygpt", CONFIG, WEIGHTS, "int4")
    with pytest.raises(ConfigError, match="weights dtype"):
        read_weights(open_checkpoint(path), dtype)


def test_the_configuration_is_read_with_its_variants(tmp_path: Path) -> None:
    config = {
        **CONFIG,
        "useDeepNorm": True,
        "useEmbeddingRMSNorm": True,
        "slidingWindow": 7,
        "nExperts": 1,
        "useYOCO": False,
        "useMoD": None,
        "somethingNew": [1],
    }
    weights = writer.random_model(config, untied=True)
    checkpoint = open_checkpoint(writer.write(tmp_path / "m.tinygpt", config, weights, "fp16"))
    assert checkpoint.config == ModelConfig(
        architecture="tinygpt",
        vocab_size=320,
        layers=2,
        model_dim=32,
        mlp_dim=48,
        heads=4,
        kv_heads=4,
        head_dim=8,
        context=24,
        tie_embeddings=False,
        sliding_window=7,
        deepnorm=True,
        embedding_norm=True,
    )
    head = np.array(read_weights(checkpoint, "fp32")["lm_head.weight"])
    np.testing.assert_array_equal(head, kept("lm_head.weight", weights["lm_head.weight"], "fp16"))


def test_keys_that_are_absent_take_the_defaults_of_the_format(tmp_path: Path) -> None:
    full = {"vocabSize": 256, "ctx": 256, "layers": 12, "heads": 8, "dModel": 256, "dMlp": 1024}
    weights = writer.random_model(full)
    config = open_checkpoint(writer.write(tmp_path / "m.tinygpt", {}, weights, "fp16")).config
    read_back = (config.vocab_size, config.context, config.layers, config.heads)
    assert read_back == (256, 256, 12, 8)
    assert (config.model_dim, config.mlp_dim, config.head_dim) == (256, 1024, 32)


@pytest.mark.parametrize("off", [None, False, 0])
def test_a_sliding_window_that_is_off_is_none(tmp_path: Path, off: object) -> None:
    path = tmp_path / "m.tinygpt"
    writer.write(path, {**CONFIG, "slidingWindow": off}, WEIGHTS, "fp16")
    assert open_checkpoint(path).config.sliding_window is None


@pytest.mark.parametrize(
    "hints",
    [
        {},
        {"kviBits": 8, "streamingSink": 4, "streamingWindow": 256},
        {"kviBits": 4},
        {"streamingSink": 0},
    ],
)
def test_cache_hints_of_the_header_are_surfaced(tmp_path: Path, hints: dict[str, int]) -> None:
    path = writer.write(tmp_path / "m.tinygpt", {**CONFIG, **hints}, WEIGHTS, "fp16")
    assert open_checkpoint(path).cache_hints == hints


@pytest.mark.parametrize("layout", writer.LAYOUTS)
def test_the_tensor_list_accounts_for_the_weights_in_the_body(tmp_path: Path, layout: str) -> None:
    path = writer.write(tmp_path / "m.tinygpt", CONFIG, WEIGHTS, layout)
    infos = {info.name: info for info in open_checkpoint(path).tensors}
    assert {name: info.shape for name, info in infos.items()} == {
        name: array.shape for name, array in WEIGHTS.items()
    }
    fc_in = infos["blocks.0.mlp.fc_in.weight"]  # 48 × 32 values, 24 blocks of 64
    expected = {"training": ("fp32", 6144), "fp16": ("fp16", 3072), "int4": ("int4", 24 * 34)}
    assert (fc_in.dtype, fc_in.nbytes) == expected[layout]


def test_metadata_keeps_the_step_and_what_the_header_says(tmp_path: Path) -> None:
    path = writer.write(tmp_path / "m.tinygpt", CONFIG, WEIGHTS, "fp16", header={"bestVal": 1.5})
    metadata = open_checkpoint(path).metadata
    assert metadata["step"] == 123
    assert metadata["bestVal"] == 1.5
    assert metadata["config"] == CONFIG
    assert "manifest" not in metadata


@pytest.mark.parametrize(
    ("config", "name"),
    [
        ({"nExperts": 4}, "nExperts"),
        ({"useMoD": True}, "useMoD"),
        ({"useDifferentialAttention": True}, "useDifferentialAttention"),
        ({"useYOCO": True}, "useYOCO"),
        ({"architecture": "mla"}, "mla"),
        ({"architecture": "newest"}, "newest"),
    ],
)
def test_a_model_of_another_kind_is_refused_by_its_name(
    tmp_path: Path, refused: object, config: dict, name: str
) -> None:
    path = writer.write(tmp_path / "m.tinygpt", {**CONFIG, **config}, WEIGHTS, "fp16")
    message = refused(UnsupportedError, lambda: open_checkpoint(path))
    assert name in message
    assert str(path) in message


@pytest.mark.parametrize(("version", "advice"), [(1, "export"), (4, "version 4"), (0, "version 0")])
def test_another_version_of_the_format_is_refused(
    tmp_path: Path, refused: object, version: int, advice: str
) -> None:
    path = tmp_path / "m.tinygpt"
    path.write_bytes(writer.assemble(b"{}", b"", version=version))
    assert advice in refused(UnsupportedError, lambda: open_checkpoint(path))


def test_bytes_are_the_tokenizer_of_a_file_that_names_none(tmp_path: Path) -> None:
    path = writer.write(tmp_path / "m.tinygpt", CONFIG, WEIGHTS, "fp16")
    tokenizer = open_checkpoint(path).read_tokenizer(None)
    assert tokenizer.encode("é") == [0xC3, 0xA9]
    assert tokenizer.vocab_size == CONFIG["vocabSize"]


def test_a_vocabulary_below_256_cannot_be_byte_level(tmp_path: Path) -> None:
    config = {**CONFIG, "vocabSize": 64}
    path = writer.write(tmp_path / "m.tinygpt", config, writer.random_model(config), "fp16")
    with pytest.raises(ConfigError, match="256"):
        open_checkpoint(path).read_tokenizer(None)


@pytest.mark.parametrize("absolute", [False, True])
def test_the_tokenizer_source_is_a_directory_beside_the_file(
    tmp_path: Path, word_tokenizer: Path, monkeypatch: pytest.MonkeyPatch, absolute: bool
) -> None:
    models = tmp_path / "models"
    models.mkdir()
    shutil.copytree(word_tokenizer, models / "tok")
    source = str(models / "tok") if absolute else "tok"
    config = {**CONFIG, "tokenizerSource": source}
    path = writer.write(models / "m.tinygpt", config, WEIGHTS, "fp16")
    monkeypatch.chdir(tmp_path)
    tokenizer = open_checkpoint(path.relative_to(tmp_path)).read_tokenizer(None)
    assert tokenizer.encode("ab") == [2]


def test_a_missing_tokenizer_source_is_refused_and_bytes_are_not_a_substitute(
    tmp_path: Path, refused: object, word_tokenizer: Path
) -> None:
    config = {**CONFIG, "tokenizerSource": "gone"}
    path = writer.write(tmp_path / "m.tinygpt", config, WEIGHTS, "fp16")
    checkpoint = open_checkpoint(path)
    message = refused(CheckpointError, lambda: checkpoint.read_tokenizer(None))
    assert "gone" in message
    assert "--tokenizer" in message
    assert checkpoint.read_tokenizer(word_tokenizer).encode("ab") == [2]


def test_a_tokenizer_larger_than_the_model_is_refused(
    tmp_path: Path, refused: object, word_tokenizer: Path
) -> None:
    config = {**CONFIG, "vocabSize": 2}
    path = writer.write(tmp_path / "m.tinygpt", config, writer.random_model(config), "fp16")
    message = refused(CheckpointError, lambda: open_checkpoint(path).read_tokenizer(word_tokenizer))
    assert "259" in message
