"""From config.json to a ModelConfig. What it does not know it refuses by name."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tinygpt.errors import UnsupportedError
from tinygpt.io.checkpoint import checked_config, shown
from tinygpt.io.huggingface.families import FAMILIES, WRAPPERS, Family
from tinygpt.io.huggingface.rope import FULL, SLIDING, inner, number, read_ropes
from tinygpt.io.json_fields import Fields
from tinygpt.models.config import ModelConfig

_ACTIVATIONS: dict[str, Literal["swiglu", "geglu"]] = {
    "silu": "swiglu",
    "swish": "swiglu",
    "gelu_pytorch_tanh": "geglu",
    "gelu_new": "geglu",
}


@dataclass(frozen=True, slots=True)
class FamilyConfig:
    """A config.json whose family is known. `fields` are those of the text model.

    `wrapped` says that the text model is a part of one that also sees.
    """

    name: str
    family: Family
    fields: Fields
    wrapped: bool


def find_family(top: Fields) -> FamilyConfig:
    """Which family a config.json is of.

    Raises:
        CheckpointError: a field that is wrong.
        UnsupportedError: a model type or an architecture that this version does not read.
    """
    name = top.text("model_type")
    if name is None:
        top.refuse("model_type", None, f"one of {', '.join((*FAMILIES, *WRAPPERS))}")
    if name in FAMILIES:
        _check_architecture(top, FAMILIES[name].architecture)
        return FamilyConfig(name, FAMILIES[name], top, wrapped=False)
    if name not in WRAPPERS:
        raise UnsupportedError(
            f"{top.where} model_type {shown(name)} is not supported; this version reads "
            f"{', '.join((*FAMILIES, *WRAPPERS))}"
        )
    architecture, text = WRAPPERS[name]
    _check_architecture(top, architecture)
    fields = inner(top, "text_config")
    if fields is None:
        top.refuse("text_config", None, "an object that describes the text model")
    if (fields.text("model_type") or text) != text:
        raise UnsupportedError(
            f"{fields.where} model_type {shown(fields.text('model_type'))} is not supported in a "
            f"{name} model, {text} is"
        )
    return FamilyConfig(text, FAMILIES[text], fields, wrapped=True)


def _check_architecture(top: Fields, expected: str) -> None:
    given = top.values.get("architectures")
    if given is None:
        return
    names = [name for name in given if isinstance(name, str)] if isinstance(given, list) else []
    if not isinstance(given, list) or len(names) != len(given):
        top.refuse("architectures", given, "a list of class names")
    if names and expected.lower() not in [name.lower() for name in names]:
        raise UnsupportedError(
            f"{top.where} architecture {shown(names[0])} is not supported in this model type, "
            f"{expected} is"
        )


def model_config(
    path: Path, found: FamilyConfig, *, tie_embeddings: bool, most_layers: int
) -> ModelConfig:
    """The configuration; a model of more than `most_layers` layers is refused.

    Raises:
        CheckpointError: a field that is wrong.
        UnsupportedError: something the model does that this version cannot, by its name.
    """
    fields, family = found.fields, found.family
    layers = fields.integer("num_hidden_layers")
    if layers > most_layers:
        fields.refuse("num_hidden_layers", layers, f"at most {most_layers}, one for each tensor")
    dim, heads = (_size(found, key) for key in ("hidden_size", "num_attention_heads"))
    head_dim = _head_dim(found, dim, heads)
    context = fields.integer("max_position_embeddings", family.context)
    ropes = read_ropes(fields, head_dim, context, family.rope)
    rotated = _rope_layers(fields, family, layers)
    window, sliding = _windows(fields, family, layers, rotated)
    attention_bias = family.biases == "qkv" or _bias(fields, "attention_bias", family.biases)
    scale = number(fields, "query_pre_attn_scalar", 256.0) ** -0.5 if family.is_gemma else None
    return checked_config(
        path,
        architecture=found.name,
        vocab_size=_size(found, "vocab_size"),
        layers=layers,
        model_dim=dim,
        mlp_dim=_size(found, "intermediate_size"),
        heads=heads,
        kv_heads=fields.integer(
            "num_key_value_heads", family.sizes.get("num_key_value_heads", heads)
        ),
        head_dim=head_dim,
        context=context,
        norm="rmsnorm",
        norm_eps=number(fields, "rms_norm_eps", family.norm_eps, low=0.0),
        mlp=_activation(fields, family),
        attention_bias=attention_bias,
        mlp_bias=_bias(fields, "mlp_bias", "config" if family.mlp_biases else "none"),
        tie_embeddings=tie_embeddings,
        rope=ropes.full,
        sliding_window=window,
        output_bias=False if family.biases == "qkv" else None,
        norm_offset=1.0 if family.is_gemma else 0.0,
        block_norms=family.block_norms,
        qk_norm=family.qk_norm,
        embedding_scale=math.sqrt(dim) if family.is_gemma else 1.0,
        attention_scale=scale,
        attention_softcap=_softcap(fields, "attn_logit_softcapping", family.attention_softcap),
        logit_softcap=_softcap(fields, "final_logit_softcapping", family.logit_softcap),
        sliding_layers=sliding,
        rope_layers=rotated,
        local_rope=None if window is None or ropes.local == ropes.full else ropes.local,
    )


def _size(found: FamilyConfig, key: str) -> int:
    return found.fields.integer(key, found.family.sizes.get(key))


def _head_dim(found: FamilyConfig, dim: int, heads: int) -> int:
    default = found.family.sizes.get("head_dim")
    if default is None and found.fields.values.get("head_dim") is None and dim % heads:
        found.fields.refuse("num_attention_heads", heads, f"a divisor of hidden_size {dim}")
    return found.fields.integer("head_dim", default or max(1, dim // heads))


def _bias(fields: Fields, key: str, policy: str) -> bool:
    asked = fields.flag(key)
    if asked and policy != "config":
        raise UnsupportedError(f"{fields.where} {key} is not supported in this family")
    return asked


def _activation(fields: Fields, family: Family) -> Literal["swiglu", "geglu"]:
    given = fields.text(family.activation_key) or fields.text("hidden_act") or family.activation
    if given not in _ACTIVATIONS:
        raise UnsupportedError(
            f"{fields.where} activation {shown(given)} is not supported; "
            f"{', '.join(_ACTIVATIONS)} are"
        )
    return _ACTIVATIONS[given]


def _softcap(fields: Fields, key: str, default: float | None) -> float | None:
    """A null means none, an absent key the family's own."""
    if key not in fields.values:
        return default
    return None if fields.values[key] is None else number(fields, key)


