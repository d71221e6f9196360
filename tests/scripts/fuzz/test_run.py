"""A short run of the fuzzer, and that it sees what it is there to see."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]
FUZZ = ROOT / "scripts" / "fuzz"
CASES, SEED = 240, 3  # 30 of each kind
LIMIT = 300  # seconds


@pytest.fixture(scope="module")
def fuzz() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fuzz", FUZZ / "run.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(*arguments: object, script: Path = FUZZ / "run.py") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(script), "--cases", str(CASES), "--seed", str(SEED)]
    command += map(str, arguments)
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)


def test_damaged_models_are_refused_or_run() -> None:
    done = run()
    assert done.returncode == 0, done.stderr[-4000:] + done.stdout
    assert f"{CASES} cases of seed {SEED}, 0 findings" in done.stdout
    header, *rows, _ = done.stdout.splitlines()
    assert header.split()[-2:] == ["refused", "runs"] and len(rows) == 8
    assert sum(int(row.split()[-2]) for row in rows) > CASES // 2, "the damage is too weak"
    assert sum(int(row.split()[-1]) for row in rows) > CASES // 40, "the damage is too strong"


def test_a_case_is_the_same_each_time(tmp_path: Path) -> None:
    files = []
    for name in ("a", "b"):
        run("--only", 5, "--keep", tmp_path / name)
        config = tmp_path / name / "directory" / "config.json"
        files.append(config.read_bytes())
    assert files[0] == files[1]


@pytest.mark.parametrize(
    ("status", "notes", "expected"),
    [
        (0, "", "runs"),
        (2, "tinygpt: error: no\n", "refused"),
        (2, "tinygpt: error: no\nand more\n", "lines"),
        (2, "", "lines"),
        (1, "tinygpt: error: logits are not finite\n", "not finite"),
        (1, "tinygpt: error: out of memory; less\n", "memory"),
        (1, "tinygpt: error: cannot write\n", "status"),
        (139, "gone\n", "status"),
    ],
)
def test_an_outcome_is_judged_by_status_and_lines(
    fuzz: ModuleType, status: int, notes: str, expected: str
) -> None:
    assert fuzz.outcome(status, notes) == expected


PLANTED = {
    "traceback": "raise KeyError('planted')",
    "signal": "os.kill(os.getpid(), 11)",
    "hang": "time.sleep(3600)",
    "memory": "bytearray(1 << 34)",
    "lines": "os.write(2, b'panic\\n')",
}


@pytest.mark.parametrize("expected", PLANTED)
def test_a_planted_fault_is_found(tmp_path: Path, expected: str) -> None:
    """A copy of the fuzzer whose every case does something bad before it opens a model."""
    if expected == "memory" and not Path("/proc/self/statm").is_file():
        pytest.skip("the size of a process is not told here, so it cannot be limited")
    text = (FUZZ / "run.py").read_text()
    place = "    from tinygpt.cli.main import run\n"
    assert text.count(place) == 1
    planted = f"    if model.parent.name == '0':\n        {PLANTED[expected]}\n"
    text = text.replace("def judge(", "def bad(model):\n" + planted + "\n\ndef judge(")
    text = text.replace("outcome(run(", "outcome(bad(model) or run(").replace(
        "SECONDS = 30", "SECONDS = 1"
    )
    script = tmp_path / "run.py"
    script.write_text(text)
    cases = (FUZZ / "cases.py").read_text()
    cases = cases.replace("Path(__file__).parents[2]", f"Path({str(ROOT)!r})")
    (tmp_path / "cases.py").write_text(cases)
    done = run("--cases", 2, script=script)
    assert done.returncode == 1
    assert f"case 0, .tinygpt header: {expected}" in done.stderr, done.stderr[-3000:]
