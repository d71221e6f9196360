"""The docs say what the program does."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_the_command_line_page_is_the_help_of_today() -> None:
    script = ROOT / "scripts" / "write_cli_docs.py"
    spec = importlib.util.spec_from_file_location("write_cli_docs", script)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    written = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    assert written == module.page(), "run: python scripts/write_cli_docs.py"


@pytest.mark.parametrize("page", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))])
def test_every_file_that_a_page_names_is_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for name in re.findall(r"`((?:scripts|tests|docs|src)/[\w./-]+)`", text):
        assert (ROOT / name).exists(), f"{page.name} names {name}"
    for name in re.findall(r"\]\(([\w./-]+)\)", text):
        assert (page.parent / name).exists(), f"{page.name} links {name}"


def test_every_cache_flag_is_explained() -> None:
    from tinygpt.cache.spec import FLAGS

    text = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    explained = (ROOT / "docs" / "cache.md").read_text(encoding="utf-8")
    for flag in FLAGS:
        assert flag.flag in text
        assert flag.flag in explained, f"{flag.flag} is not in docs/cache.md"
