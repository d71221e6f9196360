"""Opens and runs thousands of damaged models and reports whatever is neither refused nor run.

    python scripts/fuzz/run.py --cases 10000 --seed 1
    python scripts/fuzz/run.py --seed 1 --only 4711 --keep /tmp/case

Right is: exit status 2 and one line on stderr, 1 for weights that give no finite logits, or a
model that runs. A finding is a traceback, a signal, a hang, or memory beyond the file and a
program's own; the status is 1 if there is one. A worker process goes through the cases; where it
dies or hangs, another goes on with the next.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import resource
import select
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

SECONDS = 30  # for one case; the slowest took less than one on a quiet machine
# Bytes of address space beyond what the worker has at its start. The files here are of some 100 KB,
# so a size that is believed from one is far beyond this, or harmless.
SLACK = 256 * 2**20
WORKER_CASES = 500  # what is left of a case in a process, some 10 KB, is not what we look for
TOKENS = 2
FINDINGS = ("traceback", "status", "lines", "memory", "signal", "hang")
WORKER = "--worker"


def run_case(place: Path, seed: int, number: int) -> tuple[str, str, str]:
    """The case's kind, its outcome ("runs", "refused", "not finite", a finding) and what was said.

    The files are left in `place`.
    """
    from cases import damaged_case

    kind, opened, files = damaged_case(seed, number)
    for name, data in files.items():
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return kind, *judge(place / opened)


def judge(model: Path) -> tuple[str, str]:
    """The outcome of sampling from a model, and what it wrote to stderr."""
    from tinygpt.cli.main import run
    from tinygpt.cli.signals import Signals

    arguments = ["sample", str(model), "--prompt", "ab", "--tokens", str(TOKENS)]
    arguments += ["--temperature", "0", "--quiet"]
    text = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    with captured_stderr() as notes, contextlib.redirect_stdout(text):
        try:
            return outcome(run(arguments, Signals()), notes()), notes()
        except MemoryError:
            return "memory", traceback.format_exc()
        except BaseException:
            return "traceback", traceback.format_exc()


@contextlib.contextmanager
def captured_stderr() -> Iterator[Callable[[], str]]:
    """What is written to file descriptor 2, by libraries that know no sys.stderr as well."""
    with tempfile.TemporaryFile() as file:
        before = os.dup(2)
        os.dup2(file.fileno(), 2)

        def written() -> str:
            sys.stderr.flush()
            return os.pread(file.fileno(), 1 << 20, 0).decode("utf-8", "replace")

        try:
            yield written
        finally:
            sys.stderr.flush()
            os.dup2(before, 2)
            os.close(before)


def outcome(status: int, notes: str) -> str:
    """What a status and the notes mean."""
    if status == 0:
        return "runs"
    if "out of memory" in notes:
        return "memory"
    if notes.count("\n") != 1:
        return "lines"
    if status == 2:
        return "refused"
    return "not finite" if status == 1 and "finite" in notes else "status"


def work(seed: int, numbers: range) -> None:
    """Go through the cases; each outcome is a line of JSON on stdout."""
    sys.path.insert(0, str(Path(__file__).parent))
    from tinygpt.blas import preload

    preload()
    import cases

    cases.damaged_case(seed, 0)
    say, sys.stdout = sys.stdout, sys.stderr
    with tempfile.TemporaryDirectory() as place:
        run_case(Path(place) / "warm", seed, 0)  # whatever is imported late is there now
        limit_memory()
        for number in numbers:
            case = Path(place) / str(number)
            found = run_case(case, seed, number)
            shutil.rmtree(case)
            print(json.dumps(found), file=say, flush=True)


def limit_memory() -> None:
    """Let allocations fail beyond what the process has now and `SLACK` bytes."""
    with contextlib.suppress(OSError, ValueError):
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * os.sysconf("SC_PAGE_SIZE") + SLACK
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


class Fuzz:
    """Counts outcomes by kind and keeps the findings."""

    def __init__(self, seed: int, cases: int) -> None:
        self.seed, self.cases = seed, cases
        self.counts: Counter[tuple[str, str]] = Counter()
        self.findings: list[tuple[int, str, str, str]] = []
        self._began = time.monotonic()

    def go(self) -> None:
        """Run all cases, in as many workers as it takes."""
        number = 0
        while number < self.cases:
            number = self._one_worker(number)

    def _one_worker(self, first: int) -> int:
        """Cases from `first` on, until the worker ends; returns the next one."""
        last = min(self.cases, first + WORKER_CASES)
        command = [sys.executable, __file__, WORKER, str(first), "--seed", str(self.seed)]
        command += ["--cases", str(last)]
        # A Rust panic that collects a backtrace in little memory never ends.
        environment = {**os.environ, "RUST_BACKTRACE": "0"}
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as worker:
            number, slow = first, 10  # the first answer takes the imports as well
            while number < last:
                line = read_line(worker, SECONDS * slow)
                if line is None or not line:
                    hangs = line is None
                    worker.kill()
                    ended = "no answer" if hangs else f"worker ended with {worker.wait()}"
                    self._count(number, self._kind(number), "hang" if hangs else "signal", ended)
                    return number + 1
                self._count(number, *json.loads(line))
                number, slow = number + 1, 1
        return number

    def _kind(self, number: int) -> str:
        from cases import KINDS

        return list(KINDS)[number % len(KINDS)]

    def _count(self, number: int, kind: str, found: str, said: str) -> None:
        self.counts[kind, found] += 1
        if found in FINDINGS:
            self.findings.append((number, kind, found, said))
            print(f"case {number}, {kind}: {found}\n{said.strip()[-2000:]}", file=sys.stderr)
        if number % 500 == 499:
            seconds = time.monotonic() - self._began
            print(f"{number + 1} cases, {seconds:.0f} s", file=sys.stderr, flush=True)

    def summary(self) -> str:
        """A table of kinds and outcomes."""
        outcomes = sorted({found for _, found in self.counts})
        kinds = sorted({kind for kind, _ in self.counts})
        lines = [f"{'':<18}" + "".join(f"{found:>12}" for found in outcomes)]
        for kind in kinds:
            numbers = (self.counts[kind, found] for found in outcomes)
            lines.append(f"{kind:<18}" + "".join(f"{number:>12}" for number in numbers))
        lines.append(f"{self.cases} cases of seed {self.seed}, {len(self.findings)} findings")
        return "\n".join(lines)


def read_line(worker: subprocess.Popen[bytes], seconds: float) -> bytes | None:
    """The worker's next line, b"" at its end, None if it does not come in time."""
    assert worker.stdout is not None
    waiting, _, _ = select.select([worker.stdout], [], [], seconds)
    return worker.stdout.readline() if waiting else None


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, help="run one case in this process and say how it ends")
    parser.add_argument("--keep", type=Path, help="with --only: a directory to leave the files in")
    parser.add_argument(WORKER, type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker is not None:
        work(given.seed, range(given.worker, given.cases))
        return 0
    if given.only is not None:
        place = given.keep or Path(tempfile.mkdtemp())
        found = run_case(place, given.seed, given.only)
        print(*found, f"files in {place}", sep="\n")
        return int(found[1] in FINDINGS)
    fuzz = Fuzz(given.seed, given.cases)
    fuzz.go()
    print(fuzz.summary())
    return int(bool(fuzz.findings))


if __name__ == "__main__":
    sys.exit(main())
