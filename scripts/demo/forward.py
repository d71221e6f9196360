"""The demo model's forward pass for training: causal attention over a whole crop, no cache.

A third of a step would go to `exp`, which MLX computes one number at a time on a CPU; `fast_exp`
compiles to vector instructions.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import mlx.core as mx
import numpy as np
from mlx import nn

from tinygpt.models.config import ModelConfig
from tinygpt.models.transformer import Transformer
from tinygpt.ops.rope import RopeConfig, rotate, rotation

Tensors = dict[str, mx.array]

DOCUMENT_START = 0  # a byte that occurs in no text
LOGITS_TOLERANCE = 1e-4  # fast_exp is right to 3e-5
CONFIG = ModelConfig(
    architecture="llama",
    vocab_size=256,
    layers=5,
    model_dim=256,
    mlp_dim=672,
    heads=4,
    kv_heads=2,
    head_dim=64,
    context=512,
    norm="rmsnorm",
    mlp="swiglu",
    attention_bias=False,
    mlp_bias=False,
    rope=RopeConfig(base=10000.0, dims=64),
)


def initial_weights(config: ModelConfig, seed: int) -> Tensors:
    """Normal with variance 1 / inputs, smaller where a layer ends in the residual stream."""
    mx.random.seed(seed)
    width, query = config.model_dim, config.heads * config.head_dim
    key = config.kv_heads * config.head_dim
    into_residual = (2 * config.layers) ** -0.5
    weights = {"token_embedding.weight": 0.02 * mx.random.normal((config.vocab_size, width))}
    for i in range(config.layers):
        for name, outputs, inputs, gain in (
            ("attn.q_proj", query, width, 1.0),
            ("attn.k_proj", key, width, 1.0),
            ("attn.v_proj", key, width, 1.0),
            ("attn.o_proj", width, query, into_residual),
            ("mlp.gate_proj", config.mlp_dim, width, 1.0),
            ("mlp.up_proj", config.mlp_dim, width, 1.0),
            ("mlp.down_proj", width, config.mlp_dim, into_residual),
        ):
            matrix = mx.random.normal((outputs, inputs)) * (gain * inputs**-0.5)
            weights[f"blocks.{i}.{name}.weight"] = matrix
        for name in ("ln1", "ln2"):
            weights[f"blocks.{i}.{name}.weight"] = mx.ones(width)
    weights["ln_final.weight"] = mx.ones(width)
    mx.eval(weights)
    return weights


def fast_exp(x: mx.array) -> mx.array:
    """exp(x), as (exp(x/256))²⁵⁶ with a polynomial; right to 3e-5 of its value for |x| ≤ 20."""
    r = mx.maximum(x, -60.0) * (1 / 256)
    y = 1 + r * (1 + r / 2 * (1 + r / 3 * (1 + r / 4 * (1 + r / 5))))
    for _ in range(8):
        y = y * y
    return y


def _sigmoid(x: mx.array) -> mx.array:
    return 1 / (1 + fast_exp(-mx.minimum(x, 60.0)))


@mx.custom_function
def silu(x: mx.array) -> mx.array:
    """`nn.silu` by `fast_exp`."""
    return x * _sigmoid(x)


@silu.vjp
def _silu_vjp(x: mx.array, cotangent: mx.array, out: mx.array) -> mx.array:
    gate = _sigmoid(x)
    return cotangent * (gate + out * (1 - gate))


@mx.custom_function
def softmax_where(scores: mx.array, keep: mx.array) -> mx.array:
    """Softmax over the last axis of the scores at which `keep` is 1, not 0, by `fast_exp`."""
    weights = fast_exp(scores - scores.max(axis=-1, keepdims=True)) * keep
    return weights / weights.sum(axis=-1, keepdims=True)


@softmax_where.vjp
def _softmax_where_vjp(
    primals: tuple[mx.array, mx.array], cotangent: mx.array, out: mx.array
) -> tuple[mx.array, mx.array]:
    weighted = cotangent * out
    return weighted - out * weighted.sum(axis=-1, keepdims=True), mx.zeros_like(primals[1])


def make_forward(config: ModelConfig, rows: int = 128) -> Callable[[Tensors, mx.array], mx.array]:
    """The function from weights and ids [B, T] to logits [B, T, V], T = `config.context`.

    Attention goes by `rows` queries at a time, which have only the keys up to the last of them.
    """
    length, heads, kv_heads, dim = config.context, config.heads, config.kv_heads, config.head_dim
    assert config.rope is not None
    rotary = rotation(config.rope, np.arange(length))
    causal = np.tril(np.ones((length, length), np.float32))
    # The query heads of one kv-head lie below each other.
    spans = {
        end: mx.array(np.tile(causal[end - rows : end, :end], (heads // kv_heads, 1)))
        for end in range(rows, length + 1, rows)
    }
    mx.eval(spans)

    def by_head(x: mx.array, count: int) -> mx.array:
        return x.reshape(*x.shape[:2], count, dim).swapaxes(1, 2)

    def attend(queries: mx.array, keys: mx.array, values: mx.array) -> mx.array:
        batch = queries.shape[0]
        grouped = (queries * dim**-0.5).reshape(batch, kv_heads, heads // kv_heads, length, dim)
        parts = []
        for end, keep in spans.items():
            rows_of_group = grouped[..., end - rows : end, :].reshape(batch, kv_heads, -1, dim)
            scores = rows_of_group @ keys[:, :, :end].swapaxes(2, 3)
            part = softmax_where(scores, keep) @ values[:, :, :end]
            parts.append(part.reshape(batch, heads, rows, dim))
        return mx.concatenate(parts, axis=2).swapaxes(1, 2).reshape(batch, length, heads * dim)

    def forward(weights: Tensors, ids: mx.array) -> mx.array:
        def linear(x: mx.array, name: str) -> mx.array:
            return x @ weights[f"{name}.weight"].T

        def norm(x: mx.array, name: str) -> mx.array:
            return mx.fast.rms_norm(x, weights[f"{name}.weight"], config.norm_eps)

        x = weights["token_embedding.weight"][ids]
        for i in range(config.layers):
            attn, mlp = f"blocks.{i}.attn", f"blocks.{i}.mlp"
            h = norm(x, f"blocks.{i}.ln1")
            queries = rotate(by_head(linear(h, f"{attn}.q_proj"), heads), rotary)
            keys = rotate(by_head(linear(h, f"{attn}.k_proj"), kv_heads), rotary)
            values = by_head(linear(h, f"{attn}.v_proj"), kv_heads)
            x = x + linear(attend(queries, keys, values), f"{attn}.o_proj")
            h = norm(x, f"blocks.{i}.ln2")
            gated = silu(linear(h, f"{mlp}.gate_proj")) * linear(h, f"{mlp}.up_proj")
            x = x + linear(gated, f"{mlp}.down_proj")
        return linear(norm(x, "ln_final"), "token_embedding")

    return forward


def check_forward(config: ModelConfig, weights: Tensors, texts: np.ndarray) -> float:
    """The largest difference of a logit to `Transformer`'s.

    Raises:
        RuntimeError: it is more than `LOGITS_TOLERANCE`.
    """
    ids, _ = with_start(texts[None, : config.context])
    theirs = Transformer(config, weights)(ids)
    worst = mx.abs(make_forward(config)(weights, ids) - theirs).max().item()
    if not worst <= LOGITS_TOLERANCE:
        raise RuntimeError(f"the training forward is off by {worst:.2g} from Transformer")
    return worst


def with_start(crops: np.ndarray) -> tuple[mx.array, mx.array]:
    """Inputs and targets of crops [B, T]: the inputs start with `DOCUMENT_START`."""
    starts = np.full_like(crops[:, :1], DOCUMENT_START)
    inputs = np.concatenate([starts, crops[:, :-1]], axis=1)
    return mx.array(inputs.astype(np.int32)), mx.array(crops.astype(np.int32))


def crops_at(text: np.ndarray, starts: np.ndarray, length: int) -> np.ndarray:
    """Rows of `length` bytes of `text` from each of `starts`."""
    return text[starts[:, None] + np.arange(length)]


def make_bits_per_byte(config: ModelConfig) -> Callable[[Tensors, np.ndarray, int], float]:
    """The function from weights, a text and a stride to the mean bits of a byte of the text.

    Windows of `config.context` start every `stride` bytes; a byte counts in the first that has it.
    """
    forward = make_forward(config)
    width = config.context

    @mx.compile
    def bits(weights: Tensors, inputs: mx.array, targets: mx.array) -> mx.array:
        logits = forward(weights, inputs)
        return nn.losses.cross_entropy(logits, targets, reduction="none") / math.log(2)

    def bits_per_byte(weights: Tensors, text: np.ndarray, stride: int) -> float:
        starts = [*range(0, len(text) - width, stride), len(text) - width]
        counted, total = 0, 0.0
        for at in range(0, len(starts), 8):
            chosen = np.array(starts[at : at + 8])
            values = np.array(bits(weights, *with_start(crops_at(text, chosen, width))))
            for start, row in zip(chosen.tolist(), values, strict=True):
                total += float(row[counted - start :].sum())
                counted = start + width
        return total / counted

    return bits_per_byte
