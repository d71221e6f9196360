"""Writes small GGUF files, honest or lying, and a llama model in one. Imports no tinygpt."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from oracles.gguf_literal import FORMATS, random_blocks

SCALARS = {
    "u8": (0, "<B"),
    "i8": (1, "<b"),
    "u16": (2, "<H"),
    "i16": (3, "<h"),
    "u32": (4, "<I"),
    "i32": (5, "<i"),
    "f32": (6, "<f"),
    "bool": (7, "<B"),
    "u64": (10, "<Q"),
    "i64": (11, "<q"),
    "f64": (12, "<d"),
}
TYPES = {"F32": 0, "F16": 1, "BF16": 30} | {kind: form[0] for kind, form in FORMATS.items()}
BLOCK = 32

Value = tuple[str, object]


@dataclass
class Tensor:
    """One tensor as written; every field may lie."""

    name: str
    extents: tuple[int, ...]  # innermost first, as in the file
    type: int
    data: bytes
    offset: int | None = None  # None: right after the one before


def string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def value(kind: str, item: object) -> bytes:
    """A typed value: kind is a scalar's, "str", or "[kind]" for an array."""
    if kind == "str":
        return struct.pack("<I", 8) + string(item)
    if kind.startswith("["):
        inner = [value(kind[1:-1], each) for each in item]
        number = inner[0][:4] if inner else struct.pack("<I", 8)
        return (
            struct.pack("<I", 9)
            + number
            + struct.pack("<Q", len(inner))
            + b"".join(each[4:] for each in inner)
        )
    number, form = SCALARS[kind]
    return struct.pack("<I", number) + struct.pack(form, item)


def encode(
    metadata: Mapping[str, Value] | list[tuple[str, Value]],
    tensors: list[Tensor],
    *,
    version: int = 3,
    alignment: int = 32,
    tensor_count: int | None = None,
    key_count: int | None = None,
) -> bytes:
    """A whole file; counts and offsets may be overridden with lies."""
    pairs = list(metadata.items()) if isinstance(metadata, Mapping) else metadata
    counts = (
        len(tensors) if tensor_count is None else tensor_count,
        len(pairs) if key_count is None else key_count,
    )
    head = b"GGUF" + struct.pack("<IQQ", version, *counts)
    head += b"".join(string(key) + value(*item) for key, item in pairs)
    body = b""
    for tensor in tensors:
        offset = len(body) if tensor.offset is None else tensor.offset
        head += string(tensor.name) + struct.pack("<I", len(tensor.extents))
        head += struct.pack(f"<{len(tensor.extents)}Q", *tensor.extents)
        head += struct.pack("<IQ", tensor.type, offset)
        body += _padded(tensor.data, alignment)
    return _padded(head, alignment) + body


def quantise(array: np.ndarray, kind: str) -> bytes:
    """A float array [out, in] as GGUF stores it; random blocks where we have no encoder."""
    if kind == "F32":
        return array.astype("<f4").tobytes()
    if kind == "F16":
        return array.astype("<f2").tobytes()
    if kind == "BF16":
        return (array.astype("<f4").view("<u4") >> 16).astype("<u2").tobytes()
    if kind not in ("Q4_0", "Q4_1", "Q8_0"):  # any blocks of the type will do
        count = array.size // FORMATS[kind][1]
        return random_blocks(kind, count, np.random.default_rng(array.size))
    blocks = array.astype(np.float32).reshape(-1, BLOCK)
    return b"".join({"Q4_0": _q4_0, "Q4_1": _q4_1, "Q8_0": _q8_0}[kind](block) for block in blocks)


def permute(weight: np.ndarray, heads: int) -> np.ndarray:
    """The row order llama.cpp's converter gives attn_q and attn_k: rotary pairs side by side."""
    rest = weight.shape[1:]
    return weight.reshape(heads, 2, -1, *rest).swapaxes(1, 2).reshape(weight.shape)


GGUF_NAMES = {
    "ln1": "attn_norm",
    "ln2": "ffn_norm",
    "attn.q_proj": "attn_q",
    "attn.k_proj": "attn_k",
    "attn.v_proj": "attn_v",
    "attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "token_embedding": "token_embd",
    "ln_final": "output_norm",
    "lm_head": "output",
}


@dataclass(frozen=True)
class Llama:
    """Sizes of a small llama model."""

    vocab: int = 320
    layers: int = 2
    dim: int = 64
    hidden: int = 96
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    context: int = 128
    base: float = 10000.0
    tied: bool = True
    bias: bool = False

    def numpy_config(self) -> dict:
        """The same for `numpy_decoder.forward`."""
        return {
            "layers": self.layers,
            "heads": self.heads,
            "kv_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "norm": "rmsnorm",
            "mlp": "swiglu",
            "rope_base": self.base,
        }


