"""How a table is printed."""

from __future__ import annotations

from collections.abc import Sequence

NONE = "–"


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Rows of cells as lines; the first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *rest in rows:
        cells = [first.ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True)]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines) + "\n"
