"""The device that a command computes on, and advice where a CPU could be faster."""

from __future__ import annotations

import mlx.core as mx

from tinygpt.blas import advice
from tinygpt.cli.output import Say
from tinygpt.errors import ConfigError

LONG_PREFILL = 256  # tokens; a shorter prompt is over before a faster BLAS would show


def use_device(device: str | None) -> None:
    """Make `device` ("cpu", "gpu") MLX's default; None leaves MLX's own choice.

    Raises:
        ConfigError: a GPU is asked for where there is none.
    """
    if device == "gpu" and not mx.is_available(mx.gpu):
        raise ConfigError("--device gpu: MLX finds no GPU here; use --device cpu")
    if device is not None:
        mx.set_default_device(mx.Device(mx.gpu if device == "gpu" else mx.cpu))


def on_gpu() -> bool:
    """Whether MLX's default device is a GPU."""
    return bool(mx.default_device() == mx.Device(mx.gpu))


def advise(say: Say) -> None:
    """On a CPU, say it where a faster BLAS is to be had."""
    line = advice()
    if line is not None and not on_gpu():
        say(line)
