"""Typed access to the metadata of one architecture, and which of its keys we understand.

A key that is not known here may change what the model computes, so it is refused and not skipped.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import numpy as np

from tinygpt.errors import CheckpointError, UnsupportedError
from tinygpt.io.checkpoint import shown

_LARGEST = 2**31 - 1
_COMMON = {
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "vocab_size",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.layer_norm_rms_epsilon",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scale_linear",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.attn_factor",
    "rope.scaling.finetuned",  # says how the model was made, changes nothing
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
    "tensor_data_layout",  # of the file the converter read
}
_WINDOW = {"attention.sliding_window", "attention.sliding_window_pattern", "rope.freq_base_swa"}
KNOWN = {
    "llama": _COMMON,
    "qwen2": _COMMON,
    "qwen3": _COMMON,
    "phi3": _COMMON | {"attention.sliding_window"},
    "gemma2": _COMMON | _WINDOW | {"attn_logit_softcapping", "final_logit_softcapping"},
    "gemma3": _COMMON | _WINDOW | {"final_logit_softcapping"},
}
# Keys of other models, with the values at which they say nothing.
_NEUTRAL: dict[str, object] = {
    "expert_count": 0,
    "expert_used_count": 0,
    "expert_feed_forward_length": 0,
    "leading_dense_block_count": 0,
    "nextn_predict_layers": 0,
    "pooling_type": 0,
    "attention.causal": True,
    "attention.clamp_kqv": 0.0,
    "attention.max_alibi_bias": 0.0,
    "attn_logit_softcapping": 0.0,
    "use_parallel_residual": False,
    "rope.scaling.yarn_ext_factor": 1.0,
    "rope.scaling.yarn_attn_factor": 1.0,
    "rope.scaling.yarn_log_multiplier": 0.0,
}


@dataclass(frozen=True, slots=True)
class Keys:
    """The metadata of `architecture`, e.g. "block_count" for "llama.block_count"."""

    path: Path
    architecture: str
    metadata: dict[str, object]

    def __contains__(self, name: str) -> bool:
        return self._full(name) in self.metadata

    def integer(self, name: str, default: int | None = None, low: int = 1) -> int:
        value = self.metadata.get(self._full(name), default)
        if type(value) is not int or not low <= value <= _LARGEST:
            self.refuse(name, value, f"an integer from {low} to {_LARGEST}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        value = self.metadata.get(self._full(name), default)
        if type(value) is not float or not 0 < value < math.inf:
            self.refuse(name, value, "a positive floating-point number")
        return value

    def optional_number(self, name: str, default: float | None = None) -> float | None:
        """A positive number, None where it is zero: a soft-cap that is off."""
        value = self.metadata.get(self._full(name), default)
        is_off = value is None or (type(value) is float and value == 0)
        return None if is_off else self.number(name, default)

    def text(self, name: str) -> str | None:
        value = self.metadata.get(self._full(name))
        if value is not None and not isinstance(value, str):
            self.refuse(name, value, "a string")
        return value

    def layer_flags(self, name: str, layers: int, period: int) -> tuple[bool, ...]:
        """One boolean a layer: listed, or by a period whose last layer is False."""
        value = self.metadata.get(self._full(name))
        if isinstance(value, np.ndarray):
            if value.dtype != np.bool_ or len(value) != layers:
                self.refuse(name, value, f"{layers} booleans, one for each layer")
            return tuple(bool(flag) for flag in value)
        period = self.integer(name, period)
        return tuple(layer % period < period - 1 for layer in range(layers))

    def refuse(self, name: str, value: object, expected: str) -> NoReturn:
        found = "missing" if value is None else shown(value)
        raise CheckpointError(f"{self.path}: {self._full(name)} is {found}, expected {expected}")

    def refuse_unknown(self) -> None:
        """UnsupportedError for the first key of the architecture that we do not understand."""
        prefix = f"{self.architecture}."
        for key, value in self.metadata.items():
            name = key.removeprefix(prefix)
            if not key.startswith(prefix) or name in KNOWN[self.architecture]:
                continue
            neutral = _NEUTRAL.get(name)
            if type(value) is type(neutral) and value == neutral:
                continue
            raise UnsupportedError(
                f"{self.path}: {shown(key)} is {shown(value)}, which this version does not know "
                "how to compute"
            )

    def _full(self, name: str) -> str:
        return f"{self.architecture}.{name}"
