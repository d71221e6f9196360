"""A converted model is the source's, and a file appears whole or not at all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from oracles import gguf_writer
from oracles import tinygpt_writer as writer
from tinygpt.cache import KVCache
from tinygpt.cache.spec import CacheSpec
from tinygpt.errors import CheckpointError, ConfigError
from tinygpt.generate import Generation
from tinygpt.io.checkpoint import Checkpoint, read_weights
from tinygpt.io.convert import convert_to_tinygpt
from tinygpt.io.huggingface.export import export_hf
from tinygpt.io.load import load_model, open_checkpoint
from tinygpt.sampling import Sampler
from tinygpt.sampling_options import SamplingOptions

MODEL = gguf_writer.Llama(vocab=320, layers=2, dim=64, hidden=96, heads=4, kv_heads=2)
CLASSIC = {"vocabSize": 256, "ctx": 24, "layers": 2, "heads": 4, "dModel": 32, "dMlp": 48}
STORED = {"F32": "fp32", "F16": "fp16", "BF16": "bf16", "Q4_1": "packed", "Q8_0": "packed"}
# What the interpreter with MLX and the tokenizer takes before a conversion; measured 130 MB.
PROGRAM_BYTES = 200 * 2**20


def gguf(path: Path, kind: str = "Q4_1") -> Checkpoint:
    tensors = gguf_writer.llama_tensors(MODEL, gguf_writer.llama_weights(MODEL), kind)
    path.write_bytes(gguf_writer.encode(gguf_writer.llama_metadata(MODEL), tensors))
    return open_checkpoint(path)


def convert(source: Checkpoint, path: Path, dtype: str | None = None) -> Checkpoint:
    convert_to_tinygpt(source, path, source.read_tokenizer(None), dtype=dtype)
    return open_checkpoint(path)


def greedy(checkpoint: Checkpoint, text: str, tokens: int, dtype: str = "fp32") -> list[int]:
    model, tokenizer = load_model(checkpoint, dtype), checkpoint.read_tokenizer(None)
    ids = tokenizer.encode(text)
    sampler = Sampler(SamplingOptions(temperature=0), ids)
    cache = KVCache(CacheSpec(), model.cache_layout())
    return list(Generation(model, cache, ids, sampler, tokens=tokens, stop_ids=frozenset()))


@pytest.mark.parametrize("dtype", [None, "fp32", "fp16", "bf16", "packed"])
def test_a_converted_model_has_the_sources_weights(tmp_path: Path, dtype: str | None) -> None:
    source = gguf(tmp_path / "m.gguf")
    converted = convert(source, tmp_path / "m.tinygpt", dtype)
    written = dtype or "packed"
    assert (converted.config, converted.stored_dtype) == (source.config, written)
    expected, got = read_weights(source, written), read_weights(converted, written)
    assert set(got) == set(expected)
    for name, array in expected.items():
        assert got[name].dtype == array.dtype
        assert mx.array_equal(got[name], array).item(), name


@pytest.mark.parametrize("kind", STORED)
def test_the_default_dtype_is_the_sources_own(tmp_path: Path, kind: str) -> None:
    converted = convert(gguf(tmp_path / "m.gguf", kind), tmp_path / "m.tinygpt")
    assert converted.stored_dtype == STORED[kind]


@pytest.mark.parametrize("dtype", ["fp32", "packed"])
def test_a_converted_model_gives_the_sources_greedy_tokens(tmp_path: Path, dtype: str) -> None:
    source = gguf(tmp_path / "m.gguf")
    converted = convert(source, tmp_path / "m.tinygpt", dtype)
    assert greedy(converted, "a text", 24) == greedy(source, "a text", 24)


def test_the_tokenizer_goes_into_the_file(tmp_path: Path) -> None:
    source = gguf(tmp_path / "m.gguf")
    converted = convert(source, tmp_path / "m.tinygpt")
    ours, theirs = converted.read_tokenizer(None), source.read_tokenizer(None)
    text = "größte 🙂 2024 <|im_start|> it's"
    assert ours.encode(text) == theirs.encode(text)
    for name in ("bos_id", "add_bos", "eos_ids", "chat_template", "eos_token"):
        assert getattr(ours, name) == getattr(theirs, name), name


@pytest.mark.parametrize("layout", writer.LAYOUTS)
def test_a_classic_file_converts_from_each_layout(tmp_path: Path, layout: str) -> None:
    weights = writer.random_model(CLASSIC)
    config = {**CLASSIC, "kviBits": 8, "streamingWindow": 16}
    header = {"bestVal": 1.25, "savedAt": "größte"}
    path = writer.write(tmp_path / "a.tinygpt", config, weights, layout, header=header)
    source = open_checkpoint(path)
    converted = convert(source, tmp_path / "b.tinygpt")
    assert converted.stored_dtype == ("fp32" if layout == "training" else "fp16")
    assert converted.cache_hints == {"kviBits": 8, "streamingWindow": 16}
    assert (converted.metadata["bestVal"], converted.metadata["savedAt"]) == (1.25, "größte")
    kept = read_weights(source, source.stored_dtype)
    for name, array in read_weights(converted, source.stored_dtype).items():
        assert mx.array_equal(array, kept[name]).item(), name
    again = convert(converted, tmp_path / "c.tinygpt")
    assert (tmp_path / "c.tinygpt").read_bytes() == (tmp_path / "b.tinygpt").read_bytes()
    assert again.config == source.config


def test_a_tokenizer_beside_the_source_goes_into_the_file(
    tmp_path: Path, word_tokenizer: Path
) -> None:
    """The file then needs no directory; its name stays for readers that know no other place."""
    config = {**CLASSIC, "vocabSize": 300, "tokenizerSource": word_tokenizer.name}
    path = writer.write(tmp_path / "a.tinygpt", config, writer.random_model(config), "fp16")
    (tmp_path / "elsewhere").mkdir()
    converted = convert(open_checkpoint(path), tmp_path / "elsewhere" / "b.tinygpt")
    assert converted.read_tokenizer(None).encode("ab") == [2]
    assert converted.metadata["tokenizerSource"] == word_tokenizer.name


def test_packed_weights_cannot_be_made(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="packed"):
        convert(gguf(tmp_path / "m.gguf", "F16"), tmp_path / "m.tinygpt", "packed")
    with pytest.raises(ConfigError, match="fp64"):
        convert(gguf(tmp_path / "m.gguf", "F16"), tmp_path / "m.tinygpt", "fp64")


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_weights_that_are_not_finite_are_refused_by_name(
    tmp_path: Path, refused: Callable, bad: float
) -> None:
    weights = writer.random_model(CLASSIC)
    weights["blocks.1.mlp.fc_in.weight"][3, 4] = bad
    source = open_checkpoint(writer.write(tmp_path / "a.tinygpt", CLASSIC, weights, "training"))
    message = refused(CheckpointError, lambda: convert(source, tmp_path / "b.tinygpt"))
    assert "blocks.1.mlp.fc_in.weight" in message and "not finite" in message
    assert [p.name for p in tmp_path.iterdir()] == ["a.tinygpt"]


def test_a_value_too_large_for_half_precision_is_refused_with_advice(
    tmp_path: Path, refused: Callable
) -> None:
    weights = writer.random_model(CLASSIC)
    weights["ln_final.weight"][0] = 1e6
    source = open_checkpoint(writer.write(tmp_path / "a.tinygpt", CLASSIC, weights, "training"))
    message = refused(CheckpointError, lambda: convert(source, tmp_path / "b.tinygpt", "fp16"))
    assert "ln_final.weight" in message and "bf16" in message
    assert convert(source, tmp_path / "b.tinygpt", "bf16").stored_dtype == "bf16"


def test_reports_count_the_tensors(tmp_path: Path) -> None:
    source, seen = gguf(tmp_path / "m.gguf"), []
    convert_to_tinygpt(
        source, tmp_path / "m.tinygpt", source.read_tokenizer(None), report=seen.append
    )
    assert seen == list(range(1, len(source.tensors) + 1))


STOPPING = """
import sys, time
from tinygpt.cli.main import main
from tinygpt.io.gguf.file import GgufCheckpoint
whole = GgufCheckpoint.iter_weights
def slow(*arguments):
    for number, part in enumerate(whole(*arguments)):
        yield part
        if number == 3:
            print("ready", flush=True)
            time.sleep(60)
