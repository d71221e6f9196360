"""Each tensor of our model as rows of the stored ones, checked against the configuration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import mlx.core as mx
import numpy as np

from tinygpt.errors import CheckpointError, UnsupportedError
from tinygpt.io.checkpoint import TensorInfo, shown
from tinygpt.io.huggingface.families import Family
from tinygpt.io.huggingface.names import Place, place_of
from tinygpt.io.huggingface.quantization import Packing, Quantization, dequantised
from tinygpt.io.huggingface.safetensors_file import FLOATS, StoredTensor
from tinygpt.models.config import ModelConfig
from tinygpt.models.tensors import tensor_shapes

EMBEDDING, HEAD = "model.embed_tokens", "lm_head"
_PACKED_KINDS = ("weight", "scales", "biases")
_COMPARED_BYTES = 2**24

Tensors = Mapping[str, StoredTensor]


@dataclass(frozen=True, slots=True)
class Source:
    """The tensor `name` of our model: `rows` rows from `start` on of each of `parts`.

    `parts` is one stored tensor, or with a `packing` its weight, scales and biases.
    """

    name: str
    shape: tuple[int, ...]
    parts: tuple[StoredTensor, ...]
    start: int
    packing: Packing | None

    def read(self, wanted: mx.Dtype | None) -> dict[str, mx.array]:
        """The tensor in the type `wanted`, or as it is stored for None; not yet evaluated."""
        arrays = [part.rows(self.start, self.shape[0]) for part in self.parts]
        if self.packing is None:
            return {self.name: arrays[0] if wanted is None else arrays[0].astype(wanted)}
        if wanted is not None:
            return {self.name: dequantised(arrays, self.packing, wanted)}
        base = self.name.removesuffix("weight")
        return {f"{base}{kind}": a for kind, a in zip(_PACKED_KINDS, arrays, strict=True)}

    @property
    def info(self) -> TensorInfo:
        """For display: fused tensors count by their rows."""
        stored = sum(len(part.raw) * self.shape[0] // part.shape[0] for part in self.parts)
        dtype = FLOATS.get(self.parts[0].dtype, self.parts[0].dtype)
        if self.packing is not None:
            dtype = f"int{self.packing.bits}"
        return TensorInfo(self.name, self.shape, dtype, stored)


def ties_embeddings(path: Path, tensors: Tensors, said: bool | None) -> bool:
    """Whether the output layer is the token embedding.

    A file decides where config.json says nothing. Where it says they are tied and the file has
    both, they are if they are equal, as in the Hugging Face definition.

    Raises:
        CheckpointError: they are not tied, and there is no output layer.
    """
    has_head = f"{HEAD}.weight" in tensors
    if said is None:
        return not has_head
    if not said and not has_head:
        raise CheckpointError(
            f"{path}: tensor {HEAD}.weight is missing, although config.json says that "
            "tie_word_embeddings is false"
        )
    if not said or not has_head or f"{EMBEDDING}.weight" not in tensors:
        return said
    return all(
        _equal(tensors.get(f"{HEAD}.{kind}"), tensors.get(f"{EMBEDDING}.{kind}"))
        for kind in _PACKED_KINDS
    )


def _equal(one: StoredTensor | None, other: StoredTensor | None) -> bool:
    if one is None or other is None:
        return one is other
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    return all(
        np.array_equal(one.raw[at : at + _COMPARED_BYTES], other.raw[at : at + _COMPARED_BYTES])
        for at in range(0, len(one.raw), _COMPARED_BYTES)
    )


def find_sources(
    path: Path, tensors: Tensors, config: ModelConfig, family: Family, quantization: Quantization
) -> tuple[Source, ...]:
    """A source for each tensor of the configuration's model; every stored one has its use.

    Raises:
        CheckpointError: a tensor that is missing, has another shape, or has no place.
        UnsupportedError: a tensor of a type that this version does not read.
    """
    used: set[str] = set()
    sources = []
    for name, shape in tensor_shapes(config):
        place = place_of(name, shape[0], config, family)
        if (
            place.stem == EMBEDDING
            and config.tie_embeddings
            and f"{EMBEDDING}.weight" not in tensors
        ):
            place = replace(place, stem=HEAD)  # stored under the other name
        parts, packing = _parts(path, tensors, place, shape, quantization)
        used.update(_names(place, len(parts)))
        sources.append(Source(name, shape, parts, place.start, packing))
    if config.tie_embeddings:
        used.update(f"{HEAD}.{kind}" for kind in _PACKED_KINDS)
    for name in sorted(set(tensors) - used):
        raise CheckpointError(
            f"{tensors[name].file}: tensor {shown(tensors[name].name)} has no place in the model "
            "that config.json describes"
        )
    return tuple(sources)


def _names(place: Place, parts: int) -> Iterator[str]:
    kinds = _PACKED_KINDS if parts > 1 else (place.kind,)
    yield from (f"{place.stem}.{kind}" for kind in kinds)


def _parts(
    path: Path,
    tensors: Tensors,
    place: Place,
    shape: tuple[int, ...],
    quantization: Quantization,
) -> tuple[tuple[StoredTensor, ...], Packing | None]:
    name = f"{place.stem}.{place.kind}"
    if name not in tensors:
        raise CheckpointError(
            f"{path}: tensor {name} is missing, although config.json calls for it"
        )
    tensor = tensors[name]
    if len(shape) == 2 and f"{place.stem}.scales" in tensors:
        return _packed(path, tensors, place, shape, quantization)
    if tensor.dtype not in FLOATS:
        raise UnsupportedError(
            f"{tensor.file}: tensor {shown(tensor.name)} is {tensor.dtype}, this version reads "
            f"{', '.join(FLOATS)}"
        )
    _check_shape(tensor, (place.total, *shape[1:]))
    return (tensor,), None


def _packed(
    path: Path,
    tensors: Tensors,
    place: Place,
    shape: tuple[int, ...],
    quantization: Quantization,
) -> tuple[tuple[StoredTensor, ...], Packing]:
    module = {}
    for kind in _PACKED_KINDS:
        name = f"{place.stem}.{kind}"
        if name not in tensors:
            raise CheckpointError(f"{path}: tensor {name} of a quantised module is missing")
        module[kind] = tensors[name]
    packing = quantization.packing(module, shape[1])
    columns = (shape[1] * packing.bits // 32, *(shape[1] // packing.group,) * 2)
    for tensor, width in zip(module.values(), columns, strict=True):
        _check_shape(tensor, (place.total, width))
    return tuple(module.values()), packing


def _check_shape(tensor: StoredTensor, expected: tuple[int, ...]) -> None:
    if tensor.shape != expected:
        raise CheckpointError(
            f"{tensor.file}: tensor {shown(tensor.name)} has shape {shown(list(tensor.shape))}, "
            f"config.json makes it {list(expected)}"
        )
