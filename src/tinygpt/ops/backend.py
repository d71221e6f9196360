"""The one place that asks what device MLX runs on.

On a CPU MLX computes exponentials and unpacks codes one element at a time. The same in plain
operations, which do run several elements at a time, takes a fifth and two thirds of the time. A GPU
has kernels for both. `TINYGPT_KERNELS=plain` forces the CPU's side, `=mlx` the GPU's.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import mlx.core as mx

VARIABLE = "TINYGPT_KERNELS"


@dataclass(frozen=True, slots=True)
class BlockSizes:
    """Tokens: of a prompt chunk, and of the queries and kept tokens that are scored at once."""

    prefill_chunk: int
    queries: int
    kept: int


# With 3 × 3 heads the scores of a block take 600 kB, which a core's cache holds: measured, see
# docs/cache.md. A GPU needs larger products to be busy; its sizes were never measured.
CPU_SIZES = BlockSizes(prefill_chunk=128, queries=32, kept=512)
GPU_SIZES = BlockSizes(prefill_chunk=512, queries=512, kept=2048)


def prefers_plain(size: int, least: int) -> bool:
    """Whether `size` elements are to be computed in plain operations: on a CPU, from `least` on.

    Below, the number of operations costs more than their arithmetic.
    """
    forced = os.environ.get(VARIABLE)
    if forced in ("plain", "mlx"):
        return forced == "plain"
    return size >= least and on_cpu()


def on_cpu() -> bool:
    """Whether the CPU's choices are right: a matrix rotates one token, blocks fit its cache."""
    forced = os.environ.get(VARIABLE)
    if forced in ("plain", "mlx"):
        return forced == "plain"
    return bool(mx.default_device().type == mx.DeviceType.cpu)


def block_sizes() -> BlockSizes:
    """The sizes for the device at hand."""
    return CPU_SIZES if on_cpu() else GPU_SIZES
