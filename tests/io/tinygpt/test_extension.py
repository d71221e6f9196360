"""Models beyond the classic one in a `.tinygpt` file: what is written comes back, lies do not."""

from __future__ import annotations

import dataclasses
import json
import struct
from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from oracles import tinygpt_writer as writer
from oracles.small_models import KINDS, SmallModel, random_weights, small_model
from tinygpt.errors import CheckpointError, ConfigError, UnsupportedError
from tinygpt.io.checkpoint import read_weights
from tinygpt.io.gguf.keys import KNOWN
from tinygpt.io.huggingface.families import FAMILIES
from tinygpt.io.json_fields import Fields
from tinygpt.io.load import open_checkpoint
from tinygpt.io.tinygpt.config import ARCHITECTURES, EXTENSION, config_from_json, config_to_json
from tinygpt.io.tinygpt.tokenizer import tokenizer_to_json
from tinygpt.io.tinygpt.write import Description, write_tinygpt
from tinygpt.io.tokenizer_dir import load_tokenizer_dir
from tinygpt.models.config import ModelConfig
from tinygpt.models.tensors import tensor_shapes
from tinygpt.ops.rope import RopeConfig
from tinygpt.ops.rope_scaling import RopeScaling
from tinygpt.tokenizer import ByteTokenizer

FLOATS = {"fp32": mx.float32, "fp16": mx.float16, "bf16": mx.bfloat16}
CLASSIC = small_model("mha").config
SCALED = RopeConfig(
    5e5, 16, True, RopeScaling("yarn", 4.0, 2048, truncate=False, attention_factor=1.5)
)
LONG = RopeConfig(
    1e4, 4, scaling=RopeScaling("longrope", 1.0, 64, divisors=(1.0, 1.25), long_divisors=(2.0, 3.0))
)
# Every field of ModelConfig with a value that is not its default.
UNUSUAL = ModelConfig(
    architecture="gemma3_text",
    vocab_size=300,
    layers=2,
    model_dim=24,
    mlp_dim=40,
    heads=4,
    kv_heads=2,
    head_dim=16,
    context=128,
    norm="rmsnorm",
    norm_eps=1e-6,
    mlp="geglu",
    attention_bias=False,
    mlp_bias=False,
    tie_embeddings=False,
    rope=SCALED,
    sliding_window=32,
    deepnorm=True,
    embedding_norm=True,
    output_bias=True,
    norm_offset=1.0,
    block_norms="sandwich",
    qk_norm="head",
    embedding_scale=4.899,
    attention_scale=0.1,
    attention_softcap=50.0,
    logit_softcap=30.0,
    sliding_layers=(True, False),
    rope_layers=(False, True),
    local_rope=LONG,
)


def arrays(model: SmallModel, dtype: str) -> dict[str, mx.array]:
    return {name: mx.array(w).astype(FLOATS[dtype]) for name, w in model.weights.items()}


def write(path: Path, model: SmallModel, dtype: str, **more: object) -> Path:
    parts = ({name: array} for name, array in arrays(model, dtype).items())
    write_tinygpt(path, Description(model.config, dtype, **more), parts)  # type: ignore[arg-type]
    return path


def split(path: Path) -> tuple[int, dict, bytes]:
    """Version, header and body, read by the document alone."""
    data = path.read_bytes()
    magic, version, length = struct.unpack_from("<4sII", data)
    assert magic == b"TGPT"
    assert struct.unpack_from("<i", data, 12 + length) == (0,), "not the step of an inference file"
    return version, json.loads(data[12 : 12 + length]), data[16 + length :]


def through_json(config: ModelConfig) -> ModelConfig:
    values = json.loads(json.dumps(config_to_json(config)))
    return config_from_json(Path("m"), Fields("m: config", values), not config.tie_embeddings)


