"""A BLAS is found, takes over MLX's products, gives right results, and never makes a run fail."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys

import pytest

linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux wheels need a BLAS")

MATMUL_ERROR = 1e-3  # of a 256-term float32 sum of normal numbers; a wrong routine is off by 10

SNIPPET = """
import json, ctypes
from tinygpt.blas import advice, preload
status = preload()
import mlx.core as mx, numpy as np
a, b = np.random.default_rng(0).normal(size=(2, 256, 256)).astype(np.float32)
wrong = np.abs(np.array(mx.array(a) @ mx.array(b)) - a.astype(float) @ b).max()
try:
    found = ctypes.CDLL(None)["cblas_sgemm"] is not None
except AttributeError:
    found = False
print(json.dumps([status.library, status.reason, status.missing, advice(), float(wrong), found]))
"""


def preloaded(snippet: str = SNIPPET, **environment: str) -> list[object]:
    """What a fresh process says: library, reason, missing, advice, matmul error, found globally."""
    variables = {k: v for k, v in os.environ.items() if k not in ("TINYGPT_BLAS", "LD_PRELOAD")}
    done = subprocess.run(
        [sys.executable, "-c", snippet],
        capture_output=True,
        text=True,
        check=True,
        env=variables | {"OPENBLAS_NUM_THREADS": "1"} | environment,
    )
    return list(json.loads(done.stdout))


@linux
def test_what_is_found_here_takes_over_and_multiplies_correctly() -> None:
    library, reason, missing, advice, wrong, found = preloaded()
    if missing:
        assert library is None and advice and not found
    else:
        assert library and reason == "loaded" and advice is None
        assert found, "MLX would not see the library"
    assert wrong < MATMUL_ERROR


@linux
def test_off_means_nothing_is_loaded_and_nothing_is_advised() -> None:
    library, reason, _, advice, wrong, found = preloaded(TINYGPT_BLAS="off")
    assert (library, advice, found) == (None, None, False)
    assert "TINYGPT_BLAS" in reason and wrong < MATMUL_ERROR


@linux
@pytest.mark.parametrize("library", ["/no/such/library.so", "libc.so.6", __file__])
def test_a_library_that_is_none_is_reported_and_mlx_still_works(library: str) -> None:
    loaded, reason, _, advice, wrong, found = preloaded(TINYGPT_BLAS=library)
    assert loaded is None and not found and library in reason
    assert advice and library in advice and wrong < MATMUL_ERROR


@linux
def test_after_mlx_it_is_too_late_and_said_so() -> None:
    library, reason, *_ = preloaded("import mlx.core\n" + SNIPPET)
    assert library is None and "MLX was imported before" in reason


@linux
@pytest.mark.parametrize("command", ["sample", "inspect"])
def test_the_command_line_loads_it_before_mlx(command: str) -> None:
    snippet = f"""
import contextlib, io, json
from tinygpt.cli.main import main
with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
    main(["{command}", "--help"])
import mlx.core
from tinygpt.blas import preload
print(json.dumps([preload().reason]))
"""
    assert "before" not in str(preloaded(snippet)[0]), "something brought in MLX too early"


@linux
def test_a_blas_that_is_already_global_is_left_alone() -> None:
    first, *_ = preloaded()
    if first is None or "scipy" in str(first):
        pytest.skip("needs an OpenBLAS with plain names on this machine")
    before = f"import ctypes, os; ctypes.CDLL({first!r}, mode=os.RTLD_GLOBAL)\n"
    library, *_, found = preloaded(before + SNIPPET)
    assert library == "already in the process" and found


@linux
def test_aliases_are_found_under_their_new_names_and_call_the_old_functions() -> None:
    snippet = """
import ctypes, json
from tinygpt.blas_alias import address_of, export
libm = ctypes.CDLL("libm.so.6")
names = {f"tinygpt_alias_{i}": address_of(libm[n]) for i, n in enumerate(("cos", "sin", "floor"))}
export(names)
values = []
for name in names:
    function = ctypes.CDLL(None)[name]
    function.restype, function.argtypes = ctypes.c_double, [ctypes.c_double]
    values.append(function(2.5))
stack = [line.split()[1] for line in open("/proc/self/maps") if "[stack]" in line]
print(json.dumps([values, stack]))
"""
    values, stack = preloaded(snippet)
    assert values == [math.cos(2.5), math.sin(2.5), 2.0]
    assert stack == ["rw-p"], "the loader made the stack executable"


@linux
def test_the_packaged_openblas_takes_over_by_aliases_where_it_is_installed() -> None:
    pytest.importorskip("scipy_openblas32")
    library, *_, wrong, found = preloaded()
    assert "scipy_openblas32" in str(library) and found and wrong < MATMUL_ERROR


@pytest.mark.skipif(sys.platform != "darwin", reason="macOS only")
def test_on_macos_nothing_is_done() -> None:
    library, reason, missing, advice, *_ = preloaded()
    assert (library, missing, advice) == (None, False, None) and "platform" in str(reason)
