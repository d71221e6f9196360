"""A picture and its file. The one place that imports matplotlib."""

from __future__ import annotations

import math
from collections.abc import Sequence
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


def log_scale(axes: Any, name: str, values: Sequence[float]) -> None:
    """A logarithmic axis `name`, "x" or "y", for positive `values`, ticked at 1, 2, 5, 10, …"""
    getattr(axes, f"set_{name}scale")("log")
    low, high = min(values) / 1.3, max(values) * 1.3
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    marks = [step * 10.0**power for power in powers for step in (1, 2, 5)]
    marks = [mark for mark in marks if low <= mark <= high]
    getattr(axes, f"set_{name}ticks")(marks, [f"{mark:,g}" for mark in marks])
    getattr(axes, f"set_{name}ticks")([], minor=True)
    getattr(axes, f"set_{name}lim")(low, high)


def save(figure: Any, path: Path) -> None:
    """Write `figure`; the name's ending is the format. OSError if it cannot be written."""
    figure.savefig(path, dpi=150)
