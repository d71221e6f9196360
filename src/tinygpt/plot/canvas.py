"""A picture and its file. The one place that imports matplotlib."""

from __future__ import annotations

from importlib import import_module, util
from pathlib import Path
from typing import Any

from tinygpt.errors import ConfigError

FORMATS = ("png", "svg", "pdf")
# Lines and points differ in shape as well as in colour, for print and for the colour-blind.
MARKERS = "osD^vP*X<>dhp"
DASHES = ("-", "--", "-.", ":")


def check_matplotlib() -> None:
    """Raise ConfigError unless matplotlib is installed."""
    if util.find_spec("matplotlib") is None:
        raise ConfigError(
            "pictures need matplotlib, which is not installed: pip install matplotlib"
        )


def new_figure(width: float = 8, height: float = 5) -> Any:
    """An empty figure, inches, that fits its labels."""
    figure = import_module("matplotlib.figure")
    return figure.Figure(figsize=(width, height), layout="constrained")


def style(index: int) -> dict[str, object]:
    """How the `index`-th line looks, in black and white too."""
    marker = MARKERS[index % len(MARKERS)]
    return {"marker": marker, "linestyle": DASHES[index % len(DASHES)], "markersize": 6}


def save(figure: Any, path: Path) -> None:
    """Write `figure`; the name's ending is the format.

    Raises:
        ConfigError: it cannot be written.
    """
    try:
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from error
