"""Pictures that `tinygpt plot` and `attention` leave in a directory."""

from __future__ import annotations

from pathlib import Path

from tinygpt.cli.output import writing
from tinygpt.errors import ConfigError
from tinygpt.plot.canvas import save


def out_directory(path: Path) -> None:
    """Make the directory `path`; ConfigError if that cannot be."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--out {path}: {error.strerror}; choose another place") from error


def save_picture(figure: object, path: Path) -> None:
    """Write `figure`; the name's ending is the format. OutputError if it cannot be written."""
    with writing(path):
        save(figure, path)
