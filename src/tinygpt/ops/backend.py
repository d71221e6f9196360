"""The one place that asks what device MLX runs on.

On a CPU MLX computes exponentials and unpacks codes one element at a time. The same in plain
operations, which do run several elements at a time, takes a fifth and two thirds of the time. A GPU
has kernels for both. `TINYGPT_KERNELS=plain` or `=mlx` forces either side.
"""

from __future__ import annotations

import os

import mlx.core as mx

VARIABLE = "TINYGPT_KERNELS"


def prefers_plain(size: int, least: int) -> bool:
    """Whether `size` elements are to be computed in plain operations: on a CPU, from `least` on.

    Below, the number of operations costs more than their arithmetic.
    """
    forced = os.environ.get(VARIABLE)
    if forced in ("plain", "mlx"):
        return forced == "plain"
    return size >= least and mx.default_device().type == mx.DeviceType.cpu
