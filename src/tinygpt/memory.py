"""How much memory this process took and may still take. Asks the operating system, never MLX."""

from __future__ import annotations

import re
import resource
import subprocess
import sys
from pathlib import Path

MEMINFO = Path("/proc/meminfo")
CGROUP_V2 = Path("/sys/fs/cgroup")
CGROUP_V1 = Path("/sys/fs/cgroup/memory")


def peak_memory() -> int:
    """Bytes that this process held at most, weights, buffers and Python together."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # bytes there, kilobytes elsewhere


def free_memory() -> int | None:
    """Bytes that can be allocated without swapping; None where that cannot be found out."""
    try:
        if sys.platform == "darwin":
            return _free_on_macos()
        known = [n for n in (_free_on_linux(MEMINFO), _free_in_cgroup()) if n is not None]
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return min(known, default=None)


def _free_on_linux(meminfo: Path) -> int | None:
    found = re.search(r"^MemAvailable:\s+(\d+) kB", meminfo.read_text(), re.MULTILINE)
    return int(found[1]) * 1024 if found else None


def _free_in_cgroup(v2: Path = CGROUP_V2, v1: Path = CGROUP_V1) -> int | None:
    """What the container's own limit leaves; file cache counts as free, as the kernel drops it."""
    for limit_file, used_file, cache_key in (
        (v2 / "memory.max", v2 / "memory.current", "inactive_file"),
        (v1 / "memory.limit_in_bytes", v1 / "memory.usage_in_bytes", "total_inactive_file"),
    ):
        if not limit_file.is_file() or not used_file.is_file():
            continue
        limit = limit_file.read_text().strip()
        if limit == "max":
            return None
        stat = limit_file.with_name("memory.stat")
        lines = stat.read_text().splitlines() if stat.is_file() else []
        cached = sum(int(line.split()[1]) for line in lines if line.split()[0] == cache_key)
        return max(0, int(limit) - int(used_file.read_text()) + cached)
    return None


def _free_on_macos() -> int | None:
    report = subprocess.run(
        ["vm_stat"], capture_output=True, text=True, timeout=5, check=True
    ).stdout
    return parse_vm_stat(report)


def parse_vm_stat(report: str) -> int | None:
    """Free, inactive, speculative and purgeable pages of a `vm_stat` report, in bytes."""
    size = re.search(r"page size of (\d+) bytes", report)
    kinds = r"^Pages (?:free|inactive|speculative|purgeable):\s+(\d+)"
    pages = re.findall(kinds, report, re.MULTILINE)
    return int(size[1]) * sum(map(int, pages)) if size and pages else None
