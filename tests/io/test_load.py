"""The first bytes of a file decide what it is; what is no model is refused with its reason."""

from __future__ import annotations

import io
import os
import struct
import zipfile
from pathlib import Path

import mlx.core as mx
import pytest

from oracles import gguf_writer, tinygpt_writer
from oracles.gguf_writer import Llama
from tinygpt.errors import CheckpointError, ConfigError, UnsupportedError
from tinygpt.io.load import fastest_dtype, layout_of, load_model, open_checkpoint

CONFIG = {"vocabSize": 256, "ctx": 16, "layers": 1, "heads": 2, "dModel": 16, "dMlp": 24}
MODEL = Llama()


def gguf(path: Path, kinds: object = "Q4_1") -> Path:
    tensors = gguf_writer.llama_tensors(MODEL, gguf_writer.llama_weights(MODEL), kinds)
    path.write_bytes(gguf_writer.encode(gguf_writer.llama_metadata(MODEL), tensors))
    return path


def test_the_content_decides_and_not_the_suffix(tmp_path: Path) -> None:
    tinygpt = tmp_path / "a.gguf"
    tinygpt_writer.write(tinygpt, CONFIG, tinygpt_writer.random_model(CONFIG), "fp16")
    assert open_checkpoint(tinygpt).kind == "tinygpt"
    assert open_checkpoint(gguf(tmp_path / "b.tinygpt")).kind == "gguf"


def zipped() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("data.pkl", "x")
    return buffer.getvalue()


NO_MODELS = {
    "empty": (b"", CheckpointError, "empty"),
    "text": (b"hello world", CheckpointError, "b'hell'"),
    "one byte": (b"\x80", CheckpointError, "x80"),
    "pickle": (b"\x80\x02}q\x00.", UnsupportedError, "pickle"),
    "zip": (zipped(), UnsupportedError, "ZIP"),
    "safetensors": (struct.pack("<Q", 20) + b'{"a":{}}' + b" " * 40, UnsupportedError, "safetens"),
    "adapter": (b"TGLA" + b"\0" * 40, UnsupportedError, "LoRA"),
    "LFS pointer": (b"version https://git-lfs.github.com/spec/v1\n", CheckpointError, "git lfs"),
}


@pytest.mark.parametrize("case", NO_MODELS)
def test_what_is_no_model_is_refused_by_its_content(
    tmp_path: Path, refused: object, case: str
) -> None:
    data, kind, named = NO_MODELS[case]
    path = tmp_path / "m.tinygpt"
    path.write_bytes(data)
    message = refused(kind, lambda: open_checkpoint(path))
    assert named in message
    assert str(path) in message


def test_a_missing_file_is_refused(tmp_path: Path, refused: object) -> None:
    message = refused(CheckpointError, lambda: open_checkpoint(tmp_path / "gone.gguf"))
    assert "no such file" in message


def test_a_directory_without_a_model_is_refused(tmp_path: Path, refused: object) -> None:
    assert "config.json" in refused(CheckpointError, lambda: open_checkpoint(tmp_path))


def test_a_pipe_is_refused_and_does_not_block(tmp_path: Path, refused: object) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    assert "regular file" in refused(CheckpointError, lambda: open_checkpoint(path))


def test_a_file_below_a_file_is_refused(tmp_path: Path, refused: object) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x")
    message = refused(CheckpointError, lambda: open_checkpoint(path / "m.gguf"))
    assert "cannot be opened" in message


@pytest.mark.parametrize("name", ["a\0b", "x" * 5000])
def test_a_name_that_cannot_be_one_is_refused(name: str) -> None:
    with pytest.raises(CheckpointError, match="cannot be opened"):
        open_checkpoint(Path(name))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_refused(tmp_path: Path, refused: object) -> None:
    path = gguf(tmp_path / "m.gguf")
    path.chmod(0)
    assert "Permission" in refused(CheckpointError, lambda: open_checkpoint(path))


@pytest.mark.parametrize("stored", ["fp32", "fp16", "bf16", "packed"])
def test_weights_are_fp32_on_a_cpu_and_as_stored_on_a_gpu(stored: str) -> None:
    assert fastest_dtype(stored, on_gpu=False) == "fp32"
    assert fastest_dtype(stored, on_gpu=True) == stored


def test_a_loaded_model_computes_in_one_dtype(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(gguf(tmp_path / "m.gguf"))
    assert load_model(checkpoint, "fp32").dtype == mx.float32
    assert load_model(checkpoint, "bf16").dtype == mx.bfloat16
    assert load_model(checkpoint, "fp16").dtype == mx.float16


def test_a_packed_model_agrees_with_its_dequantised_self(tmp_path: Path) -> None:
    """Both compute in float32; sums of products run in another order, 1e-5 of logits near 1."""
    kinds = {"token_embedding.weight": "Q8_0", "blocks.0.mlp.down_proj.weight": "Q4_0"}
    checkpoint = open_checkpoint(gguf(tmp_path / "m.gguf", kinds))
    ids = mx.array([[1, 5, 300, 7]])
    floats, packed = (load_model(checkpoint, dtype)(ids) for dtype in ("fp32", "packed"))
    assert mx.allclose(floats, packed, rtol=0, atol=1e-4).item()


def test_a_dtype_that_the_file_cannot_give_is_refused(tmp_path: Path) -> None:
    path = tinygpt_writer.write(
        tmp_path / "m.tinygpt", CONFIG, tinygpt_writer.random_model(CONFIG), "fp16"
    )
    with pytest.raises(ConfigError, match="packed"):
        load_model(open_checkpoint(path), "packed")


@pytest.mark.parametrize("weights_dtype", [None, "fp16", "bf16", "packed"])
def test_the_layout_foretold_is_the_one_that_the_model_has(
    tmp_path: Path, weights_dtype: str | None
) -> None:
    checkpoint = open_checkpoint(gguf(tmp_path / "m.gguf"))
    assert (
        layout_of(checkpoint, weights_dtype) == load_model(checkpoint, weights_dtype).cache_layout()
    )
