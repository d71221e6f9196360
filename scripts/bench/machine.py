"""Writes down what kind of machine the results come from, and when.

python scripts/bench/machine.py docs/results/machine.json
"""

from __future__ import annotations

import json
import os
import platform
import sys
from datetime import date
from importlib import metadata
from pathlib import Path

from tinygpt.blas import preload

PACKAGES = ("tinygpt", "mlx", "mlx-lm", "numpy", "scipy-openblas32")


def machine() -> str:
    """The kind of machine, without its name."""
    count = getattr(os, "sched_getaffinity", None)
    cores = len(count(0)) if count else os.cpu_count()
    return f"{platform.system()} {platform.machine()} with {cores} cores"


def versions() -> dict[str, str]:
    """Python and the packages that matter, those that are installed."""
    found = {"Python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    library = preload().library
    return found | {"BLAS": "none" if library is None else Path(library).name}


def main(path: Path) -> None:
    if not path.is_file():  # a run that goes on keeps the date of its beginning
        found = {"machine": machine(), "date": date.today().isoformat(), "versions": versions()}
        path.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
