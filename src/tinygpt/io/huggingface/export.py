"""Writes a Hugging Face directory: safetensors, config, tokenizer; a tensor in memory at a time."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors

from tinygpt.errors import ConfigError, UnsupportedError
from tinygpt.io.arrays import array_bytes, check_finite
from tinygpt.io.atomic import new_directory, replacing_file
from tinygpt.io.checkpoint import FLOAT_DTYPES, PACKED, Checkpoint
from tinygpt.io.huggingface.export_family import config_for_hf, name_for_hf
from tinygpt.tokenizer import ByteTokenizer, HFTokenizer, Tokenizer, byte_alphabet

_SAFETENSORS_TYPES = {"fp32": ("F32", 4), "fp16": ("F16", 2), "bf16": ("BF16", 2)}
_TORCH_TYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
_BYTE_BOS = "<s>"

Report = Callable[[int], None]


def export_dtype(source: Checkpoint, dtype: str | None) -> str:
    """The dtype to write: the source's own for None, fp16 where that is packed.

    Raises:
        ConfigError: "packed", or a dtype that does not exist.
    """
    chosen = dtype or (source.stored_dtype if source.stored_dtype != PACKED else "fp16")
    if chosen not in FLOAT_DTYPES:
        raise ConfigError(f"--to hf writes {', '.join(FLOAT_DTYPES)}, not {chosen!r}")
    return chosen


def export_hf(
    source: Checkpoint,
    directory: Path,
    tokenizer: Tokenizer,
    *,
    dtype: str | None = None,
    report: Report | None = None,
) -> None:
    """Write `source` with its `tokenizer` to the new `directory`, whole or not at all.

    Raises:
        CheckpointError: a tensor that is not finite, by its name.
        ConfigError: a dtype that cannot be written.
        UnsupportedError: a model that no family there expresses exactly, with the reason.
        OSError: the directory cannot be written.
    """
    chosen = export_dtype(source, dtype)
    described = {
        **config_for_hf(source.config),
        "torch_dtype": _TORCH_TYPES[chosen],
        "bos_token_id": tokenizer.bos_id,
        "eos_token_id": sorted(tokenizer.eos_ids) or None,
    }
    inner = _inner(tokenizer)
    with new_directory(directory) as place:
        with replacing_file(place / "model.safetensors") as file:
            _write_weights(file, source, chosen, report)
        _write_json(place / "config.json", described)
        _write_json(place / "generation_config.json", _generation(tokenizer))
        _write_json(place / "tokenizer_config.json", _tokenizer_config(tokenizer, inner))
        (place / "tokenizer.json").write_text(inner.to_str(), encoding="utf-8")


def _write_weights(file: BinaryIO, source: Checkpoint, dtype: str, report: Report | None) -> None:
    """A safetensors file: the header's length, the header, then the tensors in its order."""
    kind, width = _SAFETENSORS_TYPES[dtype]
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for tensor in source.tensors:
        start, end = end, end + width * math.prod(tensor.shape)
        place = {"dtype": kind, "shape": tensor.shape, "data_offsets": [start, end]}
        header[name_for_hf(tensor.name)] = place
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write(struct.pack("<Q", len(text)) + text)
    weights = source.iter_weights(dtype)
    for done, (tensor, part) in enumerate(zip(source.tensors, weights, strict=True), 1):
        check_finite(source.path, part)
        file.write(array_bytes(part[tensor.name]))
        if report is not None:
            report(done)


def _write_json(path: Path, values: dict[str, object]) -> None:
    given = {key: value for key, value in values.items() if value is not None}
    path.write_text(json.dumps(given, indent=2) + "\n", encoding="utf-8")


def _generation(tokenizer: Tokenizer) -> dict[str, object]:
    return {"bos_token_id": tokenizer.bos_id, "eos_token_id": sorted(tokenizer.eos_ids) or None}


def _tokenizer_config(tokenizer: Tokenizer, inner: tokenizers.Tokenizer) -> dict[str, object]:
    bos, eos = tokenizer.bos_id, tokenizer.eos_token
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": None if bos is None else inner.id_to_token(bos),
        "eos_token": eos,
        "add_bos_token": tokenizer.add_bos,
        "chat_template": tokenizer.chat_template,
        "clean_up_tokenization_spaces": False,
    }


def _inner(tokenizer: Tokenizer) -> tokenizers.Tokenizer:
    """A `tokenizers.Tokenizer` that encodes as ours, its BOS included."""
    if isinstance(tokenizer, HFTokenizer):
        inner = tokenizers.Tokenizer.from_str(tokenizer.to_json())
    elif isinstance(tokenizer, ByteTokenizer):
        inner = _byte_level(tokenizer)
    else:
        raise UnsupportedError(f"--to hf: a {type(tokenizer).__name__} has no tokenizer.json")
    bos = tokenizer.bos_id
    if tokenizer.add_bos and bos is not None and inner.encode("a").ids[:1] != [bos]:
        text = inner.id_to_token(bos)
        inner.post_processor = processors.TemplateProcessing(
            single=[text, "$A"], special_tokens=[(text, bos)]
        )
    return inner


def _byte_level(tokenizer: ByteTokenizer) -> tokenizers.Tokenizer:
    """One piece for each byte; the piece of a byte that serves as BOS is "<s>"."""
    vocabulary = {
        piece: byte for piece, byte in byte_alphabet().items() if byte != tokenizer.bos_id
    }
    if tokenizer.bos_id is not None:
        vocabulary[_BYTE_BOS] = tokenizer.bos_id
    inner = tokenizers.Tokenizer(models.BPE(vocabulary, []))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    if tokenizer.bos_id is not None:
        inner.add_special_tokens([AddedToken(_BYTE_BOS, special=True, normalized=False)])
    return inner
