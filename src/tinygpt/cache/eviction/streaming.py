"""StreamingLLM (Xiao et al., 2023, arXiv 2309.17453): attention sinks and a recent window.

A query sees the first `sink` tokens and the last `window`, itself included. With rolling positions
(the paper's) tokens are numbered by their place in the cache. Inside the window that changes no
distance, so window keys keep the rotation of their own number for ever; only the distance to the
sinks differs, and for that the query alone is rotated a second time, to its place in the cache.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class StreamingLLM:
    """See `Eviction`. `rolling` False keeps the original distance to the sinks."""

    sink: int
    window: int
    rolling: bool = True

    @property
    def held(self) -> int:
        """See `Eviction`."""
        return self.sink + self.window

    def visible(self, queries: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        """See `Eviction`."""
        at = queries[:, None]
        recent = (tokens < self.sink) | (at - tokens < self.window)
        return np.asarray((tokens >= 0) & (tokens <= at) & recent)

    def sees(self, first: int, end: int, low: int, high: int) -> bool:
        """See `Eviction`."""
        is_recent = end - 1 - max(low, self.sink) < self.window
        return high <= first + 1 and (high <= self.sink or is_recent)

    def sink_positions(self, queries: np.ndarray) -> np.ndarray | None:
        """See `Eviction`."""
        return np.minimum(queries, self.held - 1) if self.rolling and self.sink else None
