"""No eviction: every query sees all tokens up to itself."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class KeepAll:
    """See `Eviction`."""

    sink: int = 0
    window: None = None
    held: None = None

    def visible(self, queries: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        """See `Eviction`."""
        return np.asarray((tokens >= 0) & (tokens <= queries[:, None]))

    def sees(self, first: int, end: int, low: int, high: int) -> bool:
        """See `Eviction`."""
        return high <= first + 1

    def sink_positions(self, queries: np.ndarray) -> np.ndarray | None:
        """See `Eviction`."""
        return None
