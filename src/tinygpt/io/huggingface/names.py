"""Where each tensor of our model lies in a Hugging Face directory: file names and fused rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tinygpt.errors import CheckpointError
from tinygpt.io.checkpoint import shown
from tinygpt.io.huggingface.families import Family
from tinygpt.io.huggingface.safetensors_file import StoredTensor
from tinygpt.models.config import ModelConfig

_GLOBAL = {"token_embedding": "model.embed_tokens", "ln_final": "model.norm", "lm_head": "lm_head"}
_BLOCK = {"attn": "self_attn", "mlp": "mlp"}
_NORMS = {
    "pre": {"ln1": "input_layernorm", "ln2": "post_attention_layernorm"},
    "post": {"ln1_post": "post_attention_layernorm", "ln2_post": "post_feedforward_layernorm"},
    "sandwich": {
        "ln1": "input_layernorm",
        "ln1_post": "post_attention_layernorm",
        "ln2": "pre_feedforward_layernorm",
        "ln2_post": "post_feedforward_layernorm",
    },
}
_TEXT_PREFIXES = {"language_model.": "", "model.language_model.": "model."}
_OTHER_PARTS = ("vision_tower.", "multi_modal_projector.")
_REPEATED = "rotary_emb.inv_freq"  # frequencies that old files store with the weights


@dataclass(frozen=True, slots=True)
class Place:
    """`rows` rows from `start` on of the module `stem`, which has `total` rows."""

    stem: str
    kind: str  # weight or bias
    start: int
    rows: int
    total: int


def place_of(name: str, rows: int, config: ModelConfig, family: Family) -> Place:
    """Where the tensor of the canonical `name`, of `rows` rows, lies."""
    stem, _, kind = name.rpartition(".")
    if stem in _GLOBAL:
        return Place(_GLOBAL[stem], kind, 0, rows, rows)
    _, layer, *parts = stem.split(".")
    block = f"model.layers.{layer}"
    if len(parts) == 1:
        return Place(f"{block}.{_NORMS[family.block_norms][parts[0]]}", kind, 0, rows, rows)
    part, module = parts
    if family.fused:
        for fused, members in _fused(config).items():
            if module in members:
                before = list(members)[: list(members).index(module)]
                start = sum(members[other] for other in before)
                total = sum(members.values())
                return Place(f"{block}.{_BLOCK[part]}.{fused}", kind, start, rows, total)
    return Place(f"{block}.{_BLOCK[part]}.{module}", kind, 0, rows, rows)


def _fused(config: ModelConfig) -> dict[str, dict[str, int]]:
    """Rows of the members of each fused projection, in their order."""
    keys = config.kv_heads * config.head_dim
    return {
        "qkv_proj": {"q_proj": config.heads * config.head_dim, "k_proj": keys, "v_proj": keys},
        "gate_up_proj": {"gate_proj": config.mlp_dim, "up_proj": config.mlp_dim},
    }


def text_tensors(
    path: Path, stored: Mapping[str, StoredTensor], *, wrapped: bool
) -> dict[str, StoredTensor]:
    """The text model's tensors under the names they have in a text model's own file.

    Raises:
        CheckpointError: a model that also sees has no text weights where they should be.
    """
    named: dict[str, StoredTensor] = {}
    for name, tensor in stored.items():
        if name.endswith(_REPEATED):
            continue
        own = _unwrapped(name) if wrapped else name
        if own is None:
            continue
        if own in named:
            raise CheckpointError(
                f"{tensor.file}: tensor {shown(name)} is also there as {shown(named[own].name)}"
            )
        named[own] = tensor
    if wrapped and not any(name.startswith("model.layers.") for name in named):
        raise CheckpointError(f"{path}: holds no tensors of a text model under language_model.")
    return named


def _unwrapped(name: str) -> str | None:
    """None for what is not of the text model."""
    if name.removeprefix("model.").startswith(_OTHER_PARTS):
        return None
    for prefix, own in _TEXT_PREFIXES.items():
        if name.startswith(prefix):
            return own + name.removeprefix(prefix)
    return name
