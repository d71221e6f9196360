"""A `.tinygpt` file that says what is not true is refused in one line, at no cost."""

from __future__ import annotations

import copy
import json
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from oracles import tinygpt_writer as writer
from tinygpt.errors import CheckpointError, TinyGPTError, UnsupportedError
from tinygpt.io.load import open_checkpoint

CONFIG = {"vocabSize": 256, "ctx": 16, "layers": 2, "heads": 4, "dModel": 16, "dMlp": 24}
WEIGHTS = writer.random_model(CONFIG)
HUGE = 2**31 - 1
Header = dict
Edit = Callable[[Header], object]


def parts(layout: str) -> tuple[Header, bytes]:
    """Header and body of an honest file."""
    data = writer.encode(CONFIG, WEIGHTS, layout)
    (length,) = struct.unpack_from("<I", data, 8)
    return json.loads(data[12 : 12 + length]), data[16 + length :]


def lying(path: Path, layout: str, edit: Edit) -> Path:
    header, body = parts(layout)
    header = copy.deepcopy(header)
    edit(header)
    path.write_bytes(writer.assemble(json.dumps(header).encode(), body))
    return path


def config(**values: object) -> Edit:
    return lambda header: header["config"].update(values)


def head(**values: object) -> Edit:
    return lambda header: header.update(values)


def line(index: int, **values: object) -> Edit:
    return lambda header: header["manifest"][index].update(values)


