"""The reader of R's databases, on one written here; the real package needs a network."""

from __future__ import annotations

import gzip
import importlib.util
import struct
import zlib
from pathlib import Path
from types import ModuleType

import pytest

HEADER = b"X\n" + struct.pack(">IIII", 3, 0x040201, 0x030500, 5) + b"UTF-8"


@pytest.fixture(scope="module")
def austen() -> ModuleType:
    path = Path(__file__).parents[3] / "scripts" / "fetch" / "austen.py"
    spec = importlib.util.spec_from_file_location("austen", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def vector(strings: list[bytes]) -> bytes:
    items = (struct.pack(">II", 0x00040009, len(s)) + s for s in strings)
    return struct.pack(">II", 16, len(strings)) + b"".join(items)


def write_database(stem: Path, entries: dict[str, list[bytes]], names: list[bytes]) -> None:
    """As R does: the pairs, a list of no references, then the names."""
    pairs, chunks = b"", b""
    for lines in entries.values():
        data = HEADER + vector(lines)
        chunk = struct.pack(">I", len(data)) + zlib.compress(data)
        pairs += struct.pack(">IIII", 13, 2, len(chunks), len(chunk))
        chunks += chunk
    index = HEADER + struct.pack(">II", 0x0213, len(entries)) + pairs + vector(names)
    stem.with_suffix(".rdx").write_bytes(gzip.compress(index + vector([b"variables"])))
    stem.with_suffix(".rdb").write_bytes(chunks)


def test_each_novel_is_its_lines_under_its_name(austen: ModuleType, tmp_path: Path) -> None:
    entries = {"emma": [b"EMMA", b"", b"caf\xc3\xa9"], "persuasion": [b"one line"]}
    write_database(tmp_path / "Rdata", entries, [b"emma", b"persuasion"])
    assert austen.read_database(tmp_path / "Rdata") == {
        "emma": b"EMMA\n\ncaf\xc3\xa9\n",
        "persuasion": b"one line\n",
    }


def test_a_chunk_that_lies_about_its_size_is_refused(austen: ModuleType, tmp_path: Path) -> None:
    write_database(tmp_path / "Rdata", {"emma": [b"EMMA"]}, [b"emma"])
    database = tmp_path / "Rdata.rdb"
    database.write_bytes(struct.pack(">I", 7) + database.read_bytes()[4:])
    with pytest.raises(ValueError, match="says 7"):
        austen.read_database(tmp_path / "Rdata")
