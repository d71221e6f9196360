"""Numbers as people read them."""

from __future__ import annotations


def size(nbytes: float) -> str:
    """Bytes in decimal units, as the original's tables have them: `691 KB`, `3.3 MB`."""
    for unit, scale, form in (("GB", 10**9, ".1f"), ("MB", 10**6, ".1f"), ("KB", 10**3, ".0f")):
        if nbytes >= scale:
            return f"{nbytes / scale:{form}} {unit}"
    return f"{nbytes:.0f} B"


def count(n: int) -> str:
    """A number of parameters: 134515008 is `134.5M`."""
    for unit, scale in (("B", 10**9), ("M", 10**6), ("K", 10**3)):
        if n >= scale:
            return f"{n / scale:.1f}{unit}"
    return str(n)
