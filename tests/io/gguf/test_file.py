"""Weights of a llama GGUF file under our names, rows un-permuted, in each tensor type and dtype."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from oracles import gguf_writer as writer
from oracles.gguf_literal import dequantise
from oracles.gguf_writer import Llama
from tinygpt.errors import ConfigError
from tinygpt.io.checkpoint import read_weights
from tinygpt.io.load import open_checkpoint
from tinygpt.models.config import ModelConfig
from tinygpt.ops.rope import RopeConfig

MODEL = Llama()
WEIGHTS = writer.llama_weights(MODEL)
PACKED_TYPES = ("Q4_0", "Q4_1", "Q8_0")
Q_PROJ, DOWN = "blocks.1.attn.q_proj.weight", "blocks.0.mlp.down_proj.weight"


def write(path: Path, model: Llama = MODEL, kinds: object = "F32", seed: int = 0) -> Path:
    weights = writer.llama_weights(model, seed)
    tensors = writer.llama_tensors(model, weights, kinds)
    path.write_bytes(writer.encode(writer.llama_metadata(model), tensors))
    return path


def kept(name: str, array: np.ndarray, kind: str) -> np.ndarray:
    """What a tensor type keeps of a tensor, float32, by the literal dequantiser."""
    raw = writer.quantise(array, kind)
    if kind == "F16":
        return np.frombuffer(raw, "<f2").astype(np.float32).reshape(array.shape)
    if kind == "BF16":
        words = np.frombuffer(raw, "<u2").astype(np.uint32) << 16
        return words.view(np.float32).reshape(array.shape)
    return dequantise(raw, kind).reshape(array.shape)


def as_numpy(array: mx.array) -> np.ndarray:
    return np.array(array.astype(mx.float32))


def test_float_tensors_come_back_exactly_with_their_rows_in_our_order(tmp_path: Path) -> None:
    got = read_weights(open_checkpoint(write(tmp_path / "m.gguf")), "fp32")
    assert set(got) == set(WEIGHTS)
    for name, array in WEIGHTS.items():
        np.testing.assert_array_equal(as_numpy(got[name]), array, err_msg=name)


@pytest.mark.parametrize("kind", [*PACKED_TYPES, "F16", "BF16"])
def test_every_tensor_type_dequantises_by_its_block_formula(tmp_path: Path, kind: str) -> None:
    got = read_weights(open_checkpoint(write(tmp_path / "m.gguf", kinds=kind)), "fp32")
    for name in (Q_PROJ, DOWN, "token_embedding.weight", "blocks.0.attn.k_proj.weight"):
        expected = kept(name, WEIGHTS[name], kind)
        np.testing.assert_array_equal(as_numpy(got[name]), expected, err_msg=name)


@pytest.mark.parametrize("kind", PACKED_TYPES)
def test_packed_weights_dequantise_to_the_float_ones(tmp_path: Path, kind: str) -> None:
    checkpoint = open_checkpoint(write(tmp_path / "m.gguf", kinds=kind))
    packed, floats = read_weights(checkpoint, "packed"), read_weights(checkpoint, "fp32")
    assert checkpoint.stored_dtype == "packed"
    for name in (Q_PROJ, DOWN, "token_embedding.weight"):
        base = name.removesuffix(".weight")
        assert packed[name].dtype == mx.uint32
        values = mx.dequantize(
            packed[name],
            packed[f"{base}.scales"].astype(mx.float32),
            packed[f"{base}.biases"].astype(mx.float32),
            group_size=32,
            bits=8 if kind == "Q8_0" else 4,
        )
        np.testing.assert_array_equal(as_numpy(values), as_numpy(floats[name]), err_msg=name)
    assert packed["ln_final.weight"].dtype == mx.float32, "norms stay floats"


@pytest.mark.parametrize("kind", PACKED_TYPES)
def test_packed_weights_are_those_mlx_reads_itself(tmp_path: Path, kind: str) -> None:
    """mx.load is an independent reader of honest files; these two tensors are not permuted."""
    path = write(tmp_path / "m.gguf", kinds=kind)
    ours, theirs = read_weights(open_checkpoint(path), "packed"), mx.load(str(path))
    names = {"token_embedding": "token_embd", "blocks.1.attn.v_proj": "blk.1.attn_v"}
    for our, their in names.items():
        for part in ("weight", "scales", "biases"):
            mine, other = ours[f"{our}.{part}"], theirs[f"{their}.{part}"]
            assert mine.dtype == other.dtype
            assert mx.array_equal(mine, other), f"{our}.{part}"


@pytest.mark.parametrize(
    ("dtype", "expected"), [("fp32", mx.float32), ("fp16", mx.float16), ("bf16", mx.bfloat16)]
)
def test_all_weights_come_in_the_float_dtype_that_was_asked_for(
    tmp_path: Path, dtype: str, expected: mx.Dtype
) -> None:
    path = write(tmp_path / "m.gguf", kinds={Q_PROJ: "Q4_1", DOWN: "F16"})
    weights = read_weights(open_checkpoint(path), dtype)
    assert {array.dtype for array in weights.values()} == {expected}
    assert set(weights) == set(WEIGHTS)


def test_half_precision_is_the_rounded_float32_value(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write(tmp_path / "m.gguf", kinds="Q4_1"))
    half = read_weights(checkpoint, "fp16")[DOWN]
    full = read_weights(checkpoint, "fp32")[DOWN]
    np.testing.assert_array_equal(np.array(half), np.array(full).astype(np.float16))


def test_biases_of_q_and_k_are_unpermuted_with_their_rows(tmp_path: Path) -> None:
    model = Llama(bias=True)
    weights = writer.llama_weights(model)
    checkpoint = open_checkpoint(write(tmp_path / "m.gguf", model))
    got = read_weights(checkpoint, "fp32")
    assert checkpoint.config.attention_bias
    assert not checkpoint.config.mlp_bias
    for part in "qkvo":
        name = f"blocks.0.attn.{part}_proj.bias"
        np.testing.assert_array_equal(as_numpy(got[name]), weights[name], err_msg=name)


def test_the_configuration_of_a_llama_file(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write(tmp_path / "m.gguf"))
    config = checkpoint.config
    assert checkpoint.kind == "gguf"
    assert checkpoint.cache_hints == {}
    assert config.norm_eps == pytest.approx(1e-5, rel=1e-6)  # float32 in the file
    assert config == ModelConfig(
        architecture="llama",
        vocab_size=320,
        layers=2,
        model_dim=64,
        mlp_dim=96,
        heads=4,
        kv_heads=2,
        head_dim=16,
        context=128,
        norm="rmsnorm",
        norm_eps=config.norm_eps,
        mlp="swiglu",
        attention_bias=False,
        mlp_bias=False,
        tie_embeddings=True,
        rope=RopeConfig(base=10000.0, dims=16),
    )


def test_an_output_matrix_unties_the_head(tmp_path: Path) -> None:
    model = Llama(tied=False)
    checkpoint = open_checkpoint(write(tmp_path / "m.gguf", model))
    assert not checkpoint.config.tie_embeddings
    head = writer.llama_weights(model)["lm_head.weight"]
    np.testing.assert_array_equal(
        as_numpy(read_weights(checkpoint, "fp32")["lm_head.weight"]), head
    )


def test_keys_that_may_be_absent_take_llama_defaults(tmp_path: Path) -> None:
    model = Llama(kv_heads=4)
    metadata = writer.llama_metadata(model)
    for key in ("attention.head_count_kv", "attention.key_length", "rope.freq_base", "vocab_size"):
        del metadata[f"llama.{key}"]
    path = tmp_path / "m.gguf"
    tensors = writer.llama_tensors(model, writer.llama_weights(model))
    path.write_bytes(writer.encode(metadata, tensors))
    config = open_checkpoint(path).config
    assert (config.kv_heads, config.head_dim, config.vocab_size) == (4, 16, 320)
    assert config.rope == RopeConfig(base=10000.0, dims=16)


@pytest.mark.parametrize("alignment", [8, 64, 4096])
def test_the_alignment_key_moves_the_tensors(tmp_path: Path, alignment: int) -> None:
    metadata = {**writer.llama_metadata(MODEL), "general.alignment": ("u32", alignment)}
    path = tmp_path / "m.gguf"
    tensors = writer.llama_tensors(MODEL, WEIGHTS)
    path.write_bytes(writer.encode(metadata, tensors, alignment=alignment))
    got = read_weights(open_checkpoint(path), "fp32")
    np.testing.assert_array_equal(as_numpy(got[Q_PROJ]), WEIGHTS[Q_PROJ])


def test_metadata_of_every_kind_is_kept(tmp_path: Path) -> None:
    extra = {
        "x.u8": ("u8", 255),
        "x.i64": ("i64", -(2**40)),
        "x.f64": ("f64", 0.5),
        "x.bool": ("bool", 1),
        "x.text": ("str", "né"),
        "x.numbers": ("[i16]", [1, -2]),
        "x.nested": ("[[str]]", [["a"], ["b", "c"]]),
    }
    path = tmp_path / "m.gguf"
    tensors = writer.llama_tensors(MODEL, WEIGHTS)
    path.write_bytes(writer.encode({**writer.llama_metadata(MODEL), **extra}, tensors, version=2))
    metadata = open_checkpoint(path).metadata
    assert metadata["x.u8"] == 255
    assert metadata["x.i64"] == -(2**40)
    assert metadata["x.f64"] == 0.5
    assert metadata["x.bool"] is True
    assert metadata["x.text"] == "né"
    assert list(metadata["x.numbers"]) == [1, -2]
    assert metadata["x.nested"] == [["a"], ["b", "c"]]


@pytest.mark.parametrize(
    ("kinds", "stored"),
    [("F32", "fp32"), ("F16", "fp16"), ("BF16", "bf16"), ({DOWN: "Q8_0"}, "packed")],
)
def test_the_stored_dtype_is_that_of_the_matrices(
    tmp_path: Path, kinds: object, stored: str
) -> None:
    assert open_checkpoint(write(tmp_path / "m.gguf", kinds=kinds)).stored_dtype == stored


def test_packed_weights_of_a_file_without_any_are_refused(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write(tmp_path / "m.gguf", kinds="F16"))
    with pytest.raises(ConfigError, match="packed"):
        read_weights(checkpoint, "packed")


def test_the_tensor_list_names_types_and_bytes(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", kinds={DOWN: "Q4_1"})
    infos = {info.name: info for info in open_checkpoint(path).tensors}
    assert infos[DOWN].shape == (64, 96)
    assert infos[DOWN].dtype == "q4_1"
    assert infos[DOWN].nbytes == 64 * 3 * 20


def test_a_file_that_the_gguf_package_writes_is_read(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf", reason="the gguf package is not installed")
    path = tmp_path / "m.gguf"
    file = gguf.GGUFWriter(path, "llama")
    for key, (kind, value) in writer.llama_metadata(MODEL).items():
        if key != "general.architecture":
            number = gguf.GGUFValueType
            types = {"u32": number.UINT32, "f32": number.FLOAT32, "str": number.STRING}
            file.add_key_value(key, value, types.get(kind, number.ARRAY))
    down = gguf.quants.quantize(WEIGHTS[DOWN], gguf.GGMLQuantizationType.Q5_1)
    for tensor, (name, array) in zip(
        writer.llama_tensors(MODEL, WEIGHTS), WEIGHTS.items(), strict=True
    ):
        if name == DOWN:
            file.add_tensor(tensor.name, down, raw_dtype=gguf.GGMLQuantizationType.Q5_1)
        else:
            file.add_tensor(tensor.name, np.frombuffer(tensor.data, "<f4").reshape(array.shape))
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()
    checkpoint = open_checkpoint(path)
    got = read_weights(checkpoint, "fp32")
    expected = gguf.quants.dequantize(down, gguf.GGMLQuantizationType.Q5_1)
    np.testing.assert_array_equal(as_numpy(got[DOWN]), expected)
    np.testing.assert_array_equal(as_numpy(got[Q_PROJ]), WEIGHTS[Q_PROJ])
    assert checkpoint.read_tokenizer(None).vocab_size == MODEL.vocab


@pytest.mark.real
def test_smollm2_reads_as_its_published_configuration(smollm2: Path) -> None:
    checkpoint = open_checkpoint(smollm2)
    config = checkpoint.config
    assert (config.layers, config.heads, config.kv_heads, config.head_dim) == (30, 9, 3, 64)
    assert (config.model_dim, config.mlp_dim, config.vocab_size) == (576, 1536, 49152)
    assert (config.context, config.tie_embeddings) == (8192, True)
    assert config.rope == RopeConfig(base=100000.0, dims=64)
    assert checkpoint.stored_dtype == "packed"


@pytest.mark.real
def test_smollm2_packed_equals_what_mlx_reads(smollm2: Path) -> None:
    ours, theirs = read_weights(open_checkpoint(smollm2), "packed"), mx.load(str(smollm2))
    for our, their in {
        "token_embedding": "token_embd",
        "blocks.7.mlp.gate_proj": "blk.7.ffn_gate",
        "blocks.29.attn.o_proj": "blk.29.attn_output",
    }.items():
        for part in ("weight", "scales", "biases"):
            assert mx.array_equal(ours[f"{our}.{part}"], theirs[f"{their}.{part}"]), our


@pytest.mark.real
def test_one_smollm2_tensor_equals_the_literal_dequantiser(smollm2: Path) -> None:
    """blk.3.attn_k is Q4_1 and permuted: 192 rows of 576, head_dim 64."""
    checkpoint = open_checkpoint(smollm2)
    info = checkpoint.stored["blocks.3.attn.k_proj.weight"].tensor
    with smollm2.open("rb") as file:
        file.seek(info.start)
        values = dequantise(file.read(info.nbytes), "Q4_1").reshape(192, 576)
    expected = values.reshape(3, 32, 2, 576).swapaxes(1, 2).reshape(192, 576)
    got = as_numpy(read_weights(checkpoint, "fp32")["blocks.3.attn.k_proj.weight"])
    np.testing.assert_array_equal(got, expected)