def test_the_unusual_model_differs_from_the_default_in_every_field() -> None:
    for field in dataclasses.fields(ModelConfig):
        assert getattr(UNUSUAL, field.name) != field.default, f"{field.name} is not tested"


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(ModelConfig)])
def test_each_field_of_a_configuration_survives_alone(name: str) -> None:
    """A classic rotary model with one field changed, so that no other key carries it."""
    base = dataclasses.replace(CLASSIC, rope=RopeConfig(1e4, 16), layers=2, heads=4, kv_heads=2)
    changed = {name: getattr(UNUSUAL, name)}
    config = dataclasses.replace(base, **changed)
    assert through_json(config) == config


@pytest.mark.parametrize("kind", KINDS)
def test_the_configuration_of_every_small_model_survives(kind: str) -> None:
    config = small_model(kind).config
    assert through_json(config) == config
    assert through_json(UNUSUAL) == UNUSUAL


def test_a_classic_configuration_has_no_key_that_an_old_reader_does_not_know() -> None:
    for kind in ("mha", "deepnorm", "embed norm", "sliding", "untied"):
        assert not set(config_to_json(small_model(kind).config)) & set(EXTENSION.values())


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("kind", ["mha", "untied", "embed norm", "rope gqa"])
def test_weights_come_back_bit_by_bit(tmp_path: Path, kind: str, dtype: str) -> None:
    model = small_model(kind)
    checkpoint = open_checkpoint(write(tmp_path / "m.tinygpt", model, dtype))
    assert (checkpoint.config, checkpoint.stored_dtype) == (model.config, dtype)
    got, written = read_weights(checkpoint, dtype), arrays(model, dtype)
    assert set(got) == set(written)
    for name, array in written.items():
        assert got[name].dtype == FLOATS[dtype]
        assert mx.array_equal(got[name], array).item(), name


@pytest.mark.parametrize("dtype", FLOATS)
def test_the_bytes_are_where_and_how_the_document_says(tmp_path: Path, dtype: str) -> None:
    """fp16 is version 2 with Linear weights [in, out]; the others are version 3, all [out, in]."""
    model = small_model("rope gqa")
    version, header, body = split(write(tmp_path / "m.tinygpt", model, dtype))
    assert version == (2 if dtype == "fp16" else 3)
    assert header["weightDtype"] == dtype and header["includesOptimizerState"] is False
    width = 4 if dtype == "fp32" else 2
    for line in header["manifest"]:
        raw = body[width * line["floatOffset"] :][: width * int(np.prod(line["shape"]))]
        written = arrays(model, dtype)[line["name"]]
        turned = dtype == "fp16" and len(line["shape"]) == 2 and line["name"] not in writer.TABLES
        flat = np.array(written.astype(mx.float32)).T if turned else written.astype(mx.float32)
        kinds = {"fp32": "<f4", "fp16": "<f2", "bf16": "<u2"}
        values = np.frombuffer(raw, kinds[dtype])
        if dtype == "bf16":
            values = (values.astype("<u4") << 16).view("<f4")
        np.testing.assert_array_equal(values, np.array(flat).reshape(-1), err_msg=line["name"])


def test_a_classic_fp16_file_is_what_an_old_writer_would_have_written(tmp_path: Path) -> None:
    """Same manifest, same body as the oracle's, and no header key of the extension."""
    config = {"vocabSize": 256, "ctx": 16, "layers": 2, "heads": 4, "dModel": 32, "dMlp": 48}
    weights = writer.random_model(config)
    old = writer.write(tmp_path / "old.tinygpt", config, weights, "fp16")
    described = Description(open_checkpoint(old).config, "fp16")
    parts = ({name: mx.array(w).astype(mx.float16)} for name, w in weights.items())
    write_tinygpt(tmp_path / "new.tinygpt", described, parts)
    (_, ours, body), (_, theirs, expected) = split(tmp_path / "new.tinygpt"), _split_old(old)
    assert body == expected
    assert ours["manifest"] == theirs["manifest"] and ours["config"] == theirs["config"]
    assert set(ours) == {"config", "manifest", "weightDtype", "includesOptimizerState"}


def _split_old(path: Path) -> tuple[int, dict, bytes]:
    data = path.read_bytes()
    (length,) = struct.unpack_from("<I", data, 8)
    return 2, json.loads(data[12 : 12 + length]), data[16 + length :]


