"""Writes `.tinygpt` files, one tensor after another, in the version that the weights call for.

fp16 is version 2, which old readers take (a classic model's file has no key that they do not know);
fp32, bf16 and packed weights are version 3, which they refuse. See `body` for the layouts.
The header comes first in the file but is known last: room is kept for it and filled with spaces,
which JSON ignores, so that the body starts at a multiple of 64 bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import mlx.core as mx

from tinygpt.errors import CheckpointError
from tinygpt.io.arrays import FLOAT_NAMES, array_bytes, check_finite
from tinygpt.io.atomic import replacing_file
from tinygpt.io.checkpoint import PACKED, check_names, float_dtype
from tinygpt.io.tinygpt.body import AFFINE, TABLES
from tinygpt.io.tinygpt.config import config_to_json
from tinygpt.io.tinygpt.header import MAGIC, PREFIX, STEP, VERSION_2, VERSION_3
from tinygpt.models.config import ModelConfig
from tinygpt.models.tensors import tensor_shapes

ALIGNMENT = 64  # bytes: of the body, and of every tensor in a packed one
_FIXED = PREFIX.size + STEP.size
_LONGEST = {"bits": 8, "group": 128, "dtype": "fp16", "byteOffset": 2**62}

Part = dict[str, mx.array]  # one tensor: itself, or weight, scales and biases


@dataclass(frozen=True, slots=True)
class Description:
    """What a file says besides its weights.

    `dtype` is that of the weights: "fp32", "fp16", "bf16" or "packed". `tokenizer` is the header's
    object, None for plain bytes. `extra` are further header keys, `extra_config` of its `config`.
    """

    config: ModelConfig
    dtype: str
    tokenizer: Mapping[str, object] | None = None
    extra: Mapping[str, object] = field(default_factory=dict)
    extra_config: Mapping[str, object] = field(default_factory=dict)

    def header(self, manifest: list[dict[str, object]]) -> bytes:
        """The header's JSON text."""
        weight_dtype = AFFINE if self.dtype == PACKED else self.dtype
        values: dict[str, object] = {
            **self.extra,
            "config": {**self.extra_config, **config_to_json(self.config)},
            "weightDtype": weight_dtype,
            "includesOptimizerState": False,
        }
        if self.tokenizer is not None:
            values["tokenizer"] = self.tokenizer
        text = json.dumps({**values, "manifest": manifest}, allow_nan=False, ensure_ascii=False)
        return text.encode("utf-8", "surrogatepass")


def write_tinygpt(path: Path, described: Description, parts: Iterable[Part]) -> None:
    """Replace `path` by a file with these tensors, in this order, whole or not at all.

    Each part is one tensor of the model under its canonical name, `[out, in]`; with dtype "packed"
    it may be `X.weight`, `X.scales` and `X.biases`.

    Raises:
        CheckpointError: a tensor too many or too few, of the wrong shape, or not finite.
        OSError: the file cannot be written.
    """
    with replacing_file(path) as file:
        writer = _Writer(file, path, described)
        for part in parts:
            writer.add(part)
        writer.finish()


class _Writer:
    def __init__(self, file: BinaryIO, path: Path, described: Description) -> None:
        self._file, self._path, self._described = file, path, described
        self._shapes = dict(tensor_shapes(described.config))
        worst: list[dict[str, object]] = [
            {"name": name, "shape": shape, **_LONGEST} for name, shape in self._shapes.items()
        ]
        end = _FIXED + len(described.header(worst))
        self._body = end + -end % ALIGNMENT
        self._manifest: list[dict[str, object]] = []
        self._elements = self._bytes = 0
        file.seek(self._body)

    def add(self, part: Part) -> None:
        (name,) = (name for name in part if not name.endswith((".scales", ".biases")))
        check_names(self._path, {name}, {name} & set(self._shapes))
        check_finite(self._path, part)
        if self._described.dtype == PACKED:
            self._add_packed(name, self._shapes[name], part)
        else:
            self._add_floats(name, self._shapes[name], part[name])

    def finish(self) -> None:
        """Write the header into the room that was left for it."""
        check_names(self._path, {str(line["name"]) for line in self._manifest}, set(self._shapes))
        text = self._described.header(self._manifest)
        text += b" " * (self._body - _FIXED - len(text))
        version = VERSION_2 if self._described.dtype == "fp16" else VERSION_3
        self._file.seek(0)
        self._file.write(PREFIX.pack(MAGIC, version, len(text)) + text + STEP.pack(0))

    def _add_floats(self, name: str, shape: tuple[int, ...], array: mx.array) -> None:
        dtype = self._described.dtype
        self._check_shape(name, shape, array)
        assert array.dtype == float_dtype(dtype), name
        self._manifest.append({"name": name, "shape": shape, "floatOffset": self._elements})
        turned = dtype == "fp16" and len(shape) == 2 and name not in TABLES
        self._file.write(array_bytes(array.T if turned else array))
        self._elements += array.size

    def _add_packed(self, name: str, shape: tuple[int, ...], part: Part) -> None:
        base = name.removesuffix(".weight")
        names = (name, f"{base}.scales", f"{base}.biases") if len(part) > 1 else (name,)
        arrays = [part[each] for each in names]
        line: dict[str, object] = {"name": name, "shape": shape}
        if len(arrays) > 1:
            line["bits"] = 32 * arrays[0].shape[-1] // shape[-1]
            line["group"] = shape[-1] // arrays[1].shape[-1]
            assert arrays[1].dtype == arrays[2].dtype, name
        else:
            self._check_shape(name, shape, arrays[0])
        self._bytes += self._file.write(b"\0" * (-self._bytes % ALIGNMENT))
        line |= {"dtype": FLOAT_NAMES[arrays[-1].dtype], "byteOffset": self._bytes}
        self._manifest.append(line)
        for array in arrays:
            self._bytes += self._file.write(array_bytes(array))

    def _check_shape(self, name: str, shape: tuple[int, ...], array: mx.array) -> None:
        if array.shape != shape:
            raise CheckpointError(
                f"{self._path}: tensor {name} has shape {list(array.shape)}, the configuration "
                f"makes it {list(shape)}"
            )