# (layout, what is edited, what the message must name)
HEADER_LIES = {
    "heads that do not divide": ("fp16", config(heads=3), "heads is 3"),
    "no heads": ("fp16", config(heads=0), "heads is 0"),
    "more heads than features": ("fp16", config(heads=32), "heads is 32"),
    "negative layers": ("fp16", config(layers=-1), "layers is -1"),
    "huge layers": ("fp16", config(layers=HUGE), "layers is 2147483647"),
    "layers past 32 bits": ("fp16", config(layers=10**30), "layers"),
    "fewer layers than tensors": ("fp16", config(layers=1), "blocks.1"),
    "more layers than tensors": ("fp16", config(layers=3), "layers is 3"),
    "float layers": ("fp16", config(layers=2.0), "layers is 2.0"),
    "boolean layers": ("fp16", config(layers=True), "layers is True"),
    "text for a size": ("fp16", config(dModel="16"), "dModel is '16'"),
    "list for a size": ("fp16", config(ctx=[16]), "ctx is [16]"),
    "huge vocabulary": ("fp16", config(vocabSize=HUGE), "token_embedding.weight"),
    "vocabulary off by one": ("int4", config(vocabSize=257), "token_embedding.weight"),
    "context off by one": ("training", config(ctx=17), "position_embedding.weight"),
    "another width": ("fp16", config(dModel=32), "token_embedding.weight"),
    "another mlp width": ("fp16", config(dMlp=25), "mlp.fc_in.weight"),
    "zero context": ("fp16", config(ctx=0), "ctx is 0"),
    "flag as number": ("fp16", config(useDeepNorm=1), "useDeepNorm is 1"),
    "flag as text": ("fp16", config(useYOCO="no"), "useYOCO"),
    "window as true": ("fp16", config(slidingWindow=True), "slidingWindow is True"),
    "negative window": ("fp16", config(slidingWindow=-8), "slidingWindow is -8"),
    "embedding norm without tensor": ("fp16", config(useEmbeddingRMSNorm=True), "embed_norm"),
    "kviBits 3": ("fp16", config(kviBits=3), "kviBits is 3"),
    "kviBits as float": ("fp16", config(kviBits=4.0), "kviBits is 4.0"),
    "negative sinks": ("fp16", config(streamingSink=-1), "streamingSink is -1"),
    "window hint as text": ("fp16", config(streamingWindow="256"), "streamingWindow"),
    "window hint as boolean": ("fp16", config(streamingWindow=True), "streamingWindow"),
    "architecture as number": ("fp16", config(architecture=7), "architecture is 7"),
    "tokenizer source as number": ("fp16", config(tokenizerSource=5), "tokenizerSource is 5"),
    "config is a list": ("fp16", head(config=[1]), "config"),
    "config is missing": ("fp16", lambda h: h.pop("config"), "config is missing"),
    "manifest is missing": ("fp16", lambda h: h.pop("manifest"), "manifest is missing"),
    "manifest is an object": ("fp16", head(manifest={"a": 1}), "manifest"),
    "manifest is empty": ("fp16", head(manifest=[]), "manifest"),
    "entry is text": ("fp16", lambda h: h["manifest"].append("x"), "manifest["),
    "entry without name": ("fp16", lambda h: h["manifest"][3].pop("name"), "manifest[3] name"),
    "entry without shape": ("fp16", lambda h: h["manifest"][3].pop("shape"), "ln_final.bias"),
    "negative extent": ("fp16", line(0, shape=[-256, 16]), "shape of 'token_embedding.weight'"),
    "two negative extents": ("training", line(0, shape=[-256, -16]), "token_embedding.weight"),
    "zero extent": ("fp16", line(2, shape=[0]), "ln_final.weight"),
    "float extent": ("fp16", line(2, shape=[16.0]), "ln_final.weight"),
    "boolean extent": ("fp16", line(2, shape=[True]), "ln_final.weight"),
    "huge extent": ("int4", line(2, shape=[10**18]), "ln_final.weight"),
    "huge product": ("fp16", line(0, shape=[HUGE, HUGE]), "token_embedding.weight"),
    "transposed shape": ("fp16", line(0, shape=[16, 256]), "token_embedding.weight"),
    "extra dimension": ("fp16", line(2, shape=[16, 1]), "ln_final.weight"),
    "thousands of dimensions": ("fp16", line(2, shape=[HUGE] * 5000), "ln_final.weight"),
    "scalar shape": ("fp16", line(2, shape=[]), "ln_final.weight"),
    "duplicate name": ("fp16", line(2, name="ln_final.bias"), "twice"),
    "misspelt name": ("fp16", line(2, name="ln_finale.weight"), "ln_final.weight"),
    "name with a newline": ("fp16", lambda h: h["manifest"].append(
        {"name": "a\nb\u2028\ud800", "shape": [1]}), "a\\nb"),
    "endless name": ("fp16", lambda h: h["manifest"].append(
        {"name": "x" * 10**5, "shape": [1]}), "xxx"),
    "negative offset": ("fp16", line(1, floatOffset=-1), "position_embedding.weight"),
    "huge offset": ("fp16", line(1, floatOffset=2**62), "the body has"),
    "offset past 64 bits": ("fp16", line(1, floatOffset=2**70), "position_embedding.weight"),
    "float offset": ("fp16", line(1, floatOffset=4096.0), "position_embedding.weight"),
    "overlapping offsets": ("fp16", line(1, floatOffset=4095), "position_embedding.weight"),
    "unknown weight dtype": ("fp16", head(weightDtype="int3"), "weightDtype is 'int3'"),
    "weight dtype as number": ("fp16", head(weightDtype=16), "weightDtype is 16"),
    "optimiser flag as text": ("training", head(includesOptimizerState="yes"), "includesOptimizer"),
    "fp16 body called training": (
        "fp16", head(weightDtype="fp32", includesOptimizerState=True), "the body has"),
    "training body called fp16": ("training", head(weightDtype="fp16"), "the body has"),
    "no optimiser after all": ("training", head(includesOptimizerState=False), "the body has"),
    "int4 body called fp16": ("int4", head(weightDtype="fp16"), "the body has"),
    "another block size": ("int4", head(int4BlockSize=32), "int4ScalesBytes"),
    "odd block size": ("int4", head(int4BlockSize=63), "int4BlockSize is 63"),
    "zero block size": ("int4", head(int4BlockSize=0), "int4BlockSize is 0"),
    "huge block size": ("int4", head(int4BlockSize=HUGE - 1), "int4"),
    "scale bytes off": ("int4", head(int4ScalesBytes=2), "int4ScalesBytes is 2"),
    "scale bytes missing": ("int4", lambda h: h.pop("int4ScalesBytes"), "int4ScalesBytes is miss"),
    "packed bytes as float": ("int4", head(int4PackedBytes=1e4), "int4PackedBytes"),
}  # fmt: skip


