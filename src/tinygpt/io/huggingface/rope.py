"""The rotary settings of a Hugging Face configuration, in its old form and its new one.

Old: `rope_theta` and `rope_scaling` beside the sizes. New: `rope_parameters`, either one object or
one for each kind of layer.
"""

from __future__ import annotations

from dataclasses import dataclass

from tinygpt.errors import CheckpointError, ConfigError, UnsupportedError
from tinygpt.io.checkpoint import shown
from tinygpt.io.json_fields import Fields
from tinygpt.ops.rope import RopeConfig
from tinygpt.ops.rope_scaling import (
    RopeScaling,
    longrope_attention_factor,
    yarn_attention_factor,
)

FULL, SLIDING = "full_attention", "sliding_attention"
_ALIASES = {"su": "longrope"}
_SMALLEST, _LARGEST = 1e-30, 1e30  # what float32 can divide and multiply by


@dataclass(frozen=True, slots=True)
class RopeDefaults:
    """What a family has where its configuration says nothing. `local_base` None: one rope."""

    base: float = 10000.0
    local_base: float | None = None
    yarn_is_longrope: bool = False  # Phi-3's first files call it that


@dataclass(frozen=True, slots=True)
class Ropes:
    """`local` turns the layers with a sliding window, None: as `full`."""

    full: RopeConfig
    local: RopeConfig | None


def number(fields: Fields, key: str, default: float | None = None, low: float = _SMALLEST) -> float:
    """A number from `low` to 1e30; CheckpointError if absent without a default."""
    value = fields.values.get(key)
    value = default if value is None else value
    is_number = type(value) is float or (type(value) is int and value.bit_length() < 256)
    if not is_number or not low <= value <= _LARGEST:  # type: ignore[operator]
        fields.refuse(key, value, f"a number from {low:g} to {_LARGEST:g}")
    return float(value)  # type: ignore[arg-type]


def inner(fields: Fields, key: str) -> Fields | None:
    """The object under `key`, None where there is none."""
    value = fields.values.get(key)
    if value is None:
        return None
    if not isinstance(value, dict):
        fields.refuse(key, value, "an object")
    return Fields(f"{fields.where} {key}", value)


def read_ropes(fields: Fields, head_dim: int, context: int, defaults: RopeDefaults) -> Ropes:
    """The rotations that a configuration describes.

    Raises:
        CheckpointError: a field that is wrong.
        UnsupportedError: a rope type that this version does not read, by its name.
    """
    reader = _Reader(fields, head_dim, context, defaults)
    own = inner(fields, "rope_parameters")
    if own is not None and (FULL in own.values or SLIDING in own.values):
        return reader.by_kind(own)
    scaling = inner(fields, "rope_scaling") or own
    full = reader.rope(scaling, reader.base(defaults.base))
    if defaults.local_base is None:
        return Ropes(full, None)
    if own is not None:
        own.refuse(FULL, None, "an object for each kind of layer in this family")
    local = number(fields, "rope_local_base_freq", defaults.local_base)
    return Ropes(full, reader.rope(None, local))


@dataclass(frozen=True, slots=True)
class _Reader:
    fields: Fields
    head_dim: int
    context: int
    defaults: RopeDefaults

    def base(self, default: float) -> float:
        return number(self.fields, "rope_theta", default)

    def by_kind(self, own: Fields) -> Ropes:
        local_base = self.defaults.local_base or self.base(self.defaults.base)
        full = self.rope(inner(own, FULL), self.base(self.defaults.base))
        return Ropes(full, self.rope(inner(own, SLIDING), local_base))

    def rope(self, given: Fields | None, base: float) -> RopeConfig:
        scaling = Fields(self.fields.where, {}) if given is None else given
        base = number(scaling, "rope_theta", base)
        share = number(scaling, "partial_rotary_factor", self._share())
        if share > 1:
            scaling.refuse("partial_rotary_factor", share, "a number up to 1")
        dims = int(self.head_dim * share)
        if dims < 2 or dims % 2:
            scaling.refuse(
                "partial_rotary_factor",
                share,
                f"one that makes an even part of head_dim {self.head_dim}",
            )
        traditional = self.fields.flag("rope_traditional")
        try:
            return RopeConfig(base, dims, traditional, self._scaling(scaling))
        except ConfigError as error:
            raise CheckpointError(f"{scaling.where}: {error}") from error

    def _share(self) -> float:
        return number(self.fields, "partial_rotary_factor", 1.0)

    def _scaling(self, given: Fields) -> RopeScaling | None:
        name = given.text("rope_type") or given.text("type") or "default"
        kind = _ALIASES.get(name, name)
        if kind == "yarn" and self.defaults.yarn_is_longrope:
            kind = "longrope"
        match kind:
            case "linear":
                return RopeScaling("linear", factor=number(given, "factor"))
            case "dynamic":
                factor = number(given, "factor", low=1.0)
                return RopeScaling("dynamic", factor=factor, original_context=self.context)
            case "llama3":
                return self._llama3(given)
            case "yarn":
                return self._yarn(given)
            case "longrope":
                return self._longrope(given)
            case "default":
                return None
        raise UnsupportedError(
            f"{given.where}: rope type {shown(name)} is not supported; default, linear, dynamic, "
            "llama3, yarn and longrope are"
        )

    def _original(self, given: Fields) -> int:
        """The top level's comes first, as Phi-3 writes it."""
        key = "original_max_position_embeddings"
        return self.fields.integer(key, given.integer(key, self.context))

    def _llama3(self, given: Fields) -> RopeScaling:
        return RopeScaling(
            "llama3",
            factor=number(given, "factor"),
            original_context=self._original(given),
            low_freq_factor=number(given, "low_freq_factor"),
            high_freq_factor=number(given, "high_freq_factor"),
        )

    def _yarn(self, given: Fields) -> RopeScaling:
        original = self._original(given)
        factor = number(given, "factor", self.context / original)
        mscales = [number(given, key, 0.0, low=0.0) for key in ("mscale", "mscale_all_dim")]
        return RopeScaling(
            "yarn",
            factor=factor,
            original_context=original,
            beta_fast=number(given, "beta_fast", 32.0),
            beta_slow=number(given, "beta_slow", 1.0),
            truncate=given.flag("truncate", default=True),
            attention_factor=number(
                given, "attention_factor", yarn_attention_factor(factor, *mscales)
            ),
        )

    def _longrope(self, given: Fields) -> RopeScaling:
        original = self._original(given)
        factor = number(given, "factor", self.context / original)
        usual = longrope_attention_factor(factor, original)
        return RopeScaling(
            "longrope",
            factor=factor,
            original_context=original,
            divisors=_numbers(given, "short_factor"),
            long_divisors=_numbers(given, "long_factor"),
            attention_factor=number(given, "attention_factor", usual),
        )


def _numbers(given: Fields, key: str) -> tuple[float, ...]:
    value = given.values.get(key)
    if not isinstance(value, list):
        given.refuse(key, value, "a list of numbers")
    where = Fields(f"{given.where} {key}", {str(i): item for i, item in enumerate(value)})
    return tuple(number(where, str(i)) for i in range(len(value)))