def test_an_unusual_model_has_all_its_tensors_back(tmp_path: Path) -> None:
    shapes = dict(tensor_shapes(UNUSUAL))
    weights = {
        name: np.full(shape, i, np.float32) for i, (name, shape) in enumerate(shapes.items())
    }
    checkpoint = open_checkpoint(
        write(tmp_path / "m.tinygpt", SmallModel(UNUSUAL, {}, weights), "bf16")
    )
    assert checkpoint.config == UNUSUAL
    for name, array in read_weights(checkpoint, "fp32").items():
        np.testing.assert_array_equal(np.array(array), weights[name], err_msg=name)


def test_every_architecture_that_another_reader_gives_can_be_read_back() -> None:
    assert set(FAMILIES) | set(KNOWN) <= set(ARCHITECTURES)


def packed(model: SmallModel, bits: int, group: int) -> dict[str, dict[str, mx.array]]:
    """Every matrix quantised by MLX, everything else as it is."""
    parts: dict[str, dict[str, mx.array]] = {}
    for name, array in arrays(model, "fp32").items():
        parts[name] = {name: array}
        if array.ndim == 2 and name.endswith(".weight"):
            base = name.removesuffix(".weight")
            words, scales, biases = mx.quantize(array, group_size=group, bits=bits)
            parts[name] = {name: words, f"{base}.scales": scales, f"{base}.biases": biases}
    return parts


@pytest.mark.parametrize(("bits", "group"), [(4, 32), (8, 32), (4, 64), (3, 32), (6, 32)])
def test_packed_weights_stay_packed(tmp_path: Path, bits: int, group: int) -> None:
    model = small_model("rope gqa")
    if group == 64:  # mlp_dim 96 is no multiple of 64
        config = dataclasses.replace(model.config, mlp_dim=128)
        model = SmallModel(config, {}, random_weights(config, 0))
    parts, path = packed(model, bits, group), tmp_path / "m.tinygpt"
    write_tinygpt(path, Description(model.config, "packed"), parts.values())
    version, header, _ = split(path)
    assert version == 3
    line = next(x for x in header["manifest"] if x["name"] == "token_embedding.weight")
    assert (line["bits"], line["group"]) == (bits, group)
    checkpoint = open_checkpoint(path)
    assert checkpoint.stored_dtype == "packed"
    got = read_weights(checkpoint, "packed")
    for part in parts.values():
        for name, array in part.items():
            assert mx.array_equal(got[name], array).item(), name
    name, base = "blocks.1.mlp.down_proj.weight", "blocks.1.mlp.down_proj"
    part = parts[name]
    values = mx.dequantize(
        part[name],
        part[f"{base}.scales"],
        part[f"{base}.biases"],
        group_size=group,
        bits=bits,
    )
    assert mx.array_equal(read_weights(checkpoint, "fp32")[name], values).item()


def test_a_packed_file_is_smaller_than_half_precision(tmp_path: Path) -> None:
    model = small_model("rope gqa")
    halves = write(tmp_path / "h.tinygpt", model, "fp16").stat().st_size
    path = tmp_path / "p.tinygpt"
    write_tinygpt(path, Description(model.config, "packed"), packed(model, 4, 32).values())
    assert path.stat().st_size < 0.55 * halves  # fp32 scales of this test: 6 bits a weight


def test_weights_of_floats_cannot_be_had_packed(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write(tmp_path / "m.tinygpt", small_model("mha"), "bf16"))
    with pytest.raises(ConfigError, match="packed"):
        read_weights(checkpoint, "packed")


