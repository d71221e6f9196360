"""Gemma 3 270M, a real second family: one kv-head, windows of its own, K-quants, SentencePiece.

It is fetched on first use, 240 MB, under the Gemma Terms of Use; see scripts/fetch/gemma.sh.
"""

from __future__ import annotations

import dataclasses
import math
import os
import random
import subprocess
import sys
import warnings
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from oracles import gguf_spm
from tinygpt.cache import CacheSpec, KVCache
from tinygpt.generate import Generation
from tinygpt.io.checkpoint import Checkpoint, read_weights
from tinygpt.io.load import load_model, open_checkpoint
from tinygpt.models.transformer import Transformer
from tinygpt.tokenizer import HFTokenizer

pytestmark = pytest.mark.real

ROOT = Path(__file__).parents[3]
NAME = "gemma-3-270m-q4_k_m.gguf"
FETCH_SECONDS = 900
PROMPT, ANSWER = "Paris is the capital of", " France and is the most visited city in the world."
# The id of each piece, read off the vocabulary; 2 is <bos>
IDS = [2, 50429, 563, 506, 5279, 529]
POSITIONS = [0, 1, 20, 60, 511, 512, 600]  # the window is 512
LENGTH = 601
# two float32 forwards of 18 layers; logits reach 44
LOGIT_TOLERANCE = 5e-4
KL_INT8 = 5e-4  # mean divergence that 8 bits of keys and values make: measured 6e-5
ROUNDS = 200


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    given = os.environ.get("TINYGPT_GEMMA")
    path = Path(given) if given else ROOT / ".cache" / "models" / NAME
    if not path.is_file():
        command = [str(ROOT / "scripts" / "fetch" / "gemma.sh"), sys.executable]
        try:
            subprocess.run(command, check=True, timeout=FETCH_SECONDS, capture_output=True)
        except (OSError, subprocess.SubprocessError) as error:
            reason = f"{NAME} could not be fetched by scripts/fetch/gemma.sh: {error}"
            warnings.warn(f"Gemma is NOT tested: {reason}", stacklevel=1)
            pytest.skip(reason)
    return open_checkpoint(path)


@pytest.fixture(scope="module")
def tokenizer(checkpoint: Checkpoint) -> HFTokenizer:
    return checkpoint.read_tokenizer(None)


@pytest.fixture(scope="module")
def model(checkpoint: Checkpoint) -> Transformer:
    return load_model(checkpoint, "fp32")


@pytest.fixture(scope="module")
def text_ids(tokenizer: HFTokenizer) -> list[int]:
    """English that no model was trained on: this project's own source."""
    source = ROOT / "src" / "tinygpt" / "cache"
    text = "\n".join(path.read_text() for path in sorted(source.rglob("*.py")))
    return tokenizer.encode(text)[:LENGTH]


def test_it_reads_as_its_published_configuration(checkpoint: Checkpoint) -> None:
    config = checkpoint.config
    assert (config.layers, config.heads, config.kv_heads, config.head_dim) == (18, 4, 1, 256)
    assert (config.model_dim, config.mlp_dim, config.vocab_size) == (640, 2048, 262144)
    windows = [config.layer_window(layer) for layer in range(18)]
    assert windows == [512, 512, 512, 512, 512, None] * 3
    ropes = [config.layer_rope(layer) for layer in range(18)]
    assert [rope.base for rope in ropes if rope] == [1e4, 1e4, 1e4, 1e4, 1e4, 1e6] * 3
    assert {info.dtype for info in checkpoint.tensors} == {"f32", "q4_k", "q5_0", "q6_k", "q8_0"}
    assert checkpoint.stored_dtype == "bf16"


def test_its_tokenizer_is_its_vocabulary(tokenizer: HFTokenizer) -> None:
    assert tokenizer.encode(PROMPT) == IDS
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<bos>", "<eos>")
    assert tokenizer.eos_ids == {1, 106}  # <eos>, <end_of_turn>
    assert tokenizer.chat_template is None


@pytest.mark.parametrize("text", ["  two\n\n\n  <b>x</b> ", "Grüße 🙂 日本語\0", "\t\t12345 ..."])
def test_it_gives_any_text_back(tokenizer: HFTokenizer, text: str) -> None:
    ids = tokenizer.encode_plain(text)
    assert b"".join(map(tokenizer.token_bytes, ids)) == text.encode()
    assert tokenizer.decode(ids) == text


def test_its_segments_are_those_of_llama_cpp(
    checkpoint: Checkpoint, tokenizer: HFTokenizer
) -> None:
    keys = ("tokens", "scores", "token_type")
    tokens, scores, types = (checkpoint.metadata[f"tokenizer.ggml.{key}"] for key in keys)
    rng = random.Random(1)
    picked = (rng.choices(tokens[300:], k=rng.randint(1, 12)) for _ in range(ROUNDS))
    text = "\n".join("".join(pieces).replace("\u2581", " ") for pieces in picked)
    expected = gguf_spm.encode(text, tokens, scores, types, prefix=False)
    assert tokenizer.encode_plain(text) == expected


