"""mlx-lm's own caches on our weights, for a comparison in one process. Needs mlx-lm to run.

Its llama class gets the arrays of our model, so both compute from the same numbers in one type.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import import_module, util
from typing import Any

import mlx.core as mx
import numpy as np

from tinygpt.cache import CacheSpec
from tinygpt.errors import ConfigError, UnsupportedError
from tinygpt.evaluate.bench import Program, Timing, timed
from tinygpt.evaluate.quality import Candidate, Runner
from tinygpt.models.config import SIZES, ModelConfig
from tinygpt.models.transformer import Transformer
from tinygpt.ops.rope import RopeConfig

GROUP = 64  # mlx-lm's default --kv-group-size
KEPT = 4  # sinks that its rotating cache has, whatever is asked
BITS = (2, 3, 4, 8)
_LLAMA = (
    "architecture",
    *SIZES,
    "norm_eps",
    "attention_bias",
    "mlp_bias",
    "tie_embeddings",
)
_LINEAR = {
    "attn.q_proj": "self_attn.q_proj",
    "attn.k_proj": "self_attn.k_proj",
    "attn.v_proj": "self_attn.v_proj",
    "attn.o_proj": "self_attn.o_proj",
    "mlp.gate_proj": "mlp.gate_proj",
    "mlp.up_proj": "mlp.up_proj",
    "mlp.down_proj": "mlp.down_proj",
    "ln1": "input_layernorm",
    "ln2": "post_attention_layernorm",
}
_OUTER = {
    "token_embedding": "model.embed_tokens",
    "ln_final": "model.norm",
    "lm_head": "lm_head",
}


class MlxLm:
    """mlx-lm's model over the weights of ours.

    Raises:
        ConfigError: mlx-lm is not installed, or the weights are packed.
        UnsupportedError: a family that its llama class does not compute.
    """

    def __init__(self, model: Transformer) -> None:
        if util.find_spec("mlx_lm") is None:
            raise ConfigError(
                "--versus mlx-lm: mlx-lm is not installed; pip install mlx-lm (Python 3.11 or "
                "newer), or leave --versus out"
            )
        _check_family(model.config)
        llama = import_module("mlx_lm.models.llama")
        self.model: Any = llama.Model(llama.ModelArgs(**_arguments(model.config)))
        self.model.load_weights(_renamed(model), strict=True)
        self._kv_heads, self._head_dim = model.config.kv_heads, model.config.head_dim

    def refuses(self, spec: CacheSpec) -> str | None:
        """Why mlx-lm has no such cache; None if it has one."""
        if spec.bits is not None and spec.window is not None:
            return "cannot quantise a bounded cache"
        if spec.bits is not None and (spec.bits not in BITS or self.group(spec) is None):
            return f"has no {spec.bits}-bit cache for this head_dim"
        if spec.window is not None and spec.sinks != KEPT:
            return f"always keeps {KEPT} sinks"
        if spec.precision in ("fp16", "bf16", "fp32"):
            return "stores the compute type or quantises"
        return None

    def caches(self, spec: CacheSpec) -> list[Any]:
        """One empty cache a layer, as its `make_prompt_cache` and `--kv-bits` give them."""
        cache = import_module("mlx_lm.models.cache")
        layers = range(len(self.model.layers))
        if spec.bits is not None:
            return [
                cache.QuantizedKVCache(group_size=self.group(spec), bits=spec.bits) for _ in layers
            ]
        if spec.held is not None:  # its make_prompt_cache forgets max_kv_size for llama models
            return [cache.RotatingKVCache(spec.held, keep=KEPT) for _ in layers]
        return list(cache.make_prompt_cache(self.model))

    def candidate(self, name: str, spec: CacheSpec) -> Candidate:
        """mlx-lm's counterpart of the cache `spec`, called `mlx-lm name`."""
        limit = None if spec.held else self.context
        return Candidate(f"mlx-lm {name}", lambda tokens, chunk: self.runner(spec), limit)

    @property
    def context(self) -> int:
        """Tokens the model was made for."""
        return int(self.model.args.max_position_embeddings)

    def runner(self, spec: CacheSpec) -> Runner:
        """A `Runner` over fresh caches."""
        return MlxLmFeed(self.model, self.caches(spec))

    def program(self, spec: CacheSpec) -> Program:
        """A `Program` that generates with the cache `spec`."""
        return MlxLmProgram(self, spec)

    def group(self, spec: CacheSpec) -> int | None:
        """Its default group, or a smaller one where head_dim needs it."""
        return next((g for g in (GROUP, 32) if self._head_dim % g == 0), None)


