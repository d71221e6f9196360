"""Brings the tables that documents quote up to those of docs/results.md.

    python scripts/results/quotes.py docs/results.md README.md docs/cache.md

The document chooses: a comment `<!-- results: SECTION -->` stands before each quoted table, whose
header and first cells say which table of that section and which of its rows are quoted. A line
`Made on …` is the page's.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

QUOTED = re.compile(r"(?P<mark><!-- results: (?P<section>.+?) -->\n+)(?P<table>(?:\|.*\n)+)")
MADE = re.compile(r"^Made on .*$", re.MULTILINE)
TABLE = re.compile(r"(?:^\|.*\n)+", re.MULTILINE)


def refreshed(document: str, page: str) -> str:
    """`document` with every quoted row as `page` has it.

    Raises:
        SystemExit: a section, table or row that the page does not have.
    """
    made = MADE.search(page)
    if made is not None:
        document = MADE.sub(lambda _: made.group(), document)
    return QUOTED.sub(lambda quote: quote["mark"] + _table(quote, _sections(page)), document)


def _sections(page: str) -> dict[str, str]:
    parts = (part.partition("\n") for part in re.split(r"^## ", page, flags=re.MULTILINE)[1:])
    return {title: body for title, _, body in parts}


def _table(quote: re.Match[str], sections: dict[str, str]) -> str:
    head, rule, *rows = quote["table"].splitlines()
    tables = (found.group().splitlines() for found in TABLE.finditer(_body(quote, sections)))
    known = {_name(line): line for table in tables if table[0] == head for line in table[2:]}
    missing = [_name(row) for row in rows if _name(row) not in known]
    if missing:
        raise SystemExit(f"no row {missing[0]} under this header in: {quote['section']}")
    return "\n".join([head, rule, *(known[_name(row)] for row in rows)]) + "\n"


def _body(quote: re.Match[str], sections: dict[str, str]) -> str:
    if quote["section"] not in sections:
        raise SystemExit(f"the page has no section: {quote['section']}")
    return sections[quote["section"]]


def _name(row: str) -> str:
    return row.split("|")[1].strip()


def main(page: Path, *documents: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for document in documents:
        document.write_text(refreshed(document.read_text(encoding="utf-8"), text), encoding="utf-8")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
