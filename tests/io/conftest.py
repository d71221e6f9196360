"""Small models on disk and the real one, for the tests of the readers."""

from __future__ import annotations

import os
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

sys.path.insert(0, str(Path(__file__).parents[1]))

from tinygpt.errors import TinyGPTError

# Refusing a small file may cost its parsing and a message, never the sizes that it claims.
REFUSAL_BYTES = 4 * 2**20


@pytest.fixture
def refused() -> Callable[..., str]:
    """Calls a function that must refuse cheaply, in one line; returns that line."""

    def run(kind: type[TinyGPTError], call: Callable[[], object]) -> str:
        tracemalloc.start()
        try:
            with pytest.raises(kind) as caught:
                call()
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        message = str(caught.value)
        assert "\n" not in message, f"more than one line: {message!r}"
        assert len(message) < 600, f"too long to be read: {message}"
        assert peak < REFUSAL_BYTES, f"refusing took {peak} bytes: allocated from the lying field?"
        return message

    return run


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2-135M-Instruct, Q4_1; skips where it has not been fetched."""
    name = "SmolLM2-135M-Instruct.Q4_1.gguf"
    default = Path(__file__).parents[2] / ".cache" / "models" / name
    path = Path(os.environ.get("TINYGPT_SMOLLM2", default))
    if not path.is_file():
        pytest.skip("SmolLM2 is not here; scripts/test.sh fetches it")
    return path


@pytest.fixture
def word_tokenizer(tmp_path: Path) -> Path:
    """A directory with a byte-level tokenizer.json: two control tokens "<s>" and "</s>", "ab" = 2,
    then the 256 bytes, 259 ids in all."""
    directory = tmp_path / "tokenizer"
    directory.mkdir()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = ["<s>", "</s>", "ab", *alphabet]
    model = models.BPE({piece: i for i, piece in enumerate(pieces)}, [("a", "b")])
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.save(str(directory / "tokenizer.json"))
    return directory
