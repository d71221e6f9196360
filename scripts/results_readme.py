"""Brings the tables that the README quotes up to those of docs/results.md.

    python scripts/results_readme.py README.md docs/results.md

The README chooses: a comment `<!-- results: SECTION -->` stands before each quoted table, whose
header and first cells say which table of that section and which of its rows are quoted. Its line
`Made on …` is the page's.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

QUOTED = re.compile(r"(?P<mark><!-- results: (?P<section>.+?) -->\n+)(?P<table>(?:\|.*\n)+)")
MADE = re.compile(r"^Made on .*$", re.MULTILINE)
TABLE = re.compile(r"(?:^\|.*\n)+", re.MULTILINE)


def refreshed(readme: str, page: str) -> str:
    """`readme` with every quoted row as `page` has it.

    Raises:
        SystemExit: a section, table or row that the page does not have.
    """
    made = MADE.search(page)
    if made is not None:
        readme = MADE.sub(lambda _: made.group(), readme)
    return QUOTED.sub(lambda quote: quote["mark"] + _table(quote, _sections(page)), readme)


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


def main(readme: Path, page: Path) -> None:
    readme.write_text(
        refreshed(readme.read_text(encoding="utf-8"), page.read_text(encoding="utf-8")),
        encoding="utf-8",
    )


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
