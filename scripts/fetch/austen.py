"""The six novels of Jane Austen, out of Debian's package r-cran-janeaustenr. Needs no R.

R keeps a package's data in two files. `Rdata.rdx` is a gzipped, serialised list of names and of
(offset, length) pairs; at each offset `Rdata.rdb` has a 4-byte length, then a zlib stream with one
serialised vector of strings, here the lines of a novel. Of R's serialisation this reads no more
than those two shapes. The texts are in the public domain, the package is under the MIT licence.
"""

from __future__ import annotations

import gzip
import struct
import subprocess
import zlib
from pathlib import Path

PACKAGE = "r-cran-janeaustenr"
NOVELS = (
    "emma",
    "mansfieldpark",
    "northangerabbey",
    "persuasion",
    "prideprejudice",
    "sensesensibility",
)
_DATA = Path("usr/lib/R/site-library/janeaustenr/data")
_INTEGERS, _STRINGS, _STRING = 13, 16, 9  # R's type numbers, the low byte of a flags word


def fetch_novels(directory: Path) -> dict[str, bytes]:
    """The text of each of `NOVELS` in UTF-8; the package is downloaded into `directory` once.

    Raises:
        subprocess.CalledProcessError: apt-get or dpkg-deb failed.
    """
    unpacked = directory / PACKAGE
    if not (unpacked / _DATA / "Rdata.rdb").is_file():
        directory.mkdir(parents=True, exist_ok=True)
        subprocess.run(["apt-get", "--quiet", "download", PACKAGE], cwd=directory, check=True)
        package = max(directory.glob(f"{PACKAGE}_*.deb"))
        subprocess.run(["dpkg-deb", "-x", package, unpacked], check=True)
    return read_database(unpacked / _DATA / "Rdata")


def read_database(stem: Path) -> dict[str, bytes]:
    """Each character vector of the database `stem`.rdx, `stem`.rdb, as its lines joined.

    Raises:
        ValueError: not as many names as vectors.
    """
    index = gzip.decompress(stem.with_suffix(".rdx").read_bytes())
    chunks = stem.with_suffix(".rdb").read_bytes()
    head = struct.pack(">II", _INTEGERS, 2)
    pairs = [struct.unpack_from(">II", index, at + 8) for at in _find_all(index, head)]
    # The first vector of strings in the index names the entries.
    names = _strings(index, index.index(_vector_head(len(pairs))))
    texts = (_text(chunks[start : start + length]) for start, length in pairs)
    return {name.decode(): text for name, text in zip(names, texts, strict=True)}


def _vector_head(length: int) -> bytes:
    return struct.pack(">II", _STRINGS, length)


def _find_all(data: bytes, pattern: bytes) -> list[int]:
    found = [data.find(pattern)]
    while found[-1] >= 0:
        found.append(data.find(pattern, found[-1] + 1))
    return found[:-1]


def _text(chunk: bytes) -> bytes:
    """The lines of one novel from its chunk: a big-endian length, then a zlib stream."""
    (size,) = struct.unpack_from(">I", chunk)
    data = zlib.decompress(chunk[4:])
    if len(data) != size:
        raise ValueError(f"a chunk has {len(data)} bytes and says {size}")
    return b"\n".join(_strings(data, data.index(struct.pack(">I", _STRINGS)))) + b"\n"


def _strings(data: bytes, at: int) -> list[bytes]:
    """The vector of strings whose flags word is at `at`."""
    (count,) = struct.unpack_from(">I", data, at + 4)
    at += 8
    strings = []
    for _ in range(count):
        flags, length = struct.unpack_from(">II", data, at)
        if flags & 0xFF != _STRING:
            raise ValueError(f"an entry at byte {at} is no string: flags {flags:#x}")
        strings.append(data[at + 8 : at + 8 + length])
        at += 8 + length
    return strings
