"""The `config` object of a `.tinygpt` header and `ModelConfig`, in both directions.

The keys of the classic model have names and defaults of their own. Every other field of ModelConfig
is an extension key: old readers ignore it, a file of a classic model has none, and one that has the
field's default is left out.
"""

from __future__ import annotations

import dataclasses
import typing
from pathlib import Path

from tinygpt.errors import UnsupportedError
from tinygpt.io.checkpoint import checked_config, shown
from tinygpt.io.json_fields import Fields
from tinygpt.io.tinygpt.record import camel_case, from_json, to_json
from tinygpt.models.config import ModelConfig

ARCHITECTURE = "tinygpt"
ARCHITECTURES = (  # of models that ModelConfig describes in full
    ARCHITECTURE,
    "llama",
    "mistral",
    "smollm3",
    "qwen2",
    "qwen3",
    "phi3",
    "gemma",
    "gemma2",
    "gemma3",
    "gemma3_text",
    "olmo2",
)
_SIZES = {  # key: field, default of the format
    "vocabSize": ("vocab_size", 256),
    "ctx": ("context", 256),
    "layers": ("layers", 12),
    "heads": ("heads", 8),
    "dModel": ("model_dim", 256),
    "dMlp": ("mlp_dim", 1024),
}
_FLAGS = {"useDeepNorm": "deepnorm", "useEmbeddingRMSNorm": "embedding_norm"}
_WINDOW = "slidingWindow"
_SHORT = {"attention_bias": "attnBias", "tie_embeddings": "tieEmbeddings"}
_CLASSIC = {field for field, _ in _SIZES.values()} | set(_FLAGS.values()) | {"sliding_window"}
EXTENSION = {  # field: key
    field.name: _SHORT.get(field.name, camel_case(field.name))
    for field in dataclasses.fields(ModelConfig)
    if field.name not in _CLASSIC
}
_UNSUPPORTED_FLAGS = {
    "useMoD": "mixture of depths",
    "useDifferentialAttention": "differential attention",
    "useYOCO": "YOCO layers",
}
_HINTS = ("kviBits", "streamingSink", "streamingWindow")
_POSITIVE = {"normEps", "embeddingScale", "attentionScale", "attentionSoftcap", "logitSoftcap"}


def config_to_json(config: ModelConfig) -> dict[str, object]:
    """The header's `config` object; that of a classic model has no extension key."""
    values: dict[str, object] = {key: getattr(config, field) for key, (field, _) in _SIZES.items()}
    values |= {key: True for key, field in _FLAGS.items() if getattr(config, field)}
    if config.sliding_window is not None:
        values[_WINDOW] = config.sliding_window
    defaults = _extension_defaults(config.model_dim, config.heads)
    # A classic model says that it is untied by its lm_head alone.
    extended = {
        key: to_json(getattr(config, field))
        for field, key in EXTENSION.items()
        if getattr(config, field) != defaults[field] and field != "tie_embeddings"
    }
    if extended and not config.tie_embeddings:
        extended[EXTENSION["tie_embeddings"]] = False
    return values | extended


def config_from_json(path: Path, fields: Fields, untied: bool) -> ModelConfig:
    """The configuration; `untied` says whether the manifest has an `lm_head.weight`.

    Raises:
        CheckpointError: a field that is wrong, by its name.
        UnsupportedError: a kind of model that this version does not read, by its name.
    """
    _refuse_unsupported(path, fields)
    values: dict[str, object] = {
        field: fields.integer(key, default) for key, (field, default) in _SIZES.items()
    }
    values |= {field: fields.flag(key) for key, field in _FLAGS.items()}
    values["sliding_window"] = _sliding_window(fields)
    dim, heads = fields.integer("dModel", 256), fields.integer("heads", 8)
    if fields.values.get("headDim") is None and dim % heads:
        fields.refuse("heads", heads, f"a divisor of dModel {dim}")
    values |= _extension_defaults(dim, heads) | {"tie_embeddings": not untied}
    hints = typing.get_type_hints(ModelConfig)
    for field, key in EXTENSION.items():
        value = fields.values.get(key)
        if value is not None:
            values[field] = from_json(fields, key, hints[field], value)
    for key in _POSITIVE & set(fields.values):
        value = fields.values[key]
        if isinstance(value, (int, float)) and value <= 0:
            fields.refuse(key, value, "a positive number")
    return checked_config(path, **values)


def _extension_defaults(dim: int, heads: int) -> dict[str, object]:
    """What an extension field is where its key is absent."""
    defaults = {
        field.name: field.default
        for field in dataclasses.fields(ModelConfig)
        if field.name in EXTENSION
    }
    missing = [name for name, value in defaults.items() if value is dataclasses.MISSING]
    own = {"architecture": ARCHITECTURE, "kv_heads": heads, "head_dim": dim // heads}
    assert set(missing) == set(own), "a required field of ModelConfig needs a default here"
    return defaults | own


def _refuse_unsupported(path: Path, fields: Fields) -> None:
    architecture = fields.text("architecture")
    if architecture is not None and architecture not in ARCHITECTURES:
        raise UnsupportedError(
            f"{path}: config architecture is {shown(architecture)}, this version reads "
            + ", ".join(ARCHITECTURES)
        )
    if fields.integer("nExperts", 1) > 1:
        raise UnsupportedError(f"{path}: mixture of experts (config nExperts) is not supported yet")
    for key, name in _UNSUPPORTED_FLAGS.items():
        if fields.flag(key):
            raise UnsupportedError(f"{path}: {name} (config {key}) is not supported yet")


def _sliding_window(fields: Fields) -> int | None:
    value = fields.values.get(_WINDOW)
    if value is None or value is False or (type(value) is int and value == 0):
        return None
    return fields.integer(_WINDOW)


def cache_hints(fields: Fields) -> dict[str, int]:
    """The cache settings that the file recommends, those it gives."""
    hints = {}
    for key in _HINTS:
        value = fields.optional_integer(key)
        if value is not None:
            hints[key] = value
    if hints.get("kviBits", 8) not in (4, 8):
        fields.refuse("kviBits", hints["kviBits"], "4 or 8")
    return hints