GgufCheckpoint.iter_weights = slow
main(["convert", *sys.argv[1:]])
"""


@pytest.fixture
def stopping(tmp_path: Path) -> Iterator[Callable[[], subprocess.Popen[str]]]:
    """Starts a conversion that waits after its fourth tensor."""
    gguf(tmp_path / "m.gguf")
    (tmp_path / "m.tinygpt").write_text("old")
    command = [sys.executable, "-c", STOPPING, "m.gguf", "m.tinygpt", "--force"]
    running = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    yield lambda: running
    running.kill()
    running.wait()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, stopping: Callable, number: signal.Signals
) -> None:
    running = stopping()
    assert running.stdout.readline() == "ready\n"
    running.send_signal(number)
    _, notes = running.communicate(timeout=60)
    assert running.returncode == 128 + number, notes
    assert (tmp_path / "m.tinygpt").read_text() == "old"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.gguf", "m.tinygpt"]


def test_a_killed_conversion_leaves_the_old_file(tmp_path: Path, stopping: Callable) -> None:
    running = stopping()
    assert running.stdout.readline() == "ready\n"
    running.kill()
    running.communicate(timeout=60)
    assert (tmp_path / "m.tinygpt").read_text() == "old"


FULL = """
import resource, sys
from tinygpt.cli.main import main
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
main(["convert", *sys.argv[1:]])
"""


def test_a_full_disk_leaves_the_old_file_and_says_so(tmp_path: Path) -> None:
    """A limit on the size of files stands for the disk."""
    gguf(tmp_path / "m.gguf")
    (tmp_path / "m.tinygpt").write_text("old")
    command = [sys.executable, "-c", FULL, "m.gguf", "m.tinygpt", "--force"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1, done.stderr
    assert done.stderr.count("\n") == 1 and "cannot write m.tinygpt" in done.stderr
    assert (tmp_path / "m.tinygpt").read_text() == "old"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.gguf", "m.tinygpt"]


@pytest.mark.real
def test_smollm2_gives_the_same_greedy_tokens_from_every_kind_of_file(
    tmp_path: Path, smollm2: Path
) -> None:
    """GGUF, packed and fp16 `.tinygpt`, a Hugging Face directory in fp32, `.tinygpt` of that one.

    fp16 rounds each weight once; these tokens do not depend on it.
    """
    source = open_checkpoint(smollm2)
    export_hf(source, tmp_path / "hf", source.read_tokenizer(None), dtype="fp32")
    directory = open_checkpoint(tmp_path / "hf")
    others = [
        directory,
        convert(directory, tmp_path / "fp32.tinygpt"),
        convert(source, tmp_path / "packed.tinygpt"),
        convert(source, tmp_path / "fp16.tinygpt", "fp16"),
    ]
    assert [other.stored_dtype for other in others] == ["fp32", "fp32", "packed", "fp16"]
    expected = greedy(source, "The capital of France is", 16)
    for other in others:
        found = greedy(other, "The capital of France is", 16)
        assert found == expected, f"{other.path.name}, {other.stored_dtype}"


MEASURED = """
import sys
from pathlib import Path
from tinygpt.io.convert import convert_to_tinygpt
from tinygpt.io.load import open_checkpoint
source = open_checkpoint(Path(sys.argv[1]))
convert_to_tinygpt(source, Path(sys.argv[2]), source.read_tokenizer(None), dtype="fp16")
lines = Path("/proc/self/status").read_text().splitlines()
print(next(line.split()[1] for line in lines if line.startswith("VmHWM")))
"""


@pytest.mark.real
@pytest.mark.skipif(
    not Path("/proc/self/status").is_file() or "VmHWM" not in Path("/proc/self/status").read_text(),
    reason="peak memory of a process is not told here",
)
def test_smollm2_is_converted_one_tensor_at_a_time(tmp_path: Path, smollm2: Path) -> None:
    """The whole model is 269 MB in fp16; its largest tensor 57 MB, 113 MB in float32."""
    target = tmp_path / "m.tinygpt"
    command = [sys.executable, "-c", MEASURED, str(smollm2), str(target)]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    peak = 1024 * int(done.stdout)
    assert target.stat().st_size > 260 * 10**6
    assert peak < PROGRAM_BYTES + 170 * 2**20, f"{peak} bytes: are all tensors held at once?"
