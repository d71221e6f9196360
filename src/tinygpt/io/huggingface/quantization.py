"""MLX's affine quantisation as config.json describes it. Every other method is refused by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

import mlx.core as mx

from tinygpt.errors import CheckpointError, UnsupportedError
from tinygpt.io.checkpoint import shown
from tinygpt.io.huggingface.rope import inner
from tinygpt.io.huggingface.safetensors_file import FLOATS, WORDS, StoredTensor
from tinygpt.io.json_fields import Fields

GROUPS = (32, 64, 128)
BITS = (2, 3, 4, 5, 6, 8)
_KEYS = ("quantization", "quantization_config")


@dataclass(frozen=True, slots=True)
class Packing:
    """How a module is packed: `bits` a value, `group` values of a row to a scale and a bias."""

    group: int
    bits: int


@dataclass(frozen=True, slots=True)
class Quantization:
    """What config.json says. `fields` None: nothing is quantised."""

    fields: Fields | None

    def packing(self, module: dict[str, StoredTensor], inputs: int) -> Packing:
        """The packing of a module of `inputs` columns, read off its shapes.

        `module` has weight, scales and biases.

        Raises:
            CheckpointError: they do not fit each other, or what config.json says of this module.
        """
        weight, scales, biases = (module[kind] for kind in ("weight", "scales", "biases"))
        if weight.dtype != WORDS or len(weight.shape) != 2:
            _refuse(weight, f"is {weight.dtype} {list(weight.shape)}, expected a matrix of {WORDS}")
        for part in (scales, biases):
            if part.dtype not in FLOATS or len(part.shape) != 2 or part.shape != scales.shape:
                _refuse(part, f"is {part.dtype} {list(part.shape)}, expected one float a group")
        columns, words = scales.shape[1], weight.shape[1]
        group = inputs // columns if columns and inputs % columns == 0 else 0
        bits = 32 * words // inputs if 32 * words % inputs == 0 else 0
        if group not in GROUPS or bits not in BITS:
            _refuse(
                weight,
                f"has {words} words and {columns} scales for {inputs} inputs, expected groups of "
                f"{', '.join(map(str, GROUPS))} and {', '.join(map(str, BITS))} bits",
            )
        packing = Packing(group, bits)
        self._check_override(weight, packing)
        return packing

    def _check_override(self, weight: StoredTensor, packing: Packing) -> None:
        if self.fields is None:
            _refuse(weight, "has scales, although config.json has no quantization")
        module = weight.name.removesuffix(".weight")
        said = self.fields.values.get(module)
        if said is None or said is True:
            return
        if not isinstance(said, dict):
            self.fields.refuse(module, said, "an object, as the module has scales")
        own = Fields(f"{self.fields.where} {module}", said)
        _check_mode(own)
        top = self.fields
        for key, found in (("group_size", packing.group), ("bits", packing.bits)):
            if own.integer(key, top.integer(key, found)) != found:
                own.refuse(key, said.get(key), f"{found}, which the shapes of its tensors make it")


def read_quantization(top: Fields, text: Fields) -> Quantization:
    """The quantisation that config.json describes, at its top or in its text model's part.

    Raises:
        CheckpointError: a field that is wrong.
        UnsupportedError: a method other than MLX's affine one, by its name.
    """
    for fields in (top, text):
        for key in _KEYS:
            found = inner(fields, key)
            if found is not None:
                return _checked(found)
    return Quantization(None)


def _checked(found: Fields) -> Quantization:
    method = found.text("quant_method")
    if method not in (None, "mlx"):
        raise UnsupportedError(
            f"{found.where} quant_method {shown(method)} is not supported, MLX's affine "
            "quantisation is; give an unquantised or an MLX-quantised form of the model"
        )
    _check_mode(found)
    for key, known in (("group_size", GROUPS), ("bits", BITS)):
        value = found.integer(key)
        if value not in known:
            found.refuse(key, value, f"one of {', '.join(map(str, known))}")
    return Quantization(found)


def _check_mode(fields: Fields) -> None:
    mode = fields.text("mode") or "affine"
    if mode != "affine":
        raise UnsupportedError(
            f"{fields.where} mode {shown(mode)} is not supported, 'affine' is; quantise the model "
            "again in that mode"
        )


def dequantised(parts: list[mx.array], packing: Packing, dtype: mx.Dtype) -> mx.array:
    """The values of weight, scales and biases, computed in float32."""
    weight, scales, biases = parts
    values = mx.dequantize(
        weight,
        scales.astype(mx.float32),
        biases.astype(mx.float32),
        group_size=packing.group,
        bits=packing.bits,
    )
    return values.astype(dtype)


def _refuse(tensor: StoredTensor, found: str) -> NoReturn:
    raise CheckpointError(f"{tensor.file}: tensor {shown(tensor.name)} {found}")