def _rope_layers(fields: Fields, family: Family, layers: int) -> tuple[bool, ...] | None:
    if not family.no_rope_interval:
        return None
    given = fields.values.get("no_rope_layers")
    if given is None:
        interval = fields.integer("no_rope_layer_interval", family.no_rope_interval)
        rotated = tuple((i + 1) % interval != 0 for i in range(layers))
    else:
        if (
            not isinstance(given, list)
            or len(given) != layers
            or any(x not in (0, 1) for x in given)
        ):
            fields.refuse("no_rope_layers", given, f"a list of {layers} zeros and ones")
        rotated = tuple(bool(one) for one in given)
    return None if all(rotated) else rotated


def _windows(
    fields: Fields, family: Family, layers: int, rotated: tuple[bool, ...] | None
) -> tuple[int | None, tuple[bool, ...] | None]:
    """The window, and which layers have it (None: all)."""
    if fields.flag("use_bidirectional_attention"):
        raise UnsupportedError(f"{fields.where} use_bidirectional_attention is not supported")
    window = _window(fields, family)
    sliding = _layer_types(fields, layers)
    if sliding is None:
        sliding = _default_layers(fields, family, layers, rotated)
    elif any(sliding) and window is None:
        raise UnsupportedError(f"{fields.where} layer_types asks for {SLIDING} without a window")
    elif family.windows == "all" and window is not None and not all(sliding):
        raise UnsupportedError(
            f"{fields.where} layer_types is not supported with a sliding_window in this family, "
            "whose layers all have it"
        )
    if window is None or not any(sliding):
        return None, None
    return window, None if all(sliding) else sliding


def _window(fields: Fields, family: Family) -> int | None:
    asks = family.windows not in ("upper", "unrotated") or fields.flag("use_sliding_window")
    if family.windows == "none" or not asks:
        return None
    if "sliding_window" in fields.values:
        return fields.optional_integer("sliding_window", low=1)
    return family.window


def _layer_types(fields: Fields, layers: int) -> tuple[bool, ...] | None:
    given = fields.values.get("layer_types")
    if given is None:
        return None
    if not isinstance(given, list) or len(given) != layers:
        fields.refuse("layer_types", given, f"a list of {layers} kinds of attention")
    for kind in given:
        if kind not in (FULL, SLIDING):
            raise UnsupportedError(
                f"{fields.where} attention {shown(kind)} (layer_types) is not supported; "
                f"{FULL} and {SLIDING} are"
            )
    return tuple(kind == SLIDING for kind in given)


def _default_layers(
    fields: Fields, family: Family, layers: int, rotated: tuple[bool, ...] | None
) -> tuple[bool, ...]:
    match family.windows:
        case "pattern":
            pattern = family.pattern
            for key in ("sliding_window_pattern", "_sliding_window_pattern"):
                if family.qk_norm != "none":  # Gemma 2 alternates, whatever it says
                    pattern = fields.integer(key, pattern)
            return tuple((i + 1) % pattern != 0 for i in range(layers))
        case "upper":
            first = fields.integer("max_window_layers", 28, low=0)
            return tuple(i >= first for i in range(layers))
        case "unrotated":
            return tuple(not one for one in rotated or (True,) * layers)
    return (True,) * layers