@dataclass(slots=True)
class MlxLmFeed:
    """A `Runner` over mlx-lm's caches."""

    model: Any
    caches: list[Any]
    texts: int = 1

    def feed(self, rows: Sequence[Sequence[int]]) -> list[mx.array]:
        """See `Runner`. A text that has ended gets zeros, which no token before them sees."""
        self.texts = len(rows)
        ids = np.zeros((len(rows), max(map(len, rows))), np.int32)
        for row, own in enumerate(rows):
            ids[row, : len(own)] = own
        logits: mx.array = self.model(mx.array(ids), cache=self.caches).astype(mx.float32)
        mx.eval(logits, [cache.state for cache in self.caches])
        return [logits[row, : len(own)] for row, own in enumerate(rows)]

    @property
    def nbytes(self) -> int:
        """What its buffers take, used or not."""
        return sum(array.nbytes for cache in self.caches for array in _buffers(cache))

    @property
    def row_bytes(self) -> list[int]:
        """See `Runner`."""
        return [self.nbytes // self.texts] * self.texts


@dataclass(frozen=True, slots=True)
class MlxLmProgram:
    """A `Program`: mlx-lm's own generation loop with its own defaults, greedy."""

    peer: MlxLm
    spec: CacheSpec

    def run(self, ids: Sequence[int], tokens: int) -> Timing:
        """See `Program`."""
        step = import_module("mlx_lm.generate").generate_step
        feed = MlxLmFeed(self.peer.model, self.peer.caches(self.spec))
        prompt = mx.array(list(ids))
        return timed(
            lambda: step(prompt, feed.model, max_tokens=tokens, prompt_cache=feed.caches),
            lambda: feed.nbytes,
            tokens,
        )


def _buffers(cache: Any) -> list[mx.array]:
    flat: list[mx.array] = []
    for part in (cache.keys, cache.values):
        flat += [] if part is None else [part] if isinstance(part, mx.array) else list(part)
    return flat


def _check_family(config: ModelConfig) -> None:
    """Raise UnsupportedError for whatever a plain llama does not have, also what comes later."""
    rope = config.rope
    if rope is not None and config.has_output_bias == config.attention_bias:
        same = {name: getattr(config, name) for name in _LLAMA}
        rope = RopeConfig(rope.base, config.head_dim, rope.traditional)
        plain = ModelConfig(**same, norm="rmsnorm", mlp="swiglu", rope=rope)
        if replace(config, output_bias=None) == plain:
            return
    raise UnsupportedError(
        f"--versus mlx-lm: its llama class does not compute this {config.architecture} model; "
        "leave --versus out"
    )


def _arguments(config: ModelConfig) -> dict[str, object]:
    assert config.rope is not None
    return {
        "model_type": "llama",
        "hidden_size": config.model_dim,
        "num_hidden_layers": config.layers,
        "intermediate_size": config.mlp_dim,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.context,
        "rms_norm_eps": config.norm_eps,
        "vocab_size": config.vocab_size,
        "attention_bias": config.attention_bias,
        "mlp_bias": config.mlp_bias,
        "rope_theta": config.rope.base,
        "rope_traditional": config.rope.traditional,
        "tie_word_embeddings": config.tie_embeddings,
    }


def _renamed(model: Transformer) -> list[tuple[str, mx.array]]:
    """Our parameters under mlx-lm's names; the arrays are shared."""
    from mlx.utils import tree_flatten

    renamed = []
    parameters: Any = tree_flatten(model.parameters())
    for name, array in parameters:
        if name.endswith(".scales"):
            raise ConfigError("--versus mlx-lm needs float weights; give --weights-dtype fp32")
        stem, _, last = name.rpartition(".")
        if stem.startswith("blocks."):
            _, layer, part = stem.split(".", 2)
            stem = f"model.layers.{layer}.{_LINEAR[part]}"
        else:
            stem = _OUTER[stem]
        renamed.append((f"{stem}.{last}", array))
    return renamed
