"""Hugging Face model directories: config.json, safetensors, a tokenizer and what stands beside."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import mlx.core as mx

from tinygpt.errors import CheckpointError, ConfigError
from tinygpt.io.checkpoint import PACKED, TensorInfo, float_dtype
from tinygpt.io.huggingface.model_config import FamilyConfig, find_family, model_config
from tinygpt.io.huggingface.names import text_tensors
from tinygpt.io.huggingface.quantization import read_quantization
from tinygpt.io.huggingface.safetensors_file import StoredTensor
from tinygpt.io.huggingface.shards import read_json, read_shards
from tinygpt.io.huggingface.sources import Source, find_sources, ties_embeddings
from tinygpt.io.json_fields import Fields
from tinygpt.io.tokenizer_dir import load_tokenizer_dir
from tinygpt.models.config import ModelConfig
from tinygpt.tokenizer import Tokenizer

CONFIG = "config.json"
_BESIDE = ("tokenizer.json", "tokenizer_config.json", "generation_config.json")
_SHOWN_KEYS = ("model_type", "architectures", "transformers_version", "torch_dtype", "dtype")


@dataclass(frozen=True, slots=True)
class HuggingFaceCheckpoint:
    """A checked directory; see `tinygpt.io.checkpoint.Checkpoint`."""

    path: Path
    config: ModelConfig
    tensors: tuple[TensorInfo, ...]
    metadata: dict[str, object]
    stored_dtype: str
    sources: tuple[Source, ...]
    end_ids: frozenset[int]  # those that config.json names
    cache_hints: dict[str, int] = field(default_factory=dict)
    kind: str = "huggingface"

    def iter_weights(self, dtype: str) -> Iterator[dict[str, mx.array]]:
        if dtype == PACKED and self.stored_dtype != PACKED:
            raise ConfigError(
                f"weights dtype 'packed' needs a quantised model, {self.path} has "
                f"{self.stored_dtype}; use fp32, fp16 or bf16"
            )
        wanted = None if dtype == PACKED else float_dtype(dtype)
        for source in self.sources:
            arrays = source.read(wanted)
            mx.eval(arrays)  # one tensor at a time, so that the peak stays near the final size
            yield arrays

    def read_tokenizer(self, override_dir: Path | None = None) -> Tokenizer:
        if override_dir is not None:
            return load_tokenizer_dir(override_dir, self.config.vocab_size)
        for name in _BESIDE:
            if (self.path / name).exists() and not (self.path / name).is_file():
                raise CheckpointError(f"{self.path / name}: is not a regular file")
        tokenizer = load_tokenizer_dir(self.path, self.config.vocab_size)
        tokenizer.eos_ids |= self.end_ids
        return tokenizer


def open_huggingface(directory: Path) -> HuggingFaceCheckpoint:
    """Check a model directory without reading its weights.

    Raises:
        CheckpointError: anything in it that is missing or not true, naming the file and the field
            or tensor.
        UnsupportedError: a kind of model or of weights that this version does not read.
    """
    try:
        return _open(directory)
    except OSError as error:
        raise CheckpointError(f"{directory}: cannot be read ({error.strerror})") from error


def _open(directory: Path) -> HuggingFaceCheckpoint:
    path = directory / CONFIG
    if not path.exists():
        raise _no_config(directory)
    top = Fields(f"{path}:", read_json(path))
    found = find_family(top)
    quantization = read_quantization(top, found.fields)
    stored = read_shards(directory)
    tensors = text_tensors(directory, stored, wrapped=found.wrapped)
    tied = ties_embeddings(directory, tensors, _says_tied(top, found))
    config = model_config(path, found, tie_embeddings=tied, most_layers=len(tensors))
    sources = find_sources(directory, tensors, config, found.family, quantization)
    return HuggingFaceCheckpoint(
        path=directory,
        config=config,
        tensors=tuple(source.info for source in sources),
        metadata=_metadata(top, stored, quantization.fields),
        stored_dtype=_stored_dtype(sources),
        sources=sources,
        end_ids=_end_ids(top) | _end_ids(found.fields),
    )


def _no_config(directory: Path) -> CheckpointError:
    files = sorted([*directory.glob("*.gguf"), *directory.glob("*.tinygpt")])
    hint = f"give the file {files[0]}" if files else "a Hugging Face model directory has one"
    return CheckpointError(f"{directory / CONFIG}: no such file; {hint}")


def _says_tied(top: Fields, found: FamilyConfig) -> bool | None:
    """None where config.json says nothing."""
    for fields in (found.fields, top):
        if fields.values.get("tie_word_embeddings") is not None:
            return fields.flag("tie_word_embeddings")
    return None


def _metadata(
    top: Fields, stored: dict[str, StoredTensor], quantization: Fields | None
) -> dict[str, object]:
    shown = {key: top.values[key] for key in _SHOWN_KEYS if top.values.get(key) is not None}
    if quantization is not None:
        shown |= {key: quantization.values[key] for key in ("group_size", "bits")}
    return {**shown, "files": sorted({tensor.file.name for tensor in stored.values()})}


def _stored_dtype(sources: tuple[Source, ...]) -> str:
    """What the matrices are: packed if any is, else the widest float type among them."""
    if any(source.packing is not None for source in sources):
        return PACKED
    types = {source.info.dtype for source in sources if len(source.shape) == 2}
    if "fp32" in types or len(types) > 1:
        return "fp32"
    return types.pop()


def _end_ids(fields: Fields) -> frozenset[int]:
    value = fields.values.get("eos_token_id")
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if not all(type(i) is int and i >= 0 for i in ids):
        fields.refuse("eos_token_id", value, "an id or a list of ids")
    return frozenset(ids)