@pytest.mark.parametrize("case", HEADER_LIES)
def test_a_header_that_lies_is_refused(tmp_path: Path, refused: object, case: str) -> None:
    layout, edit, named = HEADER_LIES[case]
    path = lying(tmp_path / "m.tinygpt", layout, edit)
    message = refused(CheckpointError, lambda: open_checkpoint(path))
    assert str(path) in message
    assert named in message


HEADER_TEXTS = {
    "not JSON": b"config",
    "empty": b"",
    "not UTF-8": b'{"config": "\xff"}',
    "a list": b"[]",
    "a number": b"3",
    "cut short": b'{"config": {',
    "NaN": b'{"bestVal": NaN}',
    "infinity": b'{"bestVal": -Infinity}',
    "a key twice": b'{"config": {"layers": 1, "layers": 2}}',
    "deep lists": b"[" * 10**5,
    "deep objects": b'{"a":' * 10**5,
    "an endless integer": b'{"config": ' + b"9" * 10**5 + b"}",
    "a UTF-16 text": '{"config": {}}'.encode("utf-16"),
}


@pytest.mark.parametrize("case", HEADER_TEXTS)
def test_a_header_that_is_not_a_json_object_is_refused(
    tmp_path: Path, refused: object, case: str
) -> None:
    path = tmp_path / "m.tinygpt"
    path.write_bytes(writer.assemble(HEADER_TEXTS[case], b"\0" * 64))
    message = refused(CheckpointError, lambda: open_checkpoint(path))
    reasons = ("header is not UTF-8 JSON", "header is a JSON", "header is nested too deeply")
    assert any(reason in message for reason in reasons), message


@pytest.mark.parametrize("length", [2**32 - 1, 2**31, 10**6])
def test_a_header_length_past_the_end_is_refused(
    tmp_path: Path, refused: object, length: int
) -> None:
    path = tmp_path / "m.tinygpt"
    path.write_bytes(struct.pack("<4sII", b"TGPT", 2, length) + b"{}" + b"\0" * 64)
    assert str(length) in refused(CheckpointError, lambda: open_checkpoint(path))


def test_a_header_of_gigabytes_is_refused_unread(tmp_path: Path, refused: object) -> None:
    path = tmp_path / "m.tinygpt"
    with path.open("wb") as file:
        file.write(struct.pack("<4sII", b"TGPT", 2, 2 * 10**9))
        file.truncate(3 * 10**9)  # sparse: takes no room
    assert "2000000000" in refused(CheckpointError, lambda: open_checkpoint(path))


@pytest.mark.parametrize("layout", writer.LAYOUTS)
@pytest.mark.parametrize("change", [-1, -1000, 1, 4096])
def test_a_body_too_short_or_too_long_is_refused(
    tmp_path: Path, refused: object, layout: str, change: int
) -> None:
    data = writer.encode(CONFIG, WEIGHTS, layout)
    path = tmp_path / "m.tinygpt"
    path.write_bytes(data[:change] if change < 0 else data + b"\0" * change)
    message = refused(CheckpointError, lambda: open_checkpoint(path))
    assert "the body has" in message
    assert "calls for" in message


@pytest.mark.parametrize("length", [4, 8, 12, 15, 16])
def test_a_file_that_ends_inside_its_first_bytes_is_refused(
    tmp_path: Path, refused: object, length: int
) -> None:
    path = tmp_path / "m.tinygpt"
    path.write_bytes(writer.encode(CONFIG, WEIGHTS, "fp16")[:length])
    refused(CheckpointError, lambda: open_checkpoint(path))


def test_a_lie_about_an_unsupported_model_is_still_one_of_our_errors(
    tmp_path: Path, refused: object
) -> None:
    path = lying(tmp_path / "m.tinygpt", "fp16", config(architecture="x\n" * 500))
    refused(UnsupportedError, lambda: open_checkpoint(path))
    path = lying(tmp_path / "n.tinygpt", "fp16", config(nExperts=-3))
    refused(TinyGPTError, lambda: open_checkpoint(path))
