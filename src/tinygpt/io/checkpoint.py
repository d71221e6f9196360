"""What every model file offers once its header is checked. Knows no particular format."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from tinygpt.errors import CheckpointError, ConfigError
from tinygpt.models.config import ModelConfig
from tinygpt.tokenizer import Tokenizer

FLOAT_DTYPES = {"fp32": mx.float32, "fp16": mx.float16, "bf16": mx.bfloat16}
PACKED = "packed"
_SHOWN_CHARACTERS = 80


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor as the file stores it: canonical name, `[out, in]` shape, bytes in the file."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int


class Checkpoint(Protocol):
    """A model file whose header has been checked and whose weights have not been read.

    `stored_dtype` is the form the file holds its weights in: "fp32", "fp16", "bf16" or "packed".
    `cache_hints` is the subset of kviBits, streamingSink, streamingWindow that the file gives.
    `metadata` is what else the file says, for display.
    """

    @property
    def path(self) -> Path: ...
    @property
    def kind(self) -> str: ...
    @property
    def config(self) -> ModelConfig: ...
    @property
    def cache_hints(self) -> dict[str, int]: ...
    @property
    def tensors(self) -> tuple[TensorInfo, ...]: ...
    @property
    def metadata(self) -> dict[str, object]: ...
    @property
    def stored_dtype(self) -> str: ...

    def iter_weights(self, dtype: str) -> Iterator[dict[str, mx.array]]:
        """The tensors in the order of `tensors`, each read when it is asked for, and evaluated.

        `dtype` is "fp32", "fp16", "bf16", or "packed": quantised tensors stay `X.weight`
        (uint32), `X.scales`, `X.biases`, three arrays that come together, and the rest keeps the
        file's dtype.

        Raises:
            ConfigError: a dtype that is not one of these, or "packed" where nothing is packed.
        """
        ...

    def read_tokenizer(self, override_dir: Path | None = None) -> Tokenizer:
        """The model's tokenizer, or the one in `override_dir`.

        Raises:
            CheckpointError: it is missing or damaged.
            UnsupportedError: it is of a kind that this version does not read.
        """
        ...


def read_weights(checkpoint: Checkpoint, dtype: str) -> dict[str, mx.array]:
    """All tensors of a checkpoint under their canonical names.

    Raises:
        ConfigError: as `Checkpoint.iter_weights`.
    """
    weights: dict[str, mx.array] = {}
    for arrays in checkpoint.iter_weights(dtype):
        weights |= arrays
    return weights


def parameter_count(checkpoint: Checkpoint) -> int:
    """Elements of all tensors; a tied output layer counts once."""
    return sum(math.prod(tensor.shape) for tensor in checkpoint.tensors)


def float_dtype(dtype: str) -> mx.Dtype:
    """The MLX dtype of "fp32", "fp16" or "bf16"; ConfigError for what is no weights dtype."""
    if dtype not in FLOAT_DTYPES:
        known = ", ".join((*FLOAT_DTYPES, PACKED))
        raise ConfigError(f"weights dtype {shown(dtype)} does not exist; use one of {known}")
    return FLOAT_DTYPES[dtype]


def map_file(path: Path) -> NDArray[np.uint8]:
    """The bytes of a file, mapped and read-only: nothing is read until it is looked at."""
    try:
        mapped = np.memmap(path, dtype=np.uint8, mode="r")
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be mapped into memory ({error})") from error
    return mapped.view(np.ndarray)  # slices of a memmap are ten times slower to make


def shown(value: object) -> str:
    """A value from a file for a message: one line, escaped, at most 80 characters."""
    if isinstance(value, int) and value.bit_length() > 256:
        return f"an integer of {value.bit_length()} bits"
    text = repr(value[:_SHOWN_CHARACTERS] if isinstance(value, str) else value)
    text = " ".join(text.encode("ascii", "backslashreplace").decode().split())
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "…"


def checked_config(path: Path, **fields: Any) -> ModelConfig:
    """A ModelConfig from a file's fields; what it refuses is reported as the file's fault."""
    try:
        return ModelConfig(**fields)
    except ConfigError as error:
        raise CheckpointError(f"{path}: {error}") from error


def check_names(path: Path, found: set[str], expected: set[str]) -> None:
    """Refuse a file that lacks a tensor its configuration calls for, or has one too many."""
    missing, extra = sorted(expected - found), sorted(found - expected)
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise CheckpointError(
            f"{path}: tensor {missing[0]}{more} is missing, although the configuration calls for it"
        )
    if extra:
        more = f" and {len(extra) - 1} more" if len(extra) > 1 else ""
        raise CheckpointError(
            f"{path}: tensor {shown(extra[0])}{more} has no place in the model that the "
            "configuration describes"
        )
