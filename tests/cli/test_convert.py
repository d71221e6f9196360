"""`tinygpt convert`: what it writes runs, and what it must not write over stays."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tinygpt.cli.options import DEMO_MODEL


def text_of(cli: Callable, model: Path) -> bytes:
    done = cli("sample", model, "--prompt", "ab c", "--tokens", 12, "--temperature", 0)
    assert done.status == 0, done.notes
    return done.text


@pytest.mark.parametrize("dtype", [None, "fp32", "packed"])
def test_a_converted_file_prints_the_same_text(
    cli: Callable, rope: Path, tmp_path: Path, dtype: str | None
) -> None:
    target = tmp_path / "m.tinygpt"
    arguments = ["--dtype", dtype] if dtype else []
    if dtype == "packed":  # the fixture's file holds floats
        assert cli("convert", rope, target, *arguments).status == 2
        return
    done = cli("convert", rope, target, *arguments)
    assert done.status == 0 and done.text == b"", done.notes
    assert done.notes.startswith(f"wrote {target}: ")
    assert text_of(cli, target) == text_of(cli, rope)


def test_a_classic_file_converts_and_prints_the_same_text(
    cli: Callable, learned: Path, tmp_path: Path
) -> None:
    assert cli("convert", learned, tmp_path / "m.tinygpt").status == 0
    assert text_of(cli, tmp_path / "m.tinygpt") == text_of(cli, learned)


def test_the_demo_becomes_a_directory(cli: Callable, tmp_path: Path) -> None:
    done = cli("convert", DEMO_MODEL, tmp_path / "new", "--to", "hf")
    assert done.status == 0, done.notes
    names = {path.name for path in (tmp_path / "new").iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= names
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


def test_the_demo_survives_the_way_through_another_format(cli: Callable, tmp_path: Path) -> None:
    directory, back = tmp_path / "hf", tmp_path / "back.tinygpt"
    assert cli("convert", DEMO_MODEL, directory, "--to", "hf").status == 0
    assert cli("convert", directory, back).status == 0
    assert text_of(cli, back) == text_of(cli, DEMO_MODEL) == text_of(cli, directory)


def test_a_file_that_is_there_is_replaced_only_by_force(
    cli: Callable, refused: Callable, learned: Path, tmp_path: Path
) -> None:
    target = tmp_path / "m.tinygpt"
    target.write_text("mine")
    assert "--force" in refused("convert", learned, target)
    assert target.read_text() == "mine"
    assert cli("convert", learned, target, "--force").status == 0
    assert target.read_bytes().startswith(b"TGPT")


def test_the_new_file_has_the_usual_rights(cli: Callable, learned: Path, tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        assert cli("convert", learned, tmp_path / "m.tinygpt").status == 0
    finally:
        os.umask(before)
    assert (tmp_path / "m.tinygpt").stat().st_mode & 0o777 == 0o640


def test_a_link_stays_a_link(cli: Callable, learned: Path, tmp_path: Path) -> None:
    (tmp_path / "real.tinygpt").write_text("old")
    link = tmp_path / "link.tinygpt"
    link.symlink_to("real.tinygpt")
    assert cli("convert", learned, link, "--force").status == 0
    assert link.is_symlink() and (tmp_path / "real.tinygpt").read_bytes().startswith(b"TGPT")


def test_a_model_is_never_converted_onto_itself(
    refused: Callable, learned: Path, tmp_path: Path
) -> None:
    link = tmp_path / "same.tinygpt"
    link.symlink_to(learned)
    before = learned.read_bytes()
    for target in (learned, link):
        assert "SRC itself" in refused("convert", learned, target, "--force")
    assert learned.read_bytes() == before


@pytest.mark.parametrize(
    ("target", "more", "said"),
    [
        ("no/such/m.tinygpt", [], "no/such"),
        ("m.gguf", [], ".tinygpt"),
        ("m.safetensors", [], ".tinygpt"),
        (".", [], "directory"),
        ("full", ["--to", "hf"], "new directory"),
        ("full", ["--to", "hf", "--force"], "new directory"),
        ("full/file", ["--to", "hf"], "new directory"),
        ("new", ["--to", "hf"], "learned positions"),
        ("new", ["--to", "hf", "--dtype", "packed"], "packed"),
        ("m.tinygpt", ["--dtype", "int9"], "int9"),
        ("m.tinygpt", ["--dtype", "packed"], "packed"),
        ("m.tinygpt", ["--to", "onnx"], "onnx"),
        ("m.tinygpt", ["--tokenizer", "no/such"], "no/such"),
    ],
)
def test_a_target_that_cannot_be_is_refused_before_anything_is_written(
    refused: Callable,
    learned: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    target: str,
    more: list[str],
    said: str,
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("mine")
    monkeypatch.chdir(tmp_path)
    assert said in refused("convert", learned, target, *more)
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["file", "full"]


def test_a_source_that_is_no_model_is_refused(refused: Callable, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("just text")
    for source in (tmp_path / "text", tmp_path / "none"):
        assert str(source) in refused("convert", source, tmp_path / "m.tinygpt")
    assert "DST" in refused("convert", tmp_path / "text")


def test_inspecting_a_converted_file_does_not_print_its_tokenizer(
    cli: Callable, rope: Path, tmp_path: Path
) -> None:
    target = tmp_path / "m.tinygpt"
    assert cli("convert", rope, target).status == 0
    for arguments in ([], ["--json"]):
        text = cli("inspect", target, *arguments).text.decode()
        assert "HFTokenizer" in text and "pre_tokenizer" not in text