def llama_weights(model: Llama, seed: int = 0) -> dict[str, np.ndarray]:
    """Random weights [out, in], float32, under our names and in our row order."""
    rng = np.random.default_rng(seed)
    q, kv = model.heads * model.head_dim, model.kv_heads * model.head_dim
    linears = {
        "attn.q_proj": (q, model.dim),
        "attn.k_proj": (kv, model.dim),
        "attn.v_proj": (kv, model.dim),
        "attn.o_proj": (model.dim, q),
        "mlp.gate_proj": (model.hidden, model.dim),
        "mlp.up_proj": (model.hidden, model.dim),
        "mlp.down_proj": (model.dim, model.hidden),
    }
    shapes = {"token_embedding.weight": (model.vocab, model.dim), "ln_final.weight": (model.dim,)}
    if not model.tied:
        shapes["lm_head.weight"] = (model.vocab, model.dim)
    for i in range(model.layers):
        shapes |= {f"blocks.{i}.{norm}.weight": (model.dim,) for norm in ("ln1", "ln2")}
        for name, shape in linears.items():
            shapes[f"blocks.{i}.{name}.weight"] = shape
            if model.bias and name.startswith("attn"):
                shapes[f"blocks.{i}.{name}.bias"] = shape[:1]
    return {
        name: (
            rng.standard_normal(shape) / math.sqrt(shape[-1])
            if len(shape) == 2
            else (0.0 if name.endswith("bias") else 1.0) + 0.1 * rng.standard_normal(shape)
        ).astype(np.float32)
        for name, shape in shapes.items()
    }


def llama_tensors(
    model: Llama, weights: Mapping[str, np.ndarray], kinds: Mapping[str, str] | str = "F32"
) -> list[Tensor]:
    """The tensors of a GGUF file; `kinds` is one type for every matrix, or a type by our name."""
    tensors = []
    for name, array in weights.items():
        kind = kinds if isinstance(kinds, str) else kinds.get(name, "F32")
        kind = kind if array.ndim == 2 else "F32"
        if "q_proj" in name or "k_proj" in name:
            array = permute(array, model.heads if "q_proj" in name else model.kv_heads)
        data = quantise(array, kind)
        tensors.append(Tensor(_gguf_name(name), array.shape[::-1], TYPES[kind], data))
    return tensors


def _gguf_name(name: str) -> str:
    stem, _, suffix = name.rpartition(".")
    if stem.startswith("blocks."):
        _, index, part = stem.split(".", 2)
        return f"blk.{index}.{GGUF_NAMES[part]}.{suffix}"
    return f"{GGUF_NAMES[stem]}.{suffix}"


def llama_metadata(model: Llama) -> dict[str, Value]:
    """Metadata with a byte-level vocabulary: 256 bytes, two control tokens, some merges."""
    tokens, merges, types = vocabulary(model.vocab)
    return {
        "general.architecture": ("str", "llama"),
        "llama.context_length": ("u32", model.context),
        "llama.embedding_length": ("u32", model.dim),
        "llama.block_count": ("u32", model.layers),
        "llama.feed_forward_length": ("u32", model.hidden),
        "llama.attention.head_count": ("u32", model.heads),
        "llama.attention.head_count_kv": ("u32", model.kv_heads),
        "llama.attention.layer_norm_rms_epsilon": ("f32", 1e-5),
        "llama.attention.key_length": ("u32", model.head_dim),
        "llama.rope.freq_base": ("f32", model.base),
        "llama.vocab_size": ("u32", model.vocab),
        "tokenizer.ggml.model": ("str", "gpt2"),
        "tokenizer.ggml.pre": ("str", "smollm"),
        "tokenizer.ggml.tokens": ("[str]", tokens),
        "tokenizer.ggml.merges": ("[str]", merges),
        "tokenizer.ggml.token_type": ("[i32]", types),
        "tokenizer.ggml.bos_token_id": ("u32", 0),
        "tokenizer.ggml.eos_token_id": ("u32", 1),
    }


def vocabulary(size: int) -> tuple[list[str], list[str], list[int]]:
    """Two control tokens, the 256 bytes, then pairs of letters, each with its merge."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    letters = {byte: chr(byte) for byte in plain}
    letters |= {byte: chr(256 + i) for i, byte in enumerate(others)}
    pairs = [(a, b) for a in "abcdefgh" for b in "ijklmnopqrst"][: size - 258]
    tokens = ["<|im_start|>", "<|im_end|>", *(letters[byte] for byte in range(256))]
    tokens += [a + b for a, b in pairs]
    types = [3, 3] + [1] * (len(tokens) - 2)
    return tokens, [f"{a} {b}" for a, b in pairs], types


def _padded(raw: bytes, alignment: int) -> bytes:
    return raw + b"\0" * (-len(raw) % alignment)


def _q4_0(block: np.ndarray) -> bytes:
    """d = the value of largest magnitude / −8."""
    d = np.float16(block[np.abs(block).argmax()] / -8)
    return d.tobytes() + _nibbles(np.rint(_divide(block, d)) + 8)


def _q4_1(block: np.ndarray) -> bytes:
    m = np.float16(block.min())
    d = np.float16((block.max() - block.min()) / 15)
    return d.tobytes() + m.tobytes() + _nibbles(np.rint(_divide(block - np.float32(m), d)))


def _q8_0(block: np.ndarray) -> bytes:
    d = np.float16(np.abs(block).max() / 127)
    return d.tobytes() + np.clip(np.rint(_divide(block, d)), -128, 127).astype(np.int8).tobytes()


def _divide(block: np.ndarray, d: np.float16) -> np.ndarray:
    return block / np.float32(d) if d else np.zeros_like(block)


def _nibbles(codes: np.ndarray) -> bytes:
    codes = np.clip(codes, 0, 15).astype(np.uint8)
    return (codes[:16] | codes[16:] << 4).tobytes()
