"""Every quantised tensor type gives GGML's values to the bit, and no more memory than they take."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

import tinygpt.io.gguf.blocks as gguf_blocks
from oracles import gguf_writer as writer
from oracles.gguf_literal import FORMATS, dequantise, random_blocks
from oracles.gguf_writer import Llama
from tinygpt.errors import ConfigError, UnsupportedError
from tinygpt.io.checkpoint import read_weights
from tinygpt.io.gguf.dequant import dequantise as ours
from tinygpt.io.gguf.types import TENSOR_TYPES
from tinygpt.io.load import load_model, open_checkpoint

BLOCKS = 6
UNREAD = {9: "Q8_1", 16: "IQ2_XXS", 20: "IQ4_NL", 23: "IQ4_XS", 34: "TQ1_0", 39: "MXFP4"}
MODEL = Llama(dim=256, hidden=512, heads=4, kv_heads=2, head_dim=64, vocab=259, layers=1)
DOWN, K_PROJ = "blocks.0.mlp.down_proj.weight", "blocks.0.attn.k_proj.weight"
# What a dequantised tensor may take beside its values: a few chunks of 2^20 float32 numbers.
CHUNKS_BYTES = 12 * 4 * 2**20


def write(path: Path, kind: str) -> Path:
    tensors = writer.llama_tensors(MODEL, writer.llama_weights(MODEL), kind)
    path.write_bytes(writer.encode(writer.llama_metadata(MODEL), tensors))
    return path


def blocks(raw: bytes, kind: str) -> np.ndarray:
    return np.frombuffer(raw, np.uint8).reshape(-1, FORMATS[kind][2])


def test_the_table_of_types_is_the_formats_one() -> None:
    table = {t.name: (n, t.block, t.block_bytes) for n, t in TENSOR_TYPES.items() if t.quantised}
    assert table == {kind: form[:3] for kind, form in FORMATS.items()}


@pytest.mark.parametrize("kind", FORMATS)
def test_values_are_those_of_the_literal_loops(kind: str) -> None:
    raw = random_blocks(kind, BLOCKS, np.random.default_rng(1))
    got = ours(blocks(raw, kind), kind)
    assert got.dtype == np.float32
    assert got.shape == (BLOCKS, FORMATS[kind][1])
    np.testing.assert_array_equal(got.reshape(-1), dequantise(raw, kind))


@pytest.mark.parametrize("kind", FORMATS)
def test_values_are_those_of_the_gguf_package(kind: str) -> None:
    gguf = pytest.importorskip("gguf", reason="the gguf package is not installed")
    raw = blocks(random_blocks(kind, 500, np.random.default_rng(2)), kind)
    theirs = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[kind])
    np.testing.assert_array_equal(ours(raw, kind), theirs)


@pytest.mark.parametrize("kind", FORMATS)
def test_a_tensor_in_a_file_is_dequantised_row_by_row(tmp_path: Path, kind: str) -> None:
    checkpoint = open_checkpoint(write(tmp_path / "m.gguf", kind))
    got = read_weights(checkpoint, "fp32")
    shape = (MODEL.dim, MODEL.hidden)
    expected = dequantise(writer.quantise(writer.llama_weights(MODEL)[DOWN], kind), kind)
    np.testing.assert_array_equal(np.array(got[DOWN]), expected.reshape(shape))
    permuted = writer.permute(writer.llama_weights(MODEL)[K_PROJ], MODEL.kv_heads)
    expected = dequantise(writer.quantise(permuted, kind), kind).reshape(2, 32, 2, 256)
    np.testing.assert_array_equal(
        np.array(got[K_PROJ]), expected.swapaxes(1, 2).reshape(128, 256), err_msg="row order"
    )


@pytest.mark.parametrize(("dtype", "held"), [("fp16", mx.float16), ("bf16", mx.bfloat16)])
def test_half_precision_is_the_rounded_float32_value(
    tmp_path: Path, dtype: str, held: mx.Dtype
) -> None:
    checkpoint = open_checkpoint(write(tmp_path / "m.gguf", "Q6_K"))
    half, full = read_weights(checkpoint, dtype), read_weights(checkpoint, "fp32")
    assert {array.dtype for array in half.values()} == {held}
    assert mx.array_equal(half[DOWN], full[DOWN].astype(held))


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_chunks_meet_without_a_seam(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    checkpoint = open_checkpoint(write(tmp_path / "m.gguf", "Q5_K"))
    whole = read_weights(checkpoint, dtype)
    monkeypatch.setattr(gguf_blocks, "_CHUNK", 3 * 256)
    pieces = read_weights(checkpoint, dtype)
    assert all(mx.array_equal(whole[name], pieces[name]) for name in whole)


def test_a_large_tensor_is_not_held_twice() -> None:
    kind, shape = TENSOR_TYPES[14], (4096, 4096)
    rows = np.zeros((shape[0], shape[1] // 256 * kind.block_bytes), np.uint8)
    tracemalloc.start()
    try:
        gguf_blocks.float_tensor(rows, kind, shape, mx.float16)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < CHUNKS_BYTES, f"{peak} bytes beside {shape[0] * shape[1] * 2} of values"


@pytest.mark.parametrize("kind", ["Q5_0", "Q2_K", "Q4_K", "Q6_K"])
def test_packed_is_refused_where_mlx_cannot_hold_it(tmp_path: Path, kind: str) -> None:
    checkpoint = open_checkpoint(write(tmp_path / "m.gguf", kind))
    assert checkpoint.stored_dtype == "fp16"
    with pytest.raises(ConfigError, match=rf"{kind}.*use fp32, fp16 or bf16"):
        read_weights(checkpoint, "packed")


@pytest.mark.parametrize("kind", ["Q5_1", "Q3_K"])
def test_a_model_of_such_tensors_runs(tmp_path: Path, kind: str) -> None:
    model = load_model(open_checkpoint(write(tmp_path / "m.gguf", kind)))
    logits = model(mx.array([[1, 2, 3]]))
    assert logits.shape == (1, 3, MODEL.vocab)
    assert mx.isfinite(logits).all()


@pytest.mark.parametrize("number", UNREAD)
def test_another_type_is_refused_by_its_name(tmp_path: Path, number: int) -> None:
    tensors = writer.llama_tensors(MODEL, writer.llama_weights(MODEL))
    tensors[0].type = number
    path = tmp_path / "m.gguf"
    path.write_bytes(writer.encode(writer.llama_metadata(MODEL), tensors))
    with pytest.raises(UnsupportedError, match=UNREAD[number]):
        open_checkpoint(path)
