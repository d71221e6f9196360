"""`--to hf`: the directory is the same model in another program, or it is not written."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from safetensors import safe_open

from oracles import tinygpt_writer as writer
from oracles.small_models import small_model
from tinygpt.errors import UnsupportedError
from tinygpt.io.checkpoint import read_weights
from tinygpt.io.convert import convert_to_tinygpt
from tinygpt.io.huggingface.export import export_hf
from tinygpt.io.huggingface.export_family import hf_family
from tinygpt.io.load import load_model, open_checkpoint
from tinygpt.io.tinygpt.tokenizer import tokenizer_to_json
from tinygpt.io.tinygpt.write import Description, write_tinygpt
from tinygpt.io.tokenizer_dir import load_tokenizer_dir
from tinygpt.models.config import ModelConfig
from tinygpt.models.tensors import tensor_shapes
from tinygpt.ops.rope import RopeConfig
from tinygpt.ops.rope_scaling import RopeScaling
from tinygpt.tokenizer import ByteTokenizer, Tokenizer

LOGITS = 1e-4  # float32 sums in another order; the logits are of size 1
LLAMA = ModelConfig(
    architecture="llama",
    vocab_size=300,
    layers=2,
    model_dim=64,
    mlp_dim=96,
    heads=4,
    kv_heads=2,
    head_dim=16,
    context=128,
    norm="rmsnorm",
    norm_eps=1e-6,
    mlp="swiglu",
    attention_bias=False,
    mlp_bias=False,
    rope=RopeConfig(5e4, 16),
)
LLAMA3 = RopeScaling("llama3", 4.0, 32, low_freq_factor=1.0, high_freq_factor=4.0)
FAMILIES = {  # what is changed in LLAMA, the family that it becomes
    "llama": ({}, "llama"),
    "untied": ({"tie_embeddings": False}, "llama"),
    "biases": ({"attention_bias": True, "mlp_bias": True}, "llama"),
    "another head_dim": ({"head_dim": 32, "rope": RopeConfig(1e4, 32)}, "llama"),
    "linear": ({"rope": RopeConfig(1e4, 16, scaling=RopeScaling("linear", 4.0))}, "llama"),
    "llama3": ({"rope": RopeConfig(1e4, 16, scaling=LLAMA3)}, "llama"),
    "qwen2": ({"attention_bias": True, "output_bias": False}, "qwen2"),
    "qwen3": ({"qk_norm": "head"}, "qwen3"),
    "olmo2": ({"qk_norm": "projection", "block_norms": "post"}, "olmo2"),
    "smollm3": ({"rope_layers": (True, False)}, "smollm3"),
}
REFUSED = {  # what is changed in LLAMA, what the reason must name
    "traditional rope": ({"rope": RopeConfig(1e4, 16, True)}, "pairs neighbours"),
    "partial rope": ({"rope": RopeConfig(1e4, 8)}, "8 of 16"),
    "yarn": ({"rope": RopeConfig(1e4, 16, scaling=RopeScaling("yarn", 4.0, 32))}, "scaling"),
    "layernorm": ({"norm": "layernorm"}, "layernorm"),
    "gelu": ({"mlp": "gelu"}, "gelu"),
    "DeepNorm": ({"deepnorm": True}, "DeepNorm"),
    "embedding norm": ({"embedding_norm": True}, "embeddings"),
    "embedding scale": ({"embedding_scale": 8.0}, "embeddings"),
    "attention scale": ({"attention_scale": 0.1}, "scale"),
    "soft-capped": ({"logit_softcap": 30.0}, "soft-capped"),
    "soft-capped scores": ({"attention_softcap": 30.0}, "soft-capped"),
    "norm offset": ({"norm_offset": 1.0}, "offset"),
    "some windows": ({"sliding_window": 8, "sliding_layers": (True, False)}, "window"),
    "local rope": ({"local_rope": RopeConfig(10.0, 16)}, "rotate"),
    "windows": ({"sliding_window": 8}, "window"),
    "norms and biases": ({"attention_bias": True, "qk_norm": "head"}, "together"),
    "sandwich": ({"block_norms": "sandwich"}, "together"),
}
IDS = [0, 5, 17, 255, 3, 99, *range(40, 95)]


def written(path: Path, config: ModelConfig, tokenizer: Tokenizer | None = None) -> Path:
    """A random model whose attention is far from uniform."""
    rng = np.random.default_rng(1)

    def draw(name: str, shape: tuple[int, ...]) -> mx.array:
        if len(shape) == 1:
            values = float(name.endswith("weight")) + 0.1 * rng.standard_normal(shape)
        else:
            values = (2 if "q_proj" in name else 1) * rng.standard_normal(shape) / shape[1] ** 0.5
        return mx.array(values.astype(np.float32))

    parts = ({name: draw(name, shape)} for name, shape in tensor_shapes(config))
    said = None if tokenizer is None else tokenizer_to_json(tokenizer)
    write_tinygpt(path, Description(config, "fp32", said), parts)
    return path


def export(path: Path, directory: Path, dtype: str | None = None) -> Path:
    source = open_checkpoint(path)
    export_hf(source, directory, source.read_tokenizer(None), dtype=dtype)
    return directory


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_model_has_the_same_logits_in_mlx_lm(tmp_path: Path, kind: str) -> None:
    utils = pytest.importorskip("mlx_lm.utils")
    changes, family = FAMILIES[kind]
    config = dataclasses.replace(LLAMA, **changes)
    assert hf_family(config) == family
    path = written(tmp_path / "m.tinygpt", config)
    theirs, _ = utils.load_model(export(path, tmp_path / "hf"))
    ids = mx.array([IDS])
    ours = load_model(open_checkpoint(path), "fp32")(ids)
    worst = mx.abs(theirs(ids).astype(mx.float32) - ours).max(axis=(0, 2))
    assert worst.max().item() <= LOGITS, f"by position: {worst.tolist()}"


@pytest.mark.parametrize("kind", FAMILIES)
def test_our_own_reader_reads_the_same_model_back(tmp_path: Path, kind: str) -> None:
    config = dataclasses.replace(LLAMA, **FAMILIES[kind][0])
    path = written(tmp_path / "m.tinygpt", config)
    again = open_checkpoint(export(path, tmp_path / "hf"))
    ids = mx.array([IDS])
    ours, theirs = (load_model(c, "fp32")(ids) for c in (open_checkpoint(path), again))
    assert mx.abs(ours - theirs).max().item() <= LOGITS


@pytest.mark.parametrize(("bits", "group"), [(4, 64), (8, 32)])
def test_an_mlx_quantised_directory_stays_packed(tmp_path: Path, bits: int, group: int) -> None:
    """Against MLX's own dequantiser; every matrix is quantised, scales are bf16."""
    config = dataclasses.replace(LLAMA, mlp_dim=128)
    directory = export(written(tmp_path / "m.tinygpt", config), tmp_path / "hf")
    weights, expected = {}, {}
    for name, array in mx.load(str(directory / "model.safetensors")).items():
        weights[name] = array.astype(mx.bfloat16)
        if array.ndim == 2:
            base = name.removesuffix(".weight")
            parts = mx.quantize(weights[name], group_size=group, bits=bits)
            expected[name] = mx.dequantize(
                parts[0], *(p.astype(mx.float32) for p in parts[1:]), group_size=group, bits=bits
            )
            weights |= dict(zip((name, f"{base}.scales", f"{base}.biases"), parts, strict=True))
    mx.save_safetensors(str(directory / "model.safetensors"), weights)
    values = json.loads((directory / "config.json").read_text())
    values["quantization"] = {"group_size": group, "bits": bits}
    (directory / "config.json").write_text(json.dumps(values))
    source = open_checkpoint(directory)
    convert_to_tinygpt(source, tmp_path / "n.tinygpt", source.read_tokenizer(None))
    converted = open_checkpoint(tmp_path / "n.tinygpt")
    assert converted.stored_dtype == "packed"
    got = read_weights(converted, "fp32")
    for name, theirs in (
        ("token_embedding.weight", "model.embed_tokens.weight"),
        ("blocks.1.mlp.down_proj.weight", "model.layers.1.mlp.down_proj.weight"),
    ):
        assert mx.array_equal(got[name], expected[theirs]).item(), name
    ids = mx.array([IDS])
    ours, before = (load_model(c, "packed")(ids) for c in (converted, source))
    assert mx.abs(ours - before).max().item() <= LOGITS


