"""How a GGUF file says that a model rotates: a base, a kind of scaling, and tensors of divisors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tinygpt.errors import CheckpointError, ConfigError, UnsupportedError
from tinygpt.io.checkpoint import shown
from tinygpt.io.gguf.header import GgufHeader
from tinygpt.io.gguf.keys import Keys
from tinygpt.io.gguf.types import F32
from tinygpt.ops.rope import RopeConfig
from tinygpt.ops.rope_scaling import (
    RopeScaling,
    longrope_attention_factor,
    yarn_attention_factor,
)

DIVISORS = "rope_freqs.weight"
LONG_DIVISORS, SHORT_DIVISORS = "rope_factors_long.weight", "rope_factors_short.weight"
ROPE_TENSORS = (DIVISORS, LONG_DIVISORS, SHORT_DIVISORS)
_LARGEST_HEAD = 2**12  # dimensions; bounds what is read of a tensor that may lie
_KINDS = ("none", "linear", "yarn", "longrope")


def rope_config(
    keys: Keys, header: GgufHeader, data: NDArray[np.uint8], head_dim: int
) -> RopeConfig:
    """The rotation, with whatever scaling the file asks for.

    Raises:
        CheckpointError: a key or tensor that is wrong or contradicts another.
        UnsupportedError: a kind of scaling that this version does not compute, by its name.
    """
    dims = keys.integer("rope.dimension_count", head_dim)
    if dims != head_dim and keys.architecture == "llama":
        raise UnsupportedError(
            f"{keys.path}: llama.rope.dimension_count is {dims}, rotating a part of head_dim "
            f"{head_dim} is not supported for llama"
        )
    base = keys.number("rope.freq_base", 10000.0)
    divisors = {name: _divisors(keys, header, data, name) for name in ROPE_TENSORS}
    with _file_at_fault(keys):
        return RopeConfig(base=base, dims=dims, scaling=_scaling(keys, divisors))


def local_rope(keys: Keys, rope: RopeConfig) -> RopeConfig | None:
    """The rotation of Gemma's layers with a window, None where it is that of the others.

    Gemma 2 has one for all unless the file says otherwise; Gemma 3 never stretches the local one.
    """
    is_gemma2 = keys.architecture == "gemma2"
    base = keys.number("rope.freq_base_swa", rope.base if is_gemma2 else 10000.0)
    with _file_at_fault(keys):
        local = replace(rope, base=base, scaling=rope.scaling if is_gemma2 else None)
    return None if local == rope else local


@contextmanager
def _file_at_fault(keys: Keys) -> Iterator[None]:
    """What a RopeConfig refuses is reported as the file's fault."""
    try:
        yield
    except ConfigError as error:
        raise CheckpointError(f"{keys.path}: {error}") from error


def _scaling(keys: Keys, divisors: dict[str, tuple[float, ...]]) -> RopeScaling | None:
    kind = _kind(keys, divisors)
    factor = keys.number("rope.scaling.factor", keys.number("rope.scale_linear", 1.0))
    stretch = keys.number("rope.scaling.attn_factor", 1.0)
    original = keys.integer("rope.scaling.original_context_length", keys.integer("context_length"))
    if kind == "longrope":
        return _longrope(keys, divisors, original)
    if divisors[DIVISORS]:
        if kind == "yarn" or (kind == "linear" and factor != 1):
            raise UnsupportedError(
                f"{keys.path}: tensor {DIVISORS} together with {kind} rope scaling is not supported"
            )
        return RopeScaling("divisors", divisors=divisors[DIVISORS], attention_factor=stretch)
    if kind == "yarn":
        return RopeScaling(
            "yarn",
            factor=factor,
            original_context=original,
            beta_fast=keys.number("rope.scaling.yarn_beta_fast", 32.0),
            beta_slow=keys.number("rope.scaling.yarn_beta_slow", 1.0),
            attention_factor=stretch * yarn_attention_factor(factor),
        )
    factor = 1.0 if kind == "none" else factor
    if factor == 1 and stretch == 1:
        return None
    return RopeScaling("linear", factor=factor, attention_factor=stretch)


def _kind(keys: Keys, divisors: dict[str, tuple[float, ...]]) -> str:
    """The kind by its name. Phi-3 files may show LongRoPE by its tensors alone."""
    has_longrope = bool(divisors[LONG_DIVISORS] or divisors[SHORT_DIVISORS])
    kind = keys.text("rope.scaling.type") or ("longrope" if has_longrope else "linear")
    if kind not in _KINDS:
        raise UnsupportedError(
            f"{keys.path}: rope scaling {shown(kind)} is not supported, this version computes "
            f"{', '.join(_KINDS)}"
        )
    if (kind == "longrope") != has_longrope:
        raise CheckpointError(
            f"{keys.path}: rope scaling is {kind}, and the tensors {LONG_DIVISORS} and "
            f"{SHORT_DIVISORS} are {'there' if has_longrope else 'missing'}"
        )
    return kind


def _longrope(keys: Keys, divisors: dict[str, tuple[float, ...]], original: int) -> RopeScaling:
    usual = longrope_attention_factor(keys.integer("context_length") / original, original)
    return RopeScaling(
        "longrope",
        original_context=original,
        divisors=divisors[SHORT_DIVISORS],
        long_divisors=divisors[LONG_DIVISORS],
        attention_factor=keys.number("rope.scaling.attn_factor", usual),
    )


def _divisors(
    keys: Keys, header: GgufHeader, data: NDArray[np.uint8], name: str
) -> tuple[float, ...]:
    """The values of a tensor of divisors, () where the file has none."""
    tensor = header.tensors.get(name)
    if tensor is None:
        return ()
    if tensor.type is not F32 or len(tensor.shape) != 1 or tensor.shape[0] > _LARGEST_HEAD:
        raise CheckpointError(
            f"{keys.path}: tensor {name} is {tensor.type.name} of shape {list(tensor.shape)}, "
            "expected F32 with one value for each pair of rotated dimensions"
        )
    raw = data[tensor.start : tensor.start + tensor.nbytes]
    return tuple(float(value) for value in raw.view("<f4"))
