"""Arrays on their way into a file: their bytes, and no value that is not finite."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import mlx.core as mx
import numpy as np

from tinygpt.errors import CheckpointError
from tinygpt.io.checkpoint import FLOAT_DTYPES

FLOAT_NAMES = {dtype: name for name, dtype in FLOAT_DTYPES.items()}


def array_bytes(array: mx.array) -> memoryview:
    """The elements in order, little-endian, without a further copy of a contiguous array."""
    array = mx.contiguous(array)
    if array.dtype == mx.bfloat16:
        array = array.view(mx.uint16)
    flat: np.ndarray = np.asarray(array).reshape(-1)
    return flat.view(np.uint8).data


def check_finite(path: Path, part: Mapping[str, mx.array]) -> None:
    """Refuse a tensor that holds an infinity or a NaN.

    Raises:
        CheckpointError: naming the tensor.
    """
    for name, array in part.items():
        if array.dtype != mx.uint32 and not mx.isfinite(array).all().item():
            kind = FLOAT_NAMES[array.dtype]
            hint = "; it may be too large for fp16: --dtype bf16" if kind == "fp16" else ""
            raise CheckpointError(
                f"{path}: tensor {name} has a value that is not finite in {kind}{hint}"
            )