@pytest.mark.parametrize(
    "spec",
    [CacheSpec(), CacheSpec("int8"), CacheSpec("int8", sink=4, window=64)],
    ids=["full", "int8", "int8, bounded"],
)
def test_greedy_tokens_are_the_documented_ones(
    model: Transformer, tokenizer: HFTokenizer, spec: CacheSpec
) -> None:
    cache = KVCache(spec, model.cache_layout())
    ids = tokenizer.encode(PROMPT)
    generated = list(Generation(model, cache, ids, mx.argmax, tokens=11, stop_ids=frozenset()))  # type: ignore[arg-type]
    assert tokenizer.decode(generated) == ANSWER


def test_a_bounded_int8_cache_works_beside_the_windows_of_the_layers(
    model: Transformer, text_ids: list[int]
) -> None:
    """S + W = 260 < 512: the layers' own windows never bind. S + W = 580: they do, on 15 of 18."""
    for window in (256, 576):
        spec = CacheSpec("int8", sink=4, window=window)
        cache, sizes = KVCache(spec, model.cache_layout()), []
        for at in range(0, LENGTH, 100):
            logits = model(mx.array([text_ids[at : at + 100]]), cache, last=1)
            assert mx.isfinite(logits).all()
            sizes.append(cache.nbytes)
        assert cache.held == min(LENGTH, spec.held)
        if window == 256:
            assert len(set(sizes[3:])) == 1, f"bytes are not flat once it is full: {sizes}"


def test_int8_stays_near_the_full_cache(model: Transformer, text_ids: list[int]) -> None:
    def log_probabilities(spec: CacheSpec) -> np.ndarray:
        cache = KVCache(spec, model.cache_layout())
        logits = model(mx.array([text_ids[:560]]), cache, last=48)[0]
        return np.array(logits - mx.logsumexp(logits, axis=-1, keepdims=True), np.float64)

    full, packed = log_probabilities(CacheSpec()), log_probabilities(CacheSpec("int8"))
    divergence = (np.exp(full) * (full - packed)).sum(axis=-1).mean()
    assert divergence < KL_INT8


def test_logits_equal_those_of_mlx_lm(
    checkpoint: Checkpoint, model: Transformer, text_ids: list[int]
) -> None:
    """Its code rounds the embedding scale to bfloat16, so ours is given the same one here."""
    gemma3 = pytest.importorskip("mlx_lm.models.gemma3_text", reason="mlx-lm is the oracle")
    weights = read_weights(checkpoint, "fp32")
    theirs = _mlx_lm_model(gemma3, weights)
    scale = float(mx.array(math.sqrt(640), mx.bfloat16).item())
    ours = Transformer(dataclasses.replace(checkpoint.config, embedding_scale=scale), weights)
    ids = mx.array([text_ids])
    hidden = theirs.model(ids)[:, POSITIONS]
    head = theirs.model.embed_tokens.as_linear if theirs.tie_word_embeddings else theirs.lm_head
    expected = np.array(head(hidden)[0])
    cache, seen = KVCache(CacheSpec(), ours.cache_layout()), 0
    for row, position in enumerate(POSITIONS):
        got = np.array(ours(ids[:, seen : position + 1], cache, last=1)[0, 0])
        seen = position + 1
        difference = np.abs(got - expected[row]).max()
        assert difference < LOGIT_TOLERANCE, f"position {position}: {difference}"


def _mlx_lm_model(gemma3, weights: dict[str, mx.array]):  # type: ignore[no-untyped-def]
    """mlx-lm's class with our weights under its names; it adds the 1 to norms itself."""
    model = gemma3.Model(
        gemma3.ModelArgs(
            model_type="gemma3_text",
            hidden_size=640,
            num_hidden_layers=18,
            intermediate_size=2048,
            num_attention_heads=4,
            num_key_value_heads=1,
            head_dim=256,
            rms_norm_eps=1e-6,
            vocab_size=262144,
            rope_theta=1e6,
            rope_local_base_freq=1e4,
            query_pre_attn_scalar=256,
            sliding_window=512,
            sliding_window_pattern=6,
        )
    )
    parts = {
        "token_embedding": "model.embed_tokens",
        "ln_final": "model.norm",
        "ln1": "input_layernorm",
        "ln1_post": "post_attention_layernorm",
        "ln2": "pre_feedforward_layernorm",
        "ln2_post": "post_feedforward_layernorm",
        "attn": "self_attn",
        "mlp": "mlp",
    }
    renamed = {}
    for name, array in weights.items():
        first, *rest = name.removeprefix("blocks.").split(".")
        if name.startswith("blocks."):
            first, rest = f"model.layers.{first}.{parts[rest[0]]}", rest[1:]
        else:
            first = parts[first]
        target = ".".join([first, *rest])
        renamed[target] = array - 1 if "norm" in target else array
    if not model.tie_word_embeddings:
        renamed["lm_head.weight"] = weights["token_embedding.weight"]
    model.load_weights(list(renamed.items()))
    return model
