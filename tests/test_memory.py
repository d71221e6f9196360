"""Free memory is what the system and the container say, whichever leaves less."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tinygpt import memory
from tinygpt.memory import free_memory, parse_vm_stat

VM_STAT = """Mach Virtual Memory Statistics: (page size of 16384 bytes)
Pages free:                               10.
Pages active:                            999.
Pages inactive:                           20.
Pages speculative:                         3.
Pages throttled:                           0.
Pages wired down:                        888.
Pages purgeable:                           4.
"""


def test_this_machine_has_some_memory_left() -> None:
    free = free_memory()
    assert free is None or 2**20 < free < 2**50


def test_vm_stat_counts_what_can_be_had_without_swapping() -> None:
    assert parse_vm_stat(VM_STAT) == 16384 * (10 + 20 + 3 + 4)
    assert parse_vm_stat("nothing of the kind") is None


def test_meminfo_says_what_is_available(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 100 kB\nMemFree: 1 kB\nMemAvailable:      40 kB\n")
    assert memory._free_on_linux(meminfo) == 40 * 1024


@pytest.mark.parametrize(
    ("limit", "free"), [("max", None), ("1000", 1000 - 600 + 50), ("500", 0)], ids=str
)
def test_a_container_leaves_its_limit_minus_what_is_used_and_not_cache(
    tmp_path: Path, limit: str, free: int | None
) -> None:
    (tmp_path / "memory.max").write_text(f"{limit}\n")
    (tmp_path / "memory.current").write_text("600\n")
    (tmp_path / "memory.stat").write_text("anon 1\ninactive_file 50\nactive_file 7\n")
    assert memory._free_in_cgroup(tmp_path, tmp_path / "none") == free


def test_the_older_kind_of_container_is_read_too(tmp_path: Path) -> None:
    (tmp_path / "memory.limit_in_bytes").write_text("1000\n")
    (tmp_path / "memory.usage_in_bytes").write_text("600\n")
    (tmp_path / "memory.stat").write_text("cache 9\ntotal_inactive_file 50\n")
    assert memory._free_in_cgroup(tmp_path / "none", tmp_path) == 450


@pytest.mark.skipif(sys.platform != "linux", reason="reads the files of Linux")
def test_what_cannot_be_found_out_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "MEMINFO", tmp_path / "absent")
    assert free_memory() is None