@pytest.mark.parametrize("what", ["missing", "extra", "shape", "nan", "inf"])
def test_a_model_that_is_not_whole_is_not_written(tmp_path: Path, what: str) -> None:
    model, path = small_model("rope mqa"), tmp_path / "m.tinygpt"
    weights = arrays(model, "fp32")
    name = "blocks.1.attn.k_proj.weight"
    if what == "missing":
        del weights[name]
    elif what == "extra":
        name = "blocks.7.attn.k_proj.weight"
        weights[name] = mx.zeros((4, 4))
    elif what == "shape":
        weights[name] = weights[name].T
    else:
        weights[name][3, 5] = float(what)
    path.write_text("old")
    with pytest.raises(CheckpointError, match=name):
        described = Description(model.config, "fp32")
        write_tinygpt(path, described, ({n: array} for n, array in weights.items()))
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path], "a temporary file was left"


def test_a_byte_tokenizer_with_a_document_start_survives(tmp_path: Path) -> None:
    said = tokenizer_to_json(ByteTokenizer(256, bos_id=0, add_bos=True))
    model = small_model("rope gqa")
    model = SmallModel(dataclasses.replace(model.config, vocab_size=256), {}, {})
    model = SmallModel(model.config, {}, random_weights(model.config, 0))
    tokenizer = open_checkpoint(
        write(tmp_path / "m.tinygpt", model, "fp16", tokenizer=said)
    ).read_tokenizer()
    assert tokenizer.encode("é") == [0, 0xC3, 0xA9]
    assert tokenizer.encode_plain("a") == [97]
    assert tokenizer.token_bytes(0) == b"" and tokenizer.decode([0, 97]) == "a"


def test_a_tokenizer_of_pieces_survives_with_its_settings(
    tmp_path: Path, word_tokenizer: Path
) -> None:
    settings = {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True}
    settings["chat_template"] = "{{ messages[0].content }} größte"
    (word_tokenizer / "tokenizer_config.json").write_text(json.dumps(settings))
    before = load_tokenizer_dir(word_tokenizer, 300)
    config = dataclasses.replace(small_model("rope gqa").config, vocab_size=300)
    model = SmallModel(config, {}, random_weights(config, 0))
    path = write(tmp_path / "m.tinygpt", model, "fp16", tokenizer=tokenizer_to_json(before))
    after = open_checkpoint(path).read_tokenizer()
    assert after.encode("ab größte 🙂") == before.encode("ab größte 🙂") and after.add_bos
    for name in ("bos_id", "eos_ids", "bos_token", "eos_token", "chat_template", "vocab_size"):
        assert getattr(after, name) == getattr(before, name), name


def lying(tmp_path: Path, dtype: str, edit: Callable[[dict], object]) -> Path:
    """A rotary model whose header has been edited."""
    path = write(tmp_path / "m.tinygpt", small_model("rope gqa"), dtype)
    version, header, body = split(path)
    edit(header)
    text = json.dumps(header).encode()
    path.write_bytes(writer.assemble(text, body, version=version))
    return path


def config(**values: object) -> Callable[[dict], object]:
    return lambda header: header["config"].update(values)


def rope(**values: object) -> Callable[[dict], object]:
    return lambda header: header["config"]["rope"].update(values)


