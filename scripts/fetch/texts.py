"""Writes the texts of `reproduce.sh` into a directory: three novels, and this project's own docs.

    python scripts/fetch/texts.py .cache/texts

No model was trained on the docs: they are younger than all of them.
"""

from __future__ import annotations

import sys
from pathlib import Path

from austen import fetch_novels

ROOT = Path(__file__).parents[2]
NOVELS = ("emma", "prideprejudice", "persuasion")


def own_words() -> str:
    """The README, the docs and the source, as one text."""
    places = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    places = [path for path in places if path.name != "results.md"]
    places += sorted((ROOT / "src").rglob("*.py"))
    return "\n".join(path.read_text(encoding="utf-8") for path in places if path.is_file())


def main(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    if not all((directory / f"{name}.txt").is_file() for name in NOVELS):
        novels = fetch_novels(directory)
        for name in NOVELS:
            (directory / f"{name}.txt").write_bytes(novels[name])
    own = directory / "own.txt"
    if not own.is_file():  # the docs change with every result, and a run must go on from its own
        own.write_text(own_words(), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