@pytest.mark.parametrize("kind", REFUSED)
def test_a_model_that_cannot_be_expressed_is_refused_with_the_reason(kind: str) -> None:
    changes, reason = REFUSED[kind]
    with pytest.raises(UnsupportedError, match=reason):
        hf_family(dataclasses.replace(LLAMA, **changes))


def test_a_classic_model_is_refused_and_nothing_is_left(tmp_path: Path, refused: Callable) -> None:
    values = {"vocabSize": 256, "ctx": 8, "layers": 1, "heads": 2, "dModel": 8, "dMlp": 8}
    path = writer.write(tmp_path / "m.tinygpt", values, writer.random_model(values), "fp16")
    message = refused(UnsupportedError, lambda: export(path, tmp_path / "hf"))
    assert "learned positions" in message
    assert list(tmp_path.iterdir()) == [path]


def test_an_export_that_is_interrupted_leaves_nothing(tmp_path: Path) -> None:
    source = open_checkpoint(written(tmp_path / "m.tinygpt", LLAMA))

    def stop(done: int) -> None:
        if done == 3:
            assert len(list(tmp_path.iterdir())) == 2, "it is not written under another name"
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export_hf(source, tmp_path / "hf", source.read_tokenizer(None), report=stop)
    assert [path.name for path in tmp_path.iterdir()] == ["m.tinygpt"]


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_the_weights_are_safetensors_of_the_dtype_asked_for(tmp_path: Path, dtype: str) -> None:
    path = written(tmp_path / "m.tinygpt", LLAMA)
    directory = export(path, tmp_path / "hf", dtype)
    kind = {"fp32": "F32", "fp16": "F16", "bf16": "BF16"}[dtype]
    with safe_open(directory / "model.safetensors", "np") as file:
        names = set(file.keys())
        assert {file.get_slice(name).get_dtype() for name in names} == {kind}
    assert "model.layers.1.self_attn.q_proj.weight" in names
    assert len(names) == len(dict(tensor_shapes(LLAMA)))


