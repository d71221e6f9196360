"""A fast BLAS for MLX's CPU back end on Linux, loaded before MLX is. Never raises.

MLX's Linux wheel links the reference BLAS, at 4–7 GFLOP/s. Its calls are resolved by name in the
process's global scope first, so whichever library put `cblas_sgemm` there earlier gets them.
Two sources are tried: the `scipy-openblas32` package (its names are prefixed and get aliases, see
`blas_alias`), then the system's OpenBLAS. `TINYGPT_BLAS=off` or `=/path/to/library.so` decides
otherwise. On macOS MLX uses Accelerate or Metal and there is nothing to do.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from tinygpt.blas_alias import address_of, export

VARIABLE = "TINYGPT_BLAS"
ROUTINES = ("cblas_sgemm", "cblas_dgemm", "cblas_cgemm")  # the BLAS calls of libmlx.so
LIBRARIES = (
    "libopenblas.so.0",
    "libopenblas.so",
    "/usr/lib64/libopenblasp.so.0",
    "/usr/local/lib/libopenblas.so",
    "/opt/OpenBLAS/lib/libopenblas.so",
)
ADVICE = (
    "no OpenBLAS found: long prompts run about 25 times slower than they could; "
    "run 'pip install scipy-openblas32' or 'apt-get install libopenblas0-pthread'"
)


@dataclass(frozen=True, slots=True)
class BlasStatus:
    """`library` is what was loaded (None: nothing) and `reason` why; `missing`: none was found."""

    library: str | None
    reason: str
    missing: bool = False


@functools.cache
def preload() -> BlasStatus:
    """Load an OpenBLAS for MLX if that helps here; the first call decides for the process."""
    choice = os.environ.get(VARIABLE, "")
    if choice.lower() in ("off", "0", "no"):
        return BlasStatus(None, f"switched off by {VARIABLE}")
    if sys.platform != "linux":
        return BlasStatus(None, "MLX brings its own on this platform")
    if "mlx.core" in sys.modules:
        return BlasStatus(None, "MLX was imported before tinygpt could load one")
    if _installed("mlx_cuda*"):
        return BlasStatus(None, "this MLX computes on a GPU")
    if _find(ctypes.CDLL(None), "cblas_sgemm"):
        return BlasStatus("already in the process", "something loaded a BLAS before")
    return _load(choice) if choice else _search()


def advice() -> str | None:
    """One line on what to do, or None where a BLAS was loaded or would not help."""
    status = preload()
    if not status.missing:
        return None
    return f"{VARIABLE}: {status.reason}" if os.environ.get(VARIABLE) else ADVICE


def _installed(distribution: str) -> bool:
    return any(any(Path(place).glob(f"{distribution}.dist-info")) for place in sys.path if place)


def _search() -> BlasStatus:
    packaged = _packaged()
    candidates = ([packaged] if packaged else []) + list(LIBRARIES)
    for name in candidates:
        status = _load(name)
        if status.library:
            return status
    return BlasStatus(None, "no OpenBLAS was found", missing=True)


def _packaged() -> str | None:
    spec = importlib.util.find_spec("scipy_openblas32")
    for place in (spec.submodule_search_locations or []) if spec else []:
        for library in sorted(Path(place, "lib").glob("libscipy_openblas*.so")):
            return str(library)
    return None


def _load(name: str) -> BlasStatus:
    """Put one library's routines into the global scope, under their plain names."""
    try:
        library = ctypes.CDLL(name, mode=os.RTLD_LOCAL)
        if _find(library, "cblas_sgemm"):
            ctypes.CDLL(name, mode=os.RTLD_GLOBAL)
        elif _find(library, "scipy_cblas_sgemm"):
            export({n: address_of(library[f"scipy_{n}"]) for n in ROUTINES})
        else:
            return BlasStatus(None, f"{name} has no cblas_sgemm", missing=True)
        return BlasStatus(name, "loaded")
    except (OSError, AttributeError) as error:
        return BlasStatus(None, f"{name} cannot be loaded: {error}", missing=True)


def _find(library: ctypes.CDLL, name: str) -> bool:
    try:
        return bool(library[name])
    except AttributeError:
        return False
