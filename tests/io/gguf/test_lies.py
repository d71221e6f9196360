"""A GGUF file that says what is not true is refused in one line, at no cost, before MLX sees it."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from oracles import gguf_converter, hf_writer
from oracles import gguf_writer as writer
from oracles.gguf_writer import Llama, Tensor
from oracles.hf_writer import CONFIGS
from tinygpt.errors import CheckpointError, UnsupportedError
from tinygpt.io.load import open_checkpoint

MODEL = Llama()
WEIGHTS = writer.llama_weights(MODEL)
GEMMA_WEIGHTS = hf_writer.random_tensors(CONFIGS["gemma3_text"])
HUGE = 2**63


def tensors() -> list[Tensor]:
    return writer.llama_tensors(MODEL, WEIGHTS, {"blocks.0.mlp.down_proj.weight": "Q4_1"})


def find(name: str, found: list[Tensor]) -> Tensor:
    return next(tensor for tensor in found if tensor.name == name)


def keys(**values: object) -> bytes:
    """An honest file but for some `llama.*` keys; None removes one. "__" stands for a dot."""
    metadata = writer.llama_metadata(MODEL)
    for name, value in values.items():
        key = "llama." + name.replace("__", ".")
        metadata.pop(key, None)
        if value is not None:
            metadata[key] = value
    return writer.encode(metadata, tensors())


def top(key: str, value: tuple[str, object] | None) -> bytes:
    metadata = writer.llama_metadata(MODEL)
    metadata.pop(key, None)
    if value is not None:
        metadata[key] = value
    return writer.encode(metadata, tensors())


def tensor(name: str, **values: object) -> bytes:
    """An honest file but for what it says of one tensor."""
    found = tensors()
    for field, value in values.items():
        setattr(find(name, found), field, value)
    return writer.encode(writer.llama_metadata(MODEL), found)


def more(extra: Tensor) -> bytes:
    return writer.encode(writer.llama_metadata(MODEL), [*tensors(), extra])


def without(name: str) -> bytes:
    kept = [each for each in tensors() if each.name != name]
    return writer.encode(writer.llama_metadata(MODEL), kept)


def raw(*parts: bytes, tensor_count: int = 0, key_count: int = 1) -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", 3, tensor_count, key_count)
    return head + b"".join(parts) + b"\0" * 64


def array(kind: int, count: int) -> bytes:
    return struct.pack("<IIQ", 9, kind, count)


def honest(**counts: int) -> bytes:
    return writer.encode(writer.llama_metadata(MODEL), tensors(), **counts)


def with_divisors(count: int = 8, value: float = 1.0, kind: int = 0, **values: object) -> bytes:
    """An honest file with rope_freqs.weight, which has as many values as head_dim / 2."""
    metadata = writer.llama_metadata(MODEL)
    metadata |= {"llama." + name.replace("__", "."): item for name, item in values.items()}
    data = struct.pack(f"<{count}f", *[value] * count)
    divisors = Tensor("rope_freqs.weight", (count,), kind, data)
    return writer.encode(metadata, [*tensors(), divisors])


def gemma(**values: object) -> bytes:
    """An honest gemma3 file of four layers but for some keys."""
    config = CONFIGS["gemma3_text"]
    metadata = gguf_converter.metadata(config)
    for name, item in values.items():
        metadata["gemma3." + name.replace("__", ".")] = item
    return writer.encode(metadata, gguf_converter.tensors(config, GEMMA_WEIGHTS))


def phi3(*, drop: str = "", rows: int = 0) -> bytes:
    """An honest phi3 file but for a tensor dropped, or one too tall."""
    config = CONFIGS["phi3"]
    weights = dict(hf_writer.random_tensors(config))
    if rows:
        name = "model.layers.0.self_attn.qkv_proj.weight"
        weights[name] = np.ones((rows, 128), np.float32)
    made = [t for t in gguf_converter.tensors(config, weights) if t.name != drop]
    return writer.encode(gguf_converter.metadata(config), made)


NORM = "output_norm.weight"
LIES: dict[str, tuple[Callable[[], bytes], str]] = {
    # the container
    "magic alone": (lambda: b"GGUF", "version"),
    "cut in the counts": (lambda: honest()[:20], "count"),
    "cut in the metadata": (lambda: honest()[:3000], "bytes follow"),
    "cut in the tensor list": (lambda: honest()[: honest().index(b"output_norm") + 4], "past"),
    "cut by one byte": (lambda: honest()[:-33], "past the end"),
    "huge tensor count": (lambda: honest(tensor_count=HUGE), "tensor count"),
    "tensor count one too many": (lambda: honest(tensor_count=len(tensors()) + 1), "m.gguf"),
    "huge key count": (lambda: honest(key_count=2**64 - 1), "key count"),
    "key count one too many": (lambda: honest(key_count=19), "m.gguf"),
    "huge key length": (lambda: raw(struct.pack("<Q", HUGE) + b"k"), "length|takes"),
    "key that is not UTF-8": (lambda: raw(writer.string(b"\xff\xfe") + b"\0" * 8), "UTF-8"),
    "huge string": (lambda: raw(writer.string("k"), struct.pack("<IQ", 8, HUGE)), "past the end"),
    "unknown value type": (lambda: raw(writer.string("k"), struct.pack("<I", 13)), "type 13"),
    "boolean of 2": (lambda: raw(writer.string("k"), struct.pack("<IB", 7, 2)), "boolean"),
    "huge array": (lambda: raw(writer.string("k"), array(4, 2**61)), "items"),
    "array larger than the file": (lambda: raw(writer.string("k"), array(4, 60)), "past the end"),
    "huge array of strings": (lambda: raw(writer.string("k"), array(8, 2**60)), "items"),
    "array of unknown type": (lambda: raw(writer.string("k"), array(77, 1)), "type 77"),
    "arrays nested without end": (
        lambda: raw(writer.string("k"), struct.pack("<I", 9), struct.pack("<IQ", 9, 1) * 5000),
        "deep",
    ),
    "a key twice": (
        lambda: writer.encode([("a", ("u8", 1)), ("a", ("u8", 2))], []),
        "twice",
    ),
    "alignment 0": (lambda: top("general.alignment", ("u32", 0)), "alignment is 0"),
    "alignment 24": (lambda: top("general.alignment", ("u32", 24)), "alignment is 24"),
    "alignment huge": (lambda: top("general.alignment", ("u32", 2**31)), "alignment"),
    "alignment as text": (lambda: top("general.alignment", ("str", "32")), "alignment"),
    # what it says of tensors
    "no dimensions": (lambda: tensor(NORM, extents=()), "0 dimensions"),
    "five dimensions": (lambda: tensor(NORM, extents=(64, 1, 1, 1, 1)), "5 dimensions"),
    "zero extent": (lambda: tensor(NORM, extents=(0,)), "output_norm"),
    "huge extent": (lambda: tensor(NORM, extents=(2**62,)), "past the end"),
    "product that overflows": (lambda: tensor(NORM, extents=(2**32, 2**32)), "past the end"),
    "larger than the file": (lambda: tensor("token_embd.weight", extents=(64, 10**6)), "past"),
    "huge offset": (lambda: tensor(NORM, offset=2**63), "past the end"),
    "offset that wraps": (lambda: tensor(NORM, offset=2**64 - 32), "past the end"),
    "offset off the alignment": (lambda: tensor(NORM, offset=4), "multiple of 32"),
    "overlap": (lambda: tensor(NORM, offset=0), "inside tensor"),
    "a tensor twice": (lambda: more(find(NORM, tensors())), "twice"),
    "rows that are no blocks of 256": (
        lambda: tensor("blk.0.ffn_down.weight", type=12), "Q4_K needs a multiple of 256"),
    "rows that are no blocks": (
        lambda: tensor("blk.0.ffn_down.weight", extents=(48, 128)), "multiple of 32"),
    "tensor name not UTF-8": (
        lambda: honest().replace(b"output_norm", b"outp\xff\xfe_norm"[:11], 1), "UTF-8"),
    "packed norm": (
        lambda: tensor(NORM, type=8, extents=(64,)), "output_norm"),
    # what it says of the model
    "architecture missing": (lambda: top("general.architecture", None), "general.architecture"),
    "architecture as number": (lambda: top("general.architecture", ("u8", 1)), "architecture"),
    "no layers": (lambda: keys(block_count=("u32", 0)), "block_count is 0"),
    "huge layers": (lambda: keys(block_count=("u32", 2**31 - 1)), "block_count"),
    "layers past 31 bits": (lambda: keys(block_count=("u64", 2**40)), "block_count"),
    "layers as text": (lambda: keys(block_count=("str", "2")), "block_count is '2'"),
    "layers as boolean": (lambda: keys(block_count=("bool", 1)), "block_count is True"),
    "layers missing": (lambda: keys(block_count=None), "block_count is missing"),
    "one layer too few": (lambda: keys(block_count=("u32", 1)), "blk.1|blocks.1"),
    "one layer too many": (lambda: keys(block_count=("u32", 3)), "block_count is 3"),
    "context missing": (lambda: keys(context_length=None), "context_length is missing"),
    "width missing": (lambda: keys(embedding_length=None), "embedding_length is missing"),
    "another width": (lambda: keys(embedding_length=("u32", 128)), "shape"),
    "another mlp width": (lambda: keys(feed_forward_length=("u32", 95)), "shape"),
    "mlp width as list": (lambda: keys(feed_forward_length=("[u32]", [96, 96])), "feed_forward"),
    "negative heads": (lambda: keys(attention__head_count=("i32", -4)), "head_count is -4"),
    "heads that do not divide": (
        lambda: keys(attention__head_count=("u32", 5), attention__key_length=None), "divisor"),
    "kv heads that do not divide": (lambda: keys(attention__head_count_kv=("u32", 3)), "3 kv"),
    "no kv heads": (lambda: keys(attention__head_count_kv=("u32", 0)), "head_count_kv is 0"),
    "epsilon missing": (lambda: keys(attention__layer_norm_rms_epsilon=None), "epsilon"),
    "epsilon NaN": (
        lambda: keys(attention__layer_norm_rms_epsilon=("f32", math.nan)), "epsilon is nan"),
    "rope base of 0": (lambda: keys(rope__freq_base=("f32", 0.0)), "freq_base is 0.0"),
    "rope base infinite": (lambda: keys(rope__freq_base=("f32", math.inf)), "freq_base is inf"),
    "another vocabulary size": (lambda: keys(vocab_size=("u32", 321)), "321"),
    "fewer tokens than rows": (lambda: top("tokenizer.ggml.tokens", ("[str]", ["a"])), "is 1"),
    "odd head length": (lambda: keys(attention__key_length=("u32", 15)), "even|shape"),
    "a tensor missing": (lambda: without("blk.1.ffn_up.weight"), "block_count|blocks.1"),
    "no embedding": (lambda: without("token_embd.weight"), "token_embd.weight"),
    "rope factor of 0": (lambda: keys(rope__scaling__factor=("f32", 0.0)), "scaling.factor is 0.0"),
    "rope factor NaN": (lambda: keys(rope__scaling__factor=("f32", math.nan)), "factor is nan"),
    "rope scaling as number": (lambda: keys(rope__scaling__type=("u32", 1)), "type is 1"),
    "LongRoPE without its tensors": (
        lambda: keys(rope__scaling__type=("str", "longrope")), "rope_factors_long"),
    "too few divisors": (lambda: with_divisors(7), "7 divisors"),
    "too many divisors": (lambda: with_divisors(9), "9 divisors"),
    "absurdly many divisors": (lambda: with_divisors(5000), "rope_freqs.weight"),
    "a divisor of 0": (lambda: with_divisors(value=0.0), "every factor must be positive"),
    "a divisor NaN": (lambda: with_divisors(value=math.nan), "every factor must be positive"),
    "divisors that are not F32": (lambda: with_divisors(kind=1), "rope_freqs.weight is F16"),
    "a negative window": (
        lambda: gemma(attention__sliding_window=("i32", -1)), "sliding_window is -1"),
    "a window as text": (
        lambda: gemma(attention__sliding_window=("str", "512")), "sliding_window is '512'"),
    "a period of 0": (
        lambda: gemma(attention__sliding_window_pattern=("u32", 0)), "pattern is 0"),
    "a pattern too short": (
        lambda: gemma(attention__sliding_window_pattern=("[bool]", [1, 0])), "4 booleans"),
    "a pattern of numbers": (
        lambda: gemma(attention__sliding_window_pattern=("[u32]", [1, 0, 1, 0])), "4 booleans"),
    "a local base of 0": (lambda: gemma(rope__freq_base_swa=("f32", 0.0)), "freq_base_swa is 0.0"),
    "a soft-cap NaN": (
        lambda: gemma(final_logit_softcapping=("f32", math.nan)), "softcapping is nan"),
    "a list of soft-caps": (
        lambda: gemma(final_logit_softcapping=("[f32]", [0.0, 0.0])), "softcapping is array"),
    "a negative soft-cap": (
        lambda: gemma(final_logit_softcapping=("f32", -1.0)), "softcapping is -1.0"),
    "huge layers with a pattern": (lambda: gemma(block_count=("u32", 2**31 - 1)), "block_count"),
    "a fused tensor missing": (lambda: phi3(drop="blk.1.attn_qkv.weight"), "block_count|blocks.1"),
    "a fused tensor too tall": (lambda: phi3(rows=300), "missing"),
    "a vocabulary as text": (lambda: keys(vocab_size=("str", "320")), "vocab_size is '320'"),
    "a tensor without a place": (
        lambda: more(Tensor("blk.0.mystery\n.weight", (32,), 0, b"\0" * 128)), "mystery"),
}  # fmt: skip


@pytest.mark.parametrize("case", LIES)
def test_a_file_that_lies_is_refused(tmp_path: Path, refused: object, case: str) -> None:
    build, named = LIES[case]
    path = tmp_path / "m.gguf"
    path.write_bytes(build())
    message = refused(CheckpointError, lambda: open_checkpoint(path))
    assert str(path) in message
    assert any(part in message for part in named.split("|")), message


UNSUPPORTED = {
    "another architecture": (lambda: top("general.architecture", ("str", "mamba")), "mamba"),
    "an old version": (lambda: honest(version=1), "version 1"),
    "a new version": (lambda: honest(version=4), "version 4"),
    "a big-endian file": (lambda: honest(version=3 << 24), "big-endian"),
    "experts": (lambda: keys(expert_count=("u32", 8)), "expert_count"),
    "expert tensors": (
        lambda: more(Tensor("blk.0.ffn_up_exps.weight", (32,), 0, b"\0" * 128)), "ffn_up_exps"),
    "one file of three": (lambda: top("split.count", ("u16", 3)), "split.count"),
    "a count of files as list": (lambda: top("split.count", ("[u16]", [3])), "split.count"),
    "a LoRA adapter": (lambda: top("general.type", ("str", "adapter")), "'adapter'"),
    "a type as list": (lambda: top("general.type", ("[u16]", [3, 4])), "general.type"),
    "unknown rope scaling": (lambda: keys(rope__scaling__type=("str", "ntk\n")), "ntk"),
    "a YaRN of another kind": (
        lambda: keys(rope__scaling__yarn_log_multiplier=("f32", 0.1)), "yarn_log_multiplier"),
    "two rope scalings": (
        lambda: with_divisors(rope__scaling__factor=("f32", 2.0)), "together with linear"),
    "partial rotation": (lambda: keys(rope__dimension_count=("u32", 8)), "dimension_count is 8"),
    "values of another length": (lambda: keys(attention__value_length=("u32", 8)), "values"),
    "a sliding window": (lambda: keys(attention__sliding_window=("u32", 64)), "sliding_window"),
    "an embedding model": (lambda: keys(pooling_type=("u32", 1)), "pooling_type' is 1"),
    "a model that sees ahead": (lambda: keys(attention__causal=("bool", 0)), "attention.causal"),
    "a zero of another type": (lambda: keys(expert_count=("f32", 0.0)), "expert_count"),
    "a list of neutral values": (lambda: keys(expert_count=("[u32]", [0, 0])), "expert_count"),
    "a soft-cap": (lambda: keys(attn_logit_softcapping=("f32", 50.0)), "attn_logit_softcapping"),
    "a key nobody knows": (lambda: keys(residual_scale=("f32", 0.2)), "residual_scale' is 0.2"),
    "tensors of no known type": (lambda: tensor(NORM, type=999), "999"),
}  # fmt: skip


@pytest.mark.parametrize("case", UNSUPPORTED)
def test_a_file_of_another_kind_is_refused_by_its_name(
    tmp_path: Path, refused: object, case: str
) -> None:
    build, named = UNSUPPORTED[case]
    path = tmp_path / "m.gguf"
    path.write_bytes(build())
    message = refused(UnsupportedError, lambda: open_checkpoint(path))
    assert str(path) in message
    assert named in message
