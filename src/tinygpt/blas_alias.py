"""New global names for functions that are already loaded. Linux with glibc ≥ 2.28, 64 bits.

`scipy-openblas32` exports `scipy_cblas_sgemm`; MLX looks for `cblas_sgemm`. A dynamic loader only
finds names in the symbol table of a loaded file, so we write the smallest file that has one: an
ELF shared object without code whose symbols are *absolute* (SHN_ABS), their values the addresses
wanted. It lives in memory (memfd) and is never executed, only read by the loader, so the same
bytes do on every architecture. MLX's wheels ask for glibc 2.35.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Callable, Mapping

HEADER, SEGMENT, SYMBOL, DYNAMIC = 64, 56, 24, 16  # bytes, ELF64
PAGE = 0x10000  # the largest page size of the architectures in question
SHN_ABS = 0xFFF1
GLOBAL_FUNCTION = 0x12
READ_WRITE = 6
PT_LOAD, PT_DYNAMIC, PT_GNU_STACK = 1, 2, 0x6474E551
SEGMENTS = 3
DT_HASH, DT_STRTAB, DT_SYMTAB, DT_STRSZ, DT_SYMENT = 4, 5, 6, 10, 11


def address_of(function: Callable[..., object]) -> int:
    """Where a `ctypes` function lives in this process."""
    return ctypes.cast(function, ctypes.c_void_p).value or 0  # type: ignore[arg-type]


def export(symbols: Mapping[str, int]) -> None:
    """Make each name findable in the global scope at its address, for libraries loaded later.

    Raises:
        OSError: the loader did not take the object, or finds something else under a name.
    """
    with open("/proc/self/exe", "rb") as executable:
        machine = struct.unpack_from("<H", executable.read(20), 18)[0]
    # It stays open (children do not get it): the loader knows an object by its path, and would take
    # the next one under a number that was used before for this one.
    descriptor = os.memfd_create("tinygpt-blas")
    os.write(descriptor, shared_object(symbols, machine))
    ctypes.CDLL(f"/proc/self/fd/{descriptor}", mode=os.RTLD_GLOBAL)
    everything = ctypes.CDLL(None)
    for name, address in symbols.items():
        if address_of(everything[name]) != address:
            raise OSError(f"{name} is not at the address asked for")


def shared_object(symbols: Mapping[str, int], machine: int) -> bytes:
    """The bytes of an ELF64 little-endian shared object that defines `symbols` and nothing else."""
    names, table = b"\0", bytes(SYMBOL)
    for name, address in symbols.items():
        table += struct.pack("<IBBHQQ", len(names), GLOBAL_FUNCTION, 0, SHN_ABS, address, 0)
        names += name.encode("ascii") + b"\0"
    count = len(symbols) + 1
    chain = [0, *(i + 1 for i in range(1, count - 1)), 0]  # one bucket: a plain list
    hashes = struct.pack(f"<{3 + count}I", 1, count, 1, *chain)

    symbols_at = HEADER + SEGMENTS * SEGMENT
    hashes_at = symbols_at + len(table)
    names_at = hashes_at + len(hashes)
    dynamic_at = -(-(names_at + len(names)) // 8) * 8
    entries = {
        DT_HASH: hashes_at,
        DT_STRTAB: names_at,
        DT_SYMTAB: symbols_at,
        DT_STRSZ: len(names),
        DT_SYMENT: SYMBOL,
        0: 0,
    }
    dynamic = b"".join(struct.pack("<QQ", *entry) for entry in entries.items())
    end = dynamic_at + len(dynamic)
    head = _header(machine) + _segment(PT_LOAD, 0, end, PAGE)
    head += _segment(PT_DYNAMIC, dynamic_at, len(dynamic), 8)
    head += _segment(PT_GNU_STACK, 0, 0, 16)  # without it the loader makes the stack executable
    return (head + table + hashes + names).ljust(dynamic_at, b"\0") + dynamic


def _header(machine: int) -> bytes:
    identity = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    sizes = (HEADER, SEGMENT, SEGMENTS, 64, 0, 0)  # no sections
    return struct.pack("<16sHHIQQQI6H", identity, 3, machine, 1, 0, HEADER, 0, 0, *sizes)


def _segment(kind: int, start: int, size: int, align: int) -> bytes:
    return struct.pack("<IIQQQQQQ", kind, READ_WRITE, start, start, start, size, size, align)
