"""The files that scripts/fuzz/run.py damages, and the ways in which it does.

A model is a dictionary from a path inside the case's directory to bytes; its first path, or the
directory it is in, is what is opened. A case is a function of a seed and a number alone.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import json
import random
import struct
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from tinygpt.io.huggingface.export import export_hf
from tinygpt.io.load import open_checkpoint
from tinygpt.io.tinygpt.write import Description, write_tinygpt
from tinygpt.models.config import ModelConfig
from tinygpt.models.tensors import tensor_shapes
from tinygpt.ops.rope import RopeConfig
from tinygpt.ops.rope_scaling import RopeScaling

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from oracles import gguf_writer, tinygpt_writer

Files = dict[str, bytes]

ONE_FILE, DIRECTORY = "model", "directory"
CLASSIC = {"vocabSize": 256, "ctx": 16, "layers": 1, "heads": 2, "dModel": 8, "dMlp": 8}
GGUF = gguf_writer.Llama(vocab=320, layers=1, dim=64, hidden=64, heads=4, kv_heads=2)
ROTARY = ModelConfig(
    architecture="llama",
    vocab_size=320,
    layers=1,
    model_dim=32,
    mlp_dim=32,
    heads=2,
    kv_heads=1,
    head_dim=16,
    context=64,
    norm="rmsnorm",
    mlp="swiglu",
    attention_bias=False,
    mlp_bias=False,
    rope=RopeConfig(1e4, 16, scaling=RopeScaling("llama3", 2.0, 32)),
)
NASTY = (
    *(None, True, False, -1, 0, 1, 2, 3, 63, 2**31 - 1, 2**31, 2**64, 10**40, 0.5, 8.0, -0.0),
    *(1e-320, 1e308, "", "x\ny", "llama", "\ud800", "9" * 5000, [], [0], [[8]], [None] * 300, {}),
)
BITS = (
    *(b"-", b"null", b"true", b"1e999", b"[", b"}", b'"', b"NaN", b"\\ud800", b"9" * 30),
    *(b"\xff", b"[" * 3000, b'{"a":' * 3000, b"\0", b"\xe2\x80\xa8"),
)
INTERESTING = (0, 1, 2, 7, 8, 9, 13, 127, 128, 255)
GGUF_NASTY = (
    *(("u32", 0), ("u32", 1), ("u32", 3), ("u32", 2**31), ("u32", 2**32 - 1), ("i32", -1)),
    *(("u64", 2**63), ("f32", 0.0), ("f32", -1.0), ("f32", float("nan")), ("f64", 1e300)),
    *(("str", ""), ("str", "x\ny"), ("str", "llama"), ("str", b"\xff"), ("bool", 2)),
    *(("[u32]", []), ("[u32]", [1, 2]), ("[str]", ["a", "a"]), ("[[u32]]", [[1], [2]])),
)


def damaged_case(seed: int, number: int) -> tuple[str, str, Files]:
    """The kind of the case, what is to be opened, and the files."""
    rng = random.Random(f"{seed}:{number}")
    kind = list(KINDS)[number % len(KINDS)]
    opened, files = KINDS[kind](rng)
    return kind, opened, files


def damage_bytes(rng: random.Random, data: bytes) -> bytes:
    """One to four edits, nearly all of them early, where headers are."""
    edited = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        span = max(1, len(edited) if rng.random() < 0.1 else min(len(edited), len(data) // 3))
        at = rng.randrange(span)
        match rng.randrange(6):
            case 0:
                edited[at : at + 1] = bytes([rng.choice(INTERESTING)])
            case 1:
                edited[at : at + 1] = bytes([(edited or b"\0")[min(at, len(edited) - 1)] ^ 1])
            case 2:
                del edited[at : at + rng.randint(1, 40)]
            case 3:
                edited[at:at] = rng.choice(BITS)
            case 4:
                edited[at : at + 8] = rng.choice((b"\xff" * 8, b"\0" * 8, b"\0" * 7 + b"\x80"))
            case _:
                del edited[at:]
    return bytes(edited)


def twist(rng: random.Random, node: object) -> object:
    """The same JSON with one value, at any depth, turned nasty, copied, or dropped."""
    if not isinstance(node, (dict, list)) or not node:
        return copy.deepcopy(rng.choice(NASTY))
    keys = list(node) if isinstance(node, dict) else list(range(len(node)))
    key = rng.choice(keys)
    if isinstance(node[key], (dict, list)) and node[key] and rng.random() < 0.8:
        node[key] = twist(rng, node[key])
    elif rng.random() < 0.15:
        del node[key]
    elif rng.random() < 0.1 and isinstance(node, dict):
        key = rng.choice(("rope_scaling", "quantization", "x", ""))
        node[key] = copy.deepcopy(rng.choice(NASTY))
    else:
        node[key] = copy.deepcopy(rng.choice((*NASTY, node[rng.choice(keys)])))
    return node


def damage_json(rng: random.Random, text: bytes) -> bytes:
    """JSON with a few values twisted, or its bytes damaged."""
    if rng.random() < 0.2:
        return damage_bytes(rng, text)
    node = json.loads(text)
    for _ in range(rng.choice((1, 1, 3))):
        node = twist(rng, node)
    return json.dumps(node).encode()


def damage_tokenizer(rng: random.Random, text: bytes) -> bytes:
    """A tokenizer.json with one part in the place of another, or with any damage."""
    if rng.random() < 0.5:
        return damage_json(rng, text)
    node, parts = json.loads(text), ("normalizer", "pre_tokenizer", "decoder", "model")
    node[rng.choice(parts)] = copy.deepcopy(node[rng.choice(parts)])
    return json.dumps(twist(rng, node) if rng.random() < 0.5 else node).encode()


@functools.cache
def tinygpt_files() -> tuple[bytes, ...]:
    """Each version and layout, with and without a tokenizer inside."""
    weights = tinygpt_writer.random_model(CLASSIC)
    classic = [tinygpt_writer.encode(CLASSIC, weights, kind) for kind in tinygpt_writer.LAYOUTS]
    tokenizer = {"kind": "hf", "json": tokenizer_text(), "bosTokenId": 0, "addBos": True}
    return (*classic, *(rotary(dtype, tokenizer) for dtype in ("fp16", "bf16", "packed")))


def rotary(dtype: str, tokenizer: dict[str, object]) -> bytes:
    """A small rotary model in a file of `dtype`."""
    floats = {"fp16": mx.float16, "bf16": mx.bfloat16, "packed": mx.float16}[dtype]
    mx.random.seed(0)
    parts = []
    for name, shape in tensor_shapes(ROTARY):
        array = (mx.random.normal(shape) * 0.2).astype(floats)
        base = name.removesuffix(".weight")
        if dtype == "packed" and array.ndim == 2:
            names = (name, f"{base}.scales", f"{base}.biases")
            parts.append(dict(zip(names, mx.quantize(array, 32, 4), strict=True)))
        else:
            parts.append({name: array})
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "m"
        write_tinygpt(path, Description(ROTARY, dtype, tokenizer), parts)
        return path.read_bytes()


@functools.cache
def tokenizer_text() -> str:
    """A byte-level tokenizer.json with a merge and two control tokens."""
    pieces = ["<s>", "</s>", "ab", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    inner = Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, [("a", "b")]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens(["<s>", "</s>"])
    return str(inner.to_str())


@functools.cache
def gguf_parts(kind: str) -> tuple[dict[str, gguf_writer.Value], list[gguf_writer.Tensor]]:
    weights = gguf_writer.llama_weights(GGUF)
    return gguf_writer.llama_metadata(GGUF), gguf_writer.llama_tensors(GGUF, weights, kind)


@functools.cache
def directory_files() -> Files:
    """A Hugging Face directory in two shards with an index."""
    with tempfile.TemporaryDirectory() as place:
        source, target = Path(place) / "m", Path(place) / "hf"
        source.write_bytes(rotary("fp16", {"kind": "hf", "json": tokenizer_text()}))
        checkpoint = open_checkpoint(source)
        export_hf(checkpoint, target, checkpoint.read_tokenizer())
        weights = mx.load(str(target / "model.safetensors"))
        (target / "model.safetensors").unlink()
        shards = {f"model-0000{i + 1}-of-00002.safetensors": {} for i in range(2)}
        for i, (name, array) in enumerate(weights.items()):
            list(shards.values())[i % 2][name] = array
        for name, arrays in shards.items():
            mx.save_safetensors(str(target / name), arrays)
        places = {tensor: name for name, arrays in shards.items() for tensor in arrays}
        index = {"metadata": {"total_size": 1}, "weight_map": places}
        (target / "model.safetensors.index.json").write_text(json.dumps(index))
        return {f"{DIRECTORY}/{path.name}": path.read_bytes() for path in target.iterdir()}


def _tinygpt_header(rng: random.Random) -> tuple[str, Files]:
    data = rng.choice(tinygpt_files())
    version, length = struct.unpack_from("<II", data, 4)
    text = damage_json(rng, data[12 : 12 + length])
    body = data[16 + length :]
    return ONE_FILE, {ONE_FILE: tinygpt_writer.assemble(text, body, version=version)}


def _tinygpt_bytes(rng: random.Random) -> tuple[str, Files]:
    return ONE_FILE, {ONE_FILE: damage_bytes(rng, rng.choice(tinygpt_files()))}


def _gguf_bytes(rng: random.Random) -> tuple[str, Files]:
    kind = rng.choice(("F32", "F16", "Q4_1", "Q8_0"))
    return ONE_FILE, {ONE_FILE: damage_bytes(rng, gguf_writer.encode(*gguf_parts(kind)))}


def _gguf_values(rng: random.Random) -> tuple[str, Files]:
    """A well-formed file whose keys or tensors say something else."""
    keys, tensors = gguf_parts(rng.choice(("F32", "F16", "Q4_1", "Q8_0")))
    keys, tensors = dict(keys), [dataclasses.replace(tensor) for tensor in tensors]
    for _ in range(rng.choice((1, 1, 3))):
        key, tensor = rng.choice(list(keys)), rng.choice(tensors)
        match rng.randrange(6):
            case 0:
                del keys[key]
            case 1 | 2:
                keys[key] = rng.choice((*GGUF_NASTY, rng.choice(list(keys.values()))))
            case 3:
                tensor.extents = (*tensor.extents[1:], rng.choice((0, 1, 32, 2**31, 2**63)))
            case 4:
                tensor.type = rng.choice((0, 1, 2, 3, 8, 12, 14, 30, 39, 2**31))
            case _:
                tensor.offset = rng.choice((0, 1, 31, 32, 2**40, 2**63, 2**64 - 32))
    return ONE_FILE, {ONE_FILE: gguf_writer.encode(keys, tensors)}


def _safetensors(rng: random.Random) -> tuple[str, Files]:
    files = dict(directory_files())
    name = rng.choice([name for name in files if name.endswith(".safetensors")])
    data = files[name]
    if rng.random() < 0.1:
        del files[name]
    elif rng.random() < 0.5:
        files[name] = damage_bytes(rng, data)
    else:
        (length,) = struct.unpack_from("<Q", data)
        text = damage_json(rng, data[8 : 8 + length])
        files[name] = struct.pack("<Q", len(text)) + text + data[8 + length :]
    return DIRECTORY, files


def _json_file(
    *names: str, how: Callable[[random.Random, bytes], bytes] = damage_json
) -> Callable[[random.Random], tuple[str, Files]]:
    def damage(rng: random.Random) -> tuple[str, Files]:
        files = dict(directory_files())
        name = f"{DIRECTORY}/{rng.choice(names)}"
        files[name] = how(rng, files[name])
        return DIRECTORY, files

    return damage


KINDS: dict[str, Callable[[random.Random], tuple[str, Files]]] = {
    ".tinygpt header": _tinygpt_header,
    ".tinygpt bytes": _tinygpt_bytes,
    "GGUF values": _gguf_values,
    "GGUF bytes": _gguf_bytes,
    "safetensors": _safetensors,
    "config.json": _json_file("config.json"),
    "tokenizer.json": _json_file("tokenizer.json", how=damage_tokenizer),
    "other JSON": _json_file(
        "model.safetensors.index.json", "tokenizer_config.json", "generation_config.json"
    ),
}