def test_a_byte_level_tokenizer_becomes_one_of_pieces(tmp_path: Path) -> None:
    bytes_only = ByteTokenizer(300, bos_id=0, add_bos=True)
    path = written(tmp_path / "m.tinygpt", LLAMA, bytes_only)
    again = load_tokenizer_dir(export(path, tmp_path / "hf"), 300)
    text = " größte 🙂\n\tend"
    assert again.encode(text) == bytes_only.encode(text)
    assert again.decode(again.encode(text)) == text


def test_the_tokenizers_settings_stand_beside_it(tmp_path: Path, word_tokenizer: Path) -> None:
    settings = {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True}
    settings["chat_template"] = "{{ messages[0].content }}"
    (word_tokenizer / "tokenizer_config.json").write_text(json.dumps(settings))
    before = load_tokenizer_dir(word_tokenizer, 300)
    path = written(tmp_path / "m.tinygpt", LLAMA, before)
    directory = export(path, tmp_path / "hf")
    after = load_tokenizer_dir(directory, 300)
    assert after.encode("ab c") == before.encode("ab c") and after.encode("ab c")[0] == 0
    for name in ("bos_id", "add_bos", "eos_ids", "chat_template", "eos_token"):
        assert getattr(after, name) == getattr(before, name), name
    assert json.loads((directory / "config.json").read_text())["eos_token_id"] == [1]


def test_transformers_encodes_as_we_do(tmp_path: Path, word_tokenizer: Path) -> None:
    transformers = pytest.importorskip("transformers")
    settings = {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True}
    (word_tokenizer / "tokenizer_config.json").write_text(json.dumps(settings))
    before = load_tokenizer_dir(word_tokenizer, 300)
    directory = export(written(tmp_path / "m.tinygpt", LLAMA, before), tmp_path / "hf")
    theirs = transformers.AutoTokenizer.from_pretrained(directory)
    assert theirs.encode("ab größte") == before.encode("ab größte")
    assert (theirs.bos_token, theirs.eos_token) == ("<s>", "</s>")


@pytest.mark.real
def test_smollm2_has_the_same_logits_in_mlx_lm(tmp_path: Path, smollm2: Path) -> None:
    utils = pytest.importorskip("mlx_lm.utils")
    theirs, _ = utils.load_model(export(smollm2, tmp_path / "hf", "fp32"))
    ids = mx.array([IDS])
    ours = load_model(open_checkpoint(smollm2), "fp32")(ids)
    assert mx.abs(theirs(ids).astype(mx.float32) - ours).max().item() <= 10 * LOGITS  # size 30


def test_small_models_that_llama_has_are_llamas() -> None:
    for kind in ("rope mha", "rope gqa", "rope mqa"):
        assert hf_family(small_model(kind).config) == "llama"
