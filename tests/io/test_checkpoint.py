"""Every format gives its weights one tensor at a time; who wants all of them collects them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import mlx.core as mx
import pytest

from oracles import gguf_writer, hf_writer
from oracles import tinygpt_writer as writer
from tinygpt.io.checkpoint import Checkpoint, read_weights
from tinygpt.io.load import open_checkpoint

# Many small tensors: the largest is a fraction of the whole that no rounding to pages hides.
CLASSIC = {"vocabSize": 256, "ctx": 24, "layers": 12, "heads": 4, "dModel": 128, "dMlp": 256}
LLAMA = gguf_writer.Llama(vocab=320, layers=12, dim=128, hidden=256, heads=4, kv_heads=2)
HF = hf_writer.CONFIGS["llama"] | {
    "num_hidden_layers": 12,
    "hidden_size": 128,
    "intermediate_size": 256,
}


def gguf(path: Path, kind: str) -> Checkpoint:
    tensors = gguf_writer.llama_tensors(LLAMA, gguf_writer.llama_weights(LLAMA), kind)
    path.write_bytes(gguf_writer.encode(gguf_writer.llama_metadata(LLAMA), tensors))
    return open_checkpoint(path)


def tinygpt(path: Path, layout: str) -> Checkpoint:
    return open_checkpoint(writer.write(path, CLASSIC, writer.random_model(CLASSIC), layout))


def huggingface(path: Path, dtype: str) -> Checkpoint:
    path.mkdir()
    tensors = hf_writer.random_tensors(HF)
    return open_checkpoint(hf_writer.write(path, HF, tensors, dtype=dtype, shards=3))


FORMATS = [
    pytest.param(gguf, "Q4_1", "packed", id="packed gguf"),
    pytest.param(gguf, "Q4_1", "fp32", id="unpacked gguf"),
    pytest.param(gguf, "F16", "fp16", id="fp16 gguf"),
    *(pytest.param(tinygpt, layout, "fp32", id=f"{layout} tinygpt") for layout in writer.LAYOUTS),
    pytest.param(huggingface, "BF16", "bf16", id="bf16 huggingface"),
]


@pytest.mark.parametrize(("build", "stored", "dtype"), FORMATS)
def test_the_tensors_come_one_at_a_time_in_their_order(
    tmp_path: Path, build: Callable, stored: str, dtype: str
) -> None:
    checkpoint = build(tmp_path / "m", stored)
    parts = [list(part) for part in checkpoint.iter_weights(dtype)]
    assert [names[0] for names in parts] == [info.name for info in checkpoint.tensors]
    for name, *beside in parts:
        base = name.removesuffix(".weight")
        assert beside in ([], [f"{base}.scales", f"{base}.biases"]), name
    assert list(read_weights(checkpoint, dtype)) == [name for names in parts for name in names]


@pytest.mark.parametrize(("build", "stored", "dtype"), FORMATS)
def test_a_tensor_that_nobody_keeps_takes_no_memory(
    tmp_path: Path, build: Callable, stored: str, dtype: str
) -> None:
    checkpoint = build(tmp_path / "m", stored)
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    total = 0
    for part in checkpoint.iter_weights(dtype):
        total += sum(array.nbytes for array in part.values())
    peak = mx.get_peak_memory() - before
    assert peak < total / 3, f"{peak} of {total} bytes: are all tensors held at once?"


def test_a_checkpoint_needs_only_to_stream_to_be_read_whole() -> None:
    class Streamed:
        def iter_weights(self, dtype: str) -> Iterator[dict[str, mx.array]]:
            yield {"a.weight": mx.zeros(2), "a.scales": mx.ones(2), "a.biases": mx.zeros(1)}
            yield {"b.weight": mx.zeros(3)}

    weights = read_weights(Streamed(), "packed")  # type: ignore[arg-type]
    assert list(weights) == ["a.weight", "a.scales", "a.biases", "b.weight"]
    assert weights["b.weight"].shape == (3,)