CONFIG_LIES = {
    "kvHeads 0": (config(kvHeads=0), "kv_heads is 0"),
    "kvHeads that do not divide": (config(kvHeads=3), "3 kv-heads"),
    "kvHeads as text": (config(kvHeads="2"), "kvHeads is '2'"),
    "kvHeads that the manifest contradicts": (config(kvHeads=1), "k_proj"),
    "headDim negative": (config(headDim=-32), "head_dim is -32"),
    "headDim boolean": (config(headDim=True), "headDim is True"),
    "headDim huge": (config(headDim=10**30), "headDim is 1000"),
    "headDim that the manifest contradicts": (config(headDim=64), "q_proj"),
    "rope as number": (config(rope=10000), "rope is 10000"),
    "rope without base": (lambda h: h["config"]["rope"].pop("base"), "base is missing"),
    "rope base 0": (rope(base=0), "base is 0"),
    "rope base infinite": (rope(base=10**400), "base"),
    "rope base text": (rope(base="1e4"), "base is '1e4'"),
    "rope dims odd": (rope(dims=31), "dims is 31"),
    "rope dims past the head": (rope(dims=64), "dims is 64"),
    "rope dims as float": (rope(dims=32.0), "dims is 32.0"),
    "rope traditional as number": (rope(traditional=1), "traditional is 1"),
    "rope with an unknown key": (rope(offset=3), "'offset'"),
    "rope scaling unknown": (rope(scaling={"kind": "twist"}), "'twist'"),
    "rope scaling without kind": (rope(scaling={"factor": 2.0}), "kind is missing"),
    "rope scaling factor negative": (rope(scaling={"kind": "linear", "factor": -1}), "factor"),
    "rope scaling divisors as text": (
        rope(scaling={"kind": "divisors", "divisors": "1"}), "divisors is '1'"),
    "rope scaling divisors of text": (
        rope(scaling={"kind": "divisors", "divisors": ["1"]}), "divisors[0] is '1'"),
    "no rope and no positions": (lambda h: h["config"].pop("rope"), "position_embedding"),
    "norm unknown": (config(norm="batchnorm"), "norm is 'batchnorm'"),
    "norm that the manifest contradicts": (config(norm="layernorm"), "ln"),
    "normEps 0": (config(normEps=0), "normEps is 0"),
    "normEps negative": (config(normEps=-1e-5), "normEps is -1e-05"),
    "normEps text": (config(normEps="small"), "normEps is 'small'"),
    "mlp unknown": (config(mlp="relu"), "mlp is 'relu'"),
    "mlp as list": (config(mlp=["gelu"]), "mlp is ['gelu']"),
    "mlp that the manifest contradicts": (config(mlp="gelu"), "fc_in"),
    "attnBias as number": (config(attnBias=0), "attnBias is 0"),
    "attnBias without biases": (config(attnBias=True), "attn.k_proj.bias"),
    "mlpBias without biases": (config(mlpBias=True), "mlp."),
    "tieEmbeddings without a head": (config(tieEmbeddings=False), "lm_head"),
    "sliding layers too few": (config(slidingLayers=[True]), "sliding_layers has 1"),
    "sliding layers of numbers": (config(slidingLayers=[1, 0]), "slidingLayers[0] is 1"),
    "sliding layers as object": (config(slidingLayers={}), "slidingLayers is {}"),
    "block norms unknown": (config(blockNorms="none"), "blockNorms is 'none'"),
    "soft cap 0": (config(logitSoftcap=0.0), "logitSoftcap is 0.0"),
    "embedding scale null is absence": (config(embeddingScale=[]), "embeddingScale is []"),
}  # fmt: skip


@pytest.mark.parametrize("case", CONFIG_LIES)
def test_a_lie_about_the_model_is_refused(tmp_path: Path, refused: Callable, case: str) -> None:
    edit, named = CONFIG_LIES[case]
    path = lying(tmp_path, "fp16", edit)
    message = refused(CheckpointError, lambda: open_checkpoint(path))
    assert str(path) in message and named in message, message


def line(**values: object) -> Callable[[dict], object]:
    return lambda header: header["manifest"][1].update(values)


BODY_LIES = {
    "offset missing": ("packed", lambda h: h["manifest"][1].pop("byteOffset"), "byteOffset"),
    "offset negative": ("packed", line(byteOffset=-64), "byteOffset"),
    "offset as float": ("packed", line(byteOffset=64.0), "byteOffset"),
    "offset huge": ("packed", line(byteOffset=2**62), "the body has"),
    "offset inside another": ("packed", line(byteOffset=0), "inside tensor"),
    "bits 7": ("packed", line(bits=7), "bits of"),
    "bits 0": ("packed", line(bits=0), "bits is 0"),
    "bits as text": ("packed", line(bits="4"), "bits is '4'"),
    "group 0": ("packed", line(group=0), "group is 0"),
    "group 33": ("packed", line(bits=4, group=33), "group of"),
    "group 128 of 96 columns": (
        "packed", lambda h: next(x for x in h["manifest"] if "down_proj" in x["name"]).update(
            bits=4, group=128), "divisor of its 96"),
    "bits of a vector": (
        "packed", lambda h: next(x for x in h["manifest"] if "ln1" in x["name"]).update(
            bits=4, group=32), "no matrix"),
    "dtype unknown": ("packed", line(dtype="fp64"), "dtype of"),
    "dtype as number": ("packed", line(dtype=16), "dtype is 16"),
    "affine called fp32": ("packed", lambda h: h.update(weightDtype="fp32"), "the body has"),
    "int4 in version 3": ("fp32", lambda h: h.update(weightDtype="int4"), "weightDtype is 'int4'"),
    "a trainer's file": (
        "fp32", lambda h: h.update(includesOptimizerState=True), "includesOptimizerState"),
    "optimiser state unsaid": (
        "bf16", lambda h: h.pop("includesOptimizerState"), "includesOptimizerState"),
    "bf16 called fp32": ("bf16", lambda h: h.update(weightDtype="fp32"), "the body has"),
}  # fmt: skip


