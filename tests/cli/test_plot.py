"""Pictures are written where there is something to draw; without matplotlib that is said."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

RANGES = [(0, 256), (256, 1024)]


def quality(cache: str, perplexity: float) -> dict:
    parts = [
        {"start": a, "stop": b, "tokens": 99, "perplexity": perplexity + a / 1000}
        for a, b in RANGES
    ]
    return {
        "cache": cache,
        "tokens": 198 if cache == "full" else 400,
        "perplexity": perplexity,
        "bytes_per_token": 1000 / perplexity,
        "by_position": parts,
    }


def found(cache: str, length: int, depth: float) -> dict:
    return {"cache": cache, "length": length, "depth": depth, "trials": 2, "hits": 1}


def speed(cache: str, length: int) -> dict:
    return {"cache": cache, "length": length, "latency_p50": 0.01, "latency_p90": 0.02}


CONTENT = {
    "results": [quality("full", 20.0), quality("int8,window=64", 21.0)],
    "passkey": [found("full", 300, depth) for depth in (0.1, 0.9)] + [found("int8", 600, 0.1)],
    "bench": [speed("full", 128), speed("full", 512), speed("int8", 128)],
    "long": [{"tokens": 1000, "seconds": 8.0, "bytes": 10, "peak_bytes": 20}],
    "model": "demo",
    "cache": "int8",
}
KINDS = ("frontier", "by_position", "latency", "passkey", "long")


@pytest.fixture
def result(tmp_path: Path) -> Path:
    path = tmp_path / "result.json"
    path.write_text(json.dumps(CONTENT))
    return path


def test_each_kind_of_figures_becomes_a_picture(
    cli: Callable, result: Path, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    out = tmp_path / "new" / "pictures"
    done = cli("plot", result, "-o", out)
    assert done.status == 0, done.notes
    files = [out / f"result_{kind}.png" for kind in KINDS]
    assert done.text.decode().split() == [str(file) for file in files]
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in files)


def test_a_vector_picture_names_its_axes_and_its_caches(
    cli: Callable, result: Path, tmp_path: Path
) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.rcParams["svg.fonttype"] = "none"
    assert cli("plot", result, "-o", tmp_path, "--format", "svg").status == 0
    words = (tmp_path / "result_frontier.svg").read_text()
    for word in (
        "perplexity (lower is better)",
        "bytes of cache per token",
        "int8,window=64 (400 tokens)",
    ):
        assert word in words


def test_what_has_nothing_to_draw_is_refused(
    refused: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tinygpt.plot.canvas.util.find_spec", lambda name: name)
    empty, damaged = tmp_path / "empty.json", tmp_path / "damaged.json"
    empty.write_text("{}")
    damaged.write_text("{")
    assert "no RESULT.json given" in refused("plot")
    assert "has nothing to draw" in refused("plot", empty, "-o", tmp_path)
    assert "it is not JSON" in refused("plot", damaged)
    assert "No such file" in refused("plot", tmp_path / "absent.json")


@pytest.mark.parametrize(
    "content",
    [{"results": 5}, {"results": [{}]}, {"bench": [{"cache": "x"}]}, {"long": [{"tokens": "x"}]}],
    ids=str,
)
def test_figures_that_are_none_are_refused(
    refused: Callable, tmp_path: Path, content: dict
) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "result.json"
    path.write_text(json.dumps(content))
    assert "is no result of tinygpt eval or bench" in refused("plot", path, "-o", tmp_path)


def test_pictures_of_two_files_never_get_one_name(
    refused: Callable, result: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other" / result.name
    other.parent.mkdir()
    other.write_text(result.read_text())
    assert "two files are called result" in refused("plot", result, other, "-o", tmp_path)


def test_without_matplotlib_the_way_to_get_it_is_said(
    refused: Callable, result: Path, rope: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tinygpt.plot.canvas.util.find_spec", lambda name: None)
    assert "pip install matplotlib" in refused("plot", result)
    assert "pip install matplotlib" in refused("attention", rope, "--text", result)


def test_attention_is_drawn_and_summed_up(
    cli: Callable, rope: Path, result: Path, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    line = ("attention", rope, "--text", result, "-o", tmp_path, "--tokens", 60)
    shares = tmp_path / "shares.json"
    done = cli(*line, "--layer", 1, "--window", 16, "--json", shares)
    assert done.status == 0, done.notes
    written = json.loads(shares.read_text())
    by_layer = " ".join(f"{sum(heads) / len(heads):.1%}" for heads in written["sink_mass"])
    assert f"by layer {by_layer}\n" in done.text.decode()
    assert len(written["sink_mass"]) == 2 and written["sinks"] == 4
    assert (tmp_path / "rope_sinks.png").is_file() and (tmp_path / "rope_layer1.png").is_file()
    assert "layer 1: 4 + 16 keeps" in done.text.decode()
    whole = cli(*line, "--window", 60)
    assert "4 + 60 keeps 100.0% of the attention" in whole.text.decode()


def test_a_layer_that_is_not_there_is_refused(
    refused: Callable, rope: Path, result: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tinygpt.plot.canvas.util.find_spec", lambda name: name)
    assert "layers 0 to 1" in refused("attention", rope, "--text", result, "--layer", 2)
