"""The README and the pages quote what the results page says."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]
PAGE = """# Results

Made on Linux, 2026-11-30; mlx 1.

## Precision

| cache | perplexity |
| --- | ---: |
| `full` | 20.000 |
| `int8` | 20.001 |

| cache | held |
| --- | ---: |
| `full` | 8 MB |

## Bounded

| cache | perplexity |
| --- | ---: |
| `full` | 30.000 |
"""
DOCUMENT = """Text. Made on is no figure here.
Made on Windows, 1995; DOS 6.

<!-- results: Bounded -->
| cache | perplexity |
| --- | ---: |
| `full` | 1 |

<!-- results: Precision -->
| cache | perplexity |
| --- | ---: |
| `int8` | 2 |

| cache | perplexity |
| --- | ---: |
| `int8` | not quoted |
"""


@pytest.fixture(scope="module")
def quotes() -> ModuleType:
    path = ROOT / "scripts" / "results" / "quotes.py"
    spec = importlib.util.spec_from_file_location("quotes", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_quoted_rows_are_those_of_their_section_and_table(quotes: ModuleType) -> None:
    wanted = DOCUMENT.replace("Made on Windows, 1995; DOS 6.", "Made on Linux, 2026-11-30; mlx 1.")
    wanted = wanted.replace("| `full` | 1 |", "| `full` | 30.000 |")
    wanted = wanted.replace("| `int8` | 2 |", "| `int8` | 20.001 |")
    assert quotes.refreshed(DOCUMENT, PAGE) == wanted


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("results: Bounded", "results: Speed", "no section: Speed"),
        ("| `full` | 1 |", "| `int1` | 1 |", "no row `int1`"),
        ("| cache | perplexity |", "| cache | KL |", "no row `full`"),
    ],
    ids=["section", "row", "table"],
)
def test_what_the_page_does_not_have_cannot_be_quoted(
    quotes: ModuleType, old: str, new: str, message: str
) -> None:
    with pytest.raises(SystemExit, match=message):
        quotes.refreshed(DOCUMENT.replace(old, new, 1), PAGE)


@pytest.mark.parametrize(("name", "least"), [("README.md", 3), ("docs/cache.md", 1)])
def test_documents_quote_the_committed_page(quotes: ModuleType, name: str, least: int) -> None:
    page = ROOT / "docs" / "results.md"
    if not page.is_file():
        pytest.skip("docs/results.md is not there: scripts/reproduce.sh makes it")
    document = (ROOT / name).read_text(encoding="utf-8")
    assert document.count("<!-- results: ") >= least, f"{name} quotes no results"
    assert document == quotes.refreshed(document, page.read_text(encoding="utf-8")), (
        "run scripts/results/quotes.py"
    )