@pytest.mark.parametrize("case", BODY_LIES)
def test_a_lie_about_the_body_is_refused(tmp_path: Path, refused: Callable, case: str) -> None:
    dtype, edit, named = BODY_LIES[case]
    if dtype == "packed":
        model, path = small_model("rope gqa"), tmp_path / "m.tinygpt"
        write_tinygpt(path, Description(model.config, "packed"), packed(model, 4, 32).values())
        version, header, body = split(path)
        edit(header)
        path.write_bytes(writer.assemble(json.dumps(header).encode(), body, version=version))
    else:
        path = lying(tmp_path, dtype, edit)
    message = refused(CheckpointError, lambda: open_checkpoint(path))
    assert str(path) in message and named in message, message


TOKENIZER_LIES = {
    "a list": ([], "tokenizer is []"),
    "no kind": ({}, "kind"),
    "another kind": ({"kind": "sentencepiece"}, "'sentencepiece'"),
    "no json": ({"kind": "hf"}, "json is missing"),
    "json as object": ({"kind": "hf", "json": {}}, "json"),
    "json that is none": ({"kind": "hf", "json": "{"}, "not a readable tokenizer"),
    "bos past the model": ({"kind": "bytes", "bosTokenId": 999}, "bosTokenId is 999"),
    "bos negative": ({"kind": "bytes", "bosTokenId": -1}, "bosTokenId is -1"),
    "addBos as text": ({"kind": "bytes", "bosTokenId": 0, "addBos": "yes"}, "addBos is 'yes'"),
    "eos as number": ({"kind": "bytes", "eosTokenIds": 3}, "eosTokenIds is 3"),
    "eos past the model": ({"kind": "bytes", "eosTokenIds": [300]}, "eosTokenIds"),
    "template as list": ({"kind": "bytes", "chatTemplate": []}, "chatTemplate is []"),
}


@pytest.mark.parametrize("case", TOKENIZER_LIES)
def test_a_lie_about_the_tokenizer_is_refused(tmp_path: Path, refused: Callable, case: str) -> None:
    said, named = TOKENIZER_LIES[case]
    values = {"vocabSize": 256, "ctx": 8, "layers": 1, "heads": 2, "dModel": 8, "dMlp": 8}
    header = {"tokenizer": said}
    path = tmp_path / "m.tinygpt"
    writer.write(path, values, writer.random_model(values), "fp16", header=header)
    kind = UnsupportedError if case in ("no kind", "another kind") else CheckpointError
    message = refused(kind, lambda: open_checkpoint(path).read_tokenizer())
    assert str(path) in message and named in message, message


def test_a_tokenizer_with_more_ids_than_the_model_is_refused(
    tmp_path: Path, refused: Callable, word_tokenizer: Path
) -> None:
    said = {"kind": "hf", "json": (word_tokenizer / "tokenizer.json").read_text()}
    path = write(tmp_path / "m.tinygpt", small_model("rope gqa"), "fp16", tokenizer=said)
    assert "259" in refused(CheckpointError, lambda: open_checkpoint(path).read_tokenizer())
