"""`.tinygpt` files, versions 2 and 3, as checkpoints out of a memory map."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx

from tinygpt.errors import CheckpointError, ConfigError
from tinygpt.io.checkpoint import PACKED, TensorInfo, float_dtype, map_file
from tinygpt.io.tinygpt.body import Stored, dequantise, locate
from tinygpt.io.tinygpt.config import cache_hints
from tinygpt.io.tinygpt.header import Header, check_manifest, model_config, read_header
from tinygpt.io.tinygpt.tokenizer import tokenizer_from_json
from tinygpt.io.tokenizer_dir import load_tokenizer_dir
from tinygpt.models.config import ModelConfig
from tinygpt.tokenizer import ByteTokenizer, Tokenizer


@dataclass(frozen=True, slots=True)
class TinygptCheckpoint:
    """A checked `.tinygpt` file; see `tinygpt.io.checkpoint.Checkpoint`."""

    path: Path
    config: ModelConfig
    cache_hints: dict[str, int]
    tensors: tuple[TensorInfo, ...]
    metadata: dict[str, object]
    stored_dtype: str
    stored: tuple[Stored, ...]
    tokenizer: object = None  # the header's, unchecked
    kind: str = "tinygpt"

    def iter_weights(self, dtype: str) -> Iterator[dict[str, mx.array]]:
        if dtype == PACKED and self.stored_dtype != PACKED:
            raise ConfigError(
                f"weights dtype 'packed' needs a file with packed tensors, {self.path} has "
                f"{self.stored_dtype}; use fp32, fp16 or bf16"
            )
        wanted = None if dtype == PACKED else float_dtype(dtype)
        for stored in self.stored:
            arrays = _read(stored, wanted)
            mx.eval(arrays)  # one tensor at a time, so that the peak stays near the final size
            yield arrays

    def read_tokenizer(self, override_dir: Path | None = None) -> Tokenizer:
        vocab = self.config.vocab_size
        if override_dir is not None:
            return load_tokenizer_dir(override_dir, vocab)
        if self.tokenizer is not None:
            return tokenizer_from_json(f"{self.path}: header", self.tokenizer, vocab)
        source = self.metadata.get("tokenizerSource")
        if isinstance(source, str):
            return self._tokenizer_beside(source)
        return ByteTokenizer(vocab)

    def _tokenizer_beside(self, source: str) -> Tokenizer:
        try:
            return load_tokenizer_dir(self.path.parent / source, self.config.vocab_size)
        except CheckpointError as error:
            raise CheckpointError(
                f"{error}; {self.path} names it as config tokenizerSource, give another directory "
                "by --tokenizer DIR"
            ) from error


def open_tinygpt(path: Path) -> TinygptCheckpoint:
    """Map and check a `.tinygpt` file without reading its weights.

    Raises:
        CheckpointError: anything in it that is not true, naming the field or tensor.
        UnsupportedError: version 1, or a kind of model that this version does not read.
    """
    data = map_file(path)
    header = read_header(path, data)
    config = model_config(path, header)
    check_manifest(path, header, config)
    form, stored = locate(path, header, data[header.body :])
    infos = (TensorInfo(s.entry.name, s.entry.shape, s.dtype, s.nbytes) for s in stored)
    return TinygptCheckpoint(
        path=path,
        config=config,
        cache_hints=cache_hints(header.config_fields),
        tensors=tuple(infos),
        metadata=_metadata(header),
        stored_dtype=form,
        stored=stored,
        tokenizer=header.fields.values.get("tokenizer"),
    )


def _metadata(header: Header) -> dict[str, object]:
    large = ("manifest", "tokenizer")
    values = {key: value for key, value in header.fields.values.items() if key not in large}
    source = header.config_fields.text("tokenizerSource")
    return {**values, "tokenizerSource": source, "step": header.step}


def _read(stored: Stored, wanted: mx.Dtype | None) -> dict[str, mx.array]:
    """The tensor as `wanted`, or as stored, which may be three arrays."""
    name, parts = stored.entry.name, stored.read()
    if wanted is not None:
        return {name: dequantise(stored, parts, wanted)}
    base = name.removesuffix(".weight")
    names = (name, f"{base}.scales", f"{base}.biases")
    return dict(zip(names, parts, strict=False))
