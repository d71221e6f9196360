"""How the results page writes tables and numbers."""

from __future__ import annotations

from collections.abc import Sequence


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; the first column to the left, the others to the right."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def code(text: str) -> str:
    return f"`{text}`"


def number(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


def megabytes(count: float) -> str:
    return f"{count / 1e6:.2f} MB"
