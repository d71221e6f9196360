"""`tinygpt inspect` says what is in a file without reading its weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from oracles import tinygpt_writer
from tinygpt.cache.spec import PRECISIONS


@pytest.fixture(scope="module")
def hinted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A .tinygpt file that recommends a cache, and whose head_dim no group divides."""
    config = {"vocabSize": 256, "ctx": 64, "layers": 1, "heads": 2, "dModel": 40, "dMlp": 48}
    path = tmp_path_factory.mktemp("inspect") / "hinted.tinygpt"
    hints = {"kviBits": 8, "streamingSink": 4, "streamingWindow": 32}
    weights = tinygpt_writer.random_model(config)
    return tinygpt_writer.write(path, config, weights, "fp16", header=hints)


def test_json_has_configuration_tensors_tokenizer_and_costs(cli: Callable, rope: Path) -> None:
    done = cli("inspect", rope, "--json")
    assert done.status == 0 and done.notes == ""
    found = json.loads(done.text)
    assert found["config"]["kv_heads"] == 1 and found["config"]["rope"]["dims"] == 32
    assert found["tokenizer"] == {
        "kind": "HFTokenizer",
        "vocab_size": 320,
        "bos_id": 0,
        "add_bos": False,
        "eos_ids": [1],
        "chat_template": False,
    }
    elements = sum(int(np.prod(tensor["shape"])) for tensor in found["tensors"])
    assert found["parameters"] == elements > 80_000
    assert found["file_bytes"] == rope.stat().st_size
    assert list(found["cache_bytes_per_token"]) == list(PRECISIONS)


def test_bytes_per_token_are_those_that_a_cache_takes(cli: Callable, rope: Path) -> None:
    costs = json.loads(cli("inspect", rope, "--json").text)["cache_bytes_per_token"]
    elements = 2 * 2 * 1 * 32  # keys and values, layers, kv-heads, head_dim
    assert costs["full"] == costs["fp32"] == 4 * elements
    assert costs["fp16"] == costs["bf16"] == 2 * elements
    for bits in (8, 4, 2):
        scales = 4 / 32  # two fp16 numbers for each group of 32
        assert costs[f"int{bits}"] == pytest.approx((bits / 8 + scales) * elements)


def test_text_shows_a_dozen_tensors_and_with_tensors_all(cli: Callable, rope: Path) -> None:
    short = cli("inspect", rope).text.decode()
    whole = cli("inspect", rope, "--tensors").text.decode()
    names = [
        tensor["name"] for tensor in json.loads(cli("inspect", rope, "--json").text)["tensors"]
    ]
    assert all(name in whole for name in names)
    assert names[-1] not in short and f"{len(names)} tensors" in short and "--tensors" in short
    for words in ("heads", "cache bytes per token", "vocab_size", "parameters"):
        assert words in short


def test_hints_are_shown_and_a_precision_that_cannot_be_is_refused_by_name(
    cli: Callable, hinted: Path
) -> None:
    done = cli("inspect", hinted)
    assert done.status == 0
    text = done.text.decode()
    assert "kviBits" in text and "streamingWindow" in text
    assert "refused" in text and "head_dim is 20" in text
    costs = json.loads(cli("inspect", hinted, "--json").text)["cache_bytes_per_token"]
    assert costs["fp16"] == 2 * 1 * 2 * 20 * 2 and "head_dim" in costs["int8"]


def test_control_characters_of_a_file_do_not_reach_the_terminal(
    cli: Callable, learned: Path, tmp_path: Path
) -> None:
    config = {"vocabSize": 256, "ctx": 64, "layers": 1, "heads": 1, "dModel": 32, "dMlp": 48}
    weights = tinygpt_writer.random_model(config)
    path = tmp_path / "evil.tinygpt"
    tinygpt_writer.write(path, config, weights, "fp16", header={"note": "\x1b[31mred\x07"})
    text = cli("inspect", path).text
    assert b"red" in text and b"\x1b" not in text and b"\x07" not in text


def test_check_names_the_weights_that_are_not_finite(cli: Callable, tmp_path: Path) -> None:
    config = {"vocabSize": 256, "ctx": 64, "layers": 1, "heads": 2, "dModel": 64, "dMlp": 64}
    weights = tinygpt_writer.random_model(config)
    path = tinygpt_writer.write(tmp_path / "good.tinygpt", config, weights, "fp16")
    assert "all weights are finite" in cli("inspect", path, "--check").text.decode()
    assert "finite" not in cli("inspect", path).text.decode()
    weights["blocks.0.mlp.fc_in.bias"][3] = np.nan
    path = tinygpt_writer.write(tmp_path / "bad.tinygpt", config, weights, "fp16")
    assert "not finite: blocks.0.mlp.fc_in.bias" in cli("inspect", path, "--check").text.decode()
    found = json.loads(cli("inspect", path, "--check", "--json").text)
    assert found["not_finite"] == ["blocks.0.mlp.fc_in.bias"]
