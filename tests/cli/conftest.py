"""Tiny models, and two ways to run `tinygpt`: inside this process, and as a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from oracles import gguf_writer, tinygpt_writer
from tinygpt.cli.main import run
from tinygpt.cli.signals import Signals
from tinygpt.io.load import open_checkpoint
from tinygpt.tokenizer import Tokenizer

LEARNED = {"vocabSize": 256, "ctx": 256, "layers": 2, "heads": 2, "dModel": 64, "dMlp": 96}
ROPE = gguf_writer.Llama(dim=64, heads=2, kv_heads=1, head_dim=32, context=512)

COMMAND = [sys.executable, "-m", "tinygpt"]
ENVIRONMENT = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}  # a busy machine only makes it slower
TIMEOUT = 120  # seconds; the slowest process here takes two on a quiet machine


@dataclass(frozen=True, slots=True)
class Done:
    """A finished command line."""

    status: int
    text: bytes
    notes: str


Cli = Callable[..., Done]


@pytest.fixture(scope="session")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A .tinygpt file with random weights: bytes as tokens, 256 learned positions."""
    path = tmp_path_factory.mktemp("models") / "learned.tinygpt"
    weights = tinygpt_writer.random_model(LEARNED)
    return tinygpt_writer.write(path, LEARNED, weights, "training")


@pytest.fixture(scope="session")
def rope(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A llama GGUF file with random weights: grouped-query attention, RoPE, a real tokenizer."""
    path = tmp_path_factory.mktemp("models") / "rope.gguf"
    tensors = gguf_writer.llama_tensors(ROPE, gguf_writer.llama_weights(ROPE))
    path.write_bytes(gguf_writer.encode(gguf_writer.llama_metadata(ROPE), tensors))
    return path


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2-135M-Instruct, Q4_1; skips where it has not been fetched."""
    name = "SmolLM2-135M-Instruct.Q4_1.gguf"
    default = Path(__file__).parents[2] / ".cache" / "models" / name
    path = Path(os.environ.get("TINYGPT_SMOLLM2", default))
    if not path.is_file():
        pytest.skip("SmolLM2 is not here; scripts/test.sh fetches it")
    return path


@pytest.fixture(scope="session")
def rope_tokenizer(rope: Path) -> Tokenizer:
    return open_checkpoint(rope).read_tokenizer(None)


@pytest.fixture
def cli(capfdbinary: pytest.CaptureFixture[bytes]) -> Cli:
    """Run a command line inside this process; stdin is not there."""

    def call(*arguments: object) -> Done:
        capfdbinary.readouterr()
        status = run([str(argument) for argument in arguments], Signals())
        out, err = capfdbinary.readouterr()
        return Done(status, out, err.decode())

    return call


@pytest.fixture
def refused(cli: Cli) -> Callable[..., str]:
    """Run what must be refused: status 2, one line on stderr, which is returned, and no text."""

    def call(*arguments: object) -> str:
        done = cli(*arguments)
        assert done.status == 2, done.notes
        assert done.text == b"", "something was printed before the refusal"
        assert done.notes.startswith("tinygpt: error: ") and done.notes.count("\n") == 1, done.notes
        return done.notes

    return call


@pytest.fixture(scope="session")
def process() -> Callable[..., subprocess.Popen[bytes]]:
    """Start the command in a process of its own, with nothing on stdin unless told otherwise."""

    def start(*arguments: object, **more: object) -> subprocess.Popen[bytes]:
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        command = [*COMMAND, *map(str, arguments)]
        environment = ENVIRONMENT | dict(more.pop("environment", {}))  # type: ignore[call-overload]
        return subprocess.Popen(command, env=environment, **{**pipes, **more})  # type: ignore[call-overload]

    return start


@pytest.fixture(scope="session")
def tinygpt(process: Callable[..., subprocess.Popen[bytes]]) -> Cli:
    """Run the command in a process of its own to its end; `input` goes through a pipe."""

    def call(*arguments: object, input: bytes | None = None, **more: object) -> Done:
        if input is not None:
            more["stdin"] = subprocess.PIPE
        with process(*arguments, **more) as running:
            out, err = running.communicate(input, timeout=TIMEOUT)
        return Done(running.returncode, out or b"", (err or b"").decode())

    return call
