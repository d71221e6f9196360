"""Exactly one BOS reaches the model on each path that a prompt can take."""

from __future__ import annotations

from pathlib import Path

import pytest

from oracles import gguf_writer
from tinygpt.cli.sample.prompt import PromptSource, encode_prompt, read_prompt
from tinygpt.io.load import open_checkpoint

MODEL = gguf_writer.Llama(dim=64, heads=2, kv_heads=1, head_dim=32, context=512)
BOS = "<|im_start|>"
TEMPLATES = {
    "written": "{{ bos_token }}{{ messages[0].content }}",
    "missing": "{{ messages[0].content }}",
}


def ids_of(path: Path, template: str, add_bos: bool, source: PromptSource) -> list[int]:
    metadata = gguf_writer.llama_metadata(MODEL)
    metadata["tokenizer.ggml.add_bos_token"] = ("bool", add_bos)
    metadata["tokenizer.chat_template"] = ("str", TEMPLATES[template])
    tensors = gguf_writer.llama_tensors(MODEL, gguf_writer.llama_weights(MODEL))
    path.write_bytes(gguf_writer.encode(metadata, tensors))
    checkpoint = open_checkpoint(path)
    tokenizer = checkpoint.read_tokenizer(None)
    return encode_prompt(read_prompt(source), source, tokenizer, checkpoint.config.vocab_size)


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize(
    "source",
    [
        PromptSource(prompt="ab"),
        PromptSource(prompt=f"{BOS}ab"),
        PromptSource(prompt="ab", chat=True),
        PromptSource(prompt=""),
    ],
    ids=str,
)
def test_a_model_that_wants_a_bos_gets_one(
    tmp_path: Path, template: str, source: PromptSource
) -> None:
    ids = ids_of(tmp_path / "model.gguf", template, True, source)
    assert ids.count(0) == 1 and ids[0] == 0
    assert len(ids) == (3 if source.prompt else 1)


def test_a_model_that_wants_none_gets_only_what_the_text_or_the_template_writes(
    tmp_path: Path,
) -> None:
    path = tmp_path / "model.gguf"
    plain, chat = PromptSource(prompt="ab"), PromptSource(prompt="ab", chat=True)
    assert 0 not in ids_of(path, "missing", False, plain)
    assert 0 not in ids_of(path, "missing", False, chat)
    assert ids_of(path, "written", False, chat).count(0) == 1


@pytest.mark.parametrize("chosen", ["5 6", "0 5", "0 0 5"])
def test_prompt_ids_are_taken_as_they_are(tmp_path: Path, chosen: str) -> None:
    file = tmp_path / "ids"
    file.write_text(chosen)
    source = PromptSource(prompt_ids=str(file))
    ids = ids_of(tmp_path / "model.gguf", "missing", True, source)
    assert ids == [int(word) for word in chosen.split()]
