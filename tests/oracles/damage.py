"""Random damage to the bytes of a file, from a seed."""

from __future__ import annotations

import random

INTERESTING = (0, 1, 2, 7, 8, 9, 13, 127, 128, 255)
JSON_BITS = (
    b"-",
    b"null",
    b"true",
    b"1e9",
    b"[",
    b"}",
    b'"',
    b"NaN",
    b"\\ud800",
    b"9" * 30,
    b"\xff",
)


def damaged(rng: random.Random, data: bytes) -> bytes:
    """One to four edits, nearly all in the first half, the header mostly; the magic stays."""
    edited = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(4, len(data) // 2 if rng.random() < 0.9 else len(data))
        kind = rng.randrange(6)
        if kind == 0:
            edited[at % len(edited)] = rng.choice(INTERESTING)
        elif kind == 1:
            edited[at % len(edited)] ^= 1 << rng.randrange(8)
        elif kind == 2:
            del edited[at : at + rng.randint(1, 40)]
        elif kind == 3:
            edited[at:at] = rng.choice(JSON_BITS)
        elif kind == 4:
            edited[at : at + 8] = rng.choice((b"\xff" * 8, b"\0" * 8, b"\0" * 7 + b"\x80"))
        else:
            del edited[max(4, at) :]
    return bytes(edited)
