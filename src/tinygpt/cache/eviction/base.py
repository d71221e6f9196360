"""What a policy must say, in token numbers. A policy must not know how tokens are stored."""

from __future__ import annotations

from typing import Protocol

import numpy as np


class Eviction(Protocol):
    """Decides from token numbers alone, so chunks, drafts and restarts cannot change the answer."""

    @property
    def sink(self) -> int:
        """How many first tokens are never evicted."""
        ...

    @property
    def window(self) -> int | None:
        """How many last tokens a query sees, itself included; None for all."""
        ...

    @property
    def held(self) -> int | None:
        """The most tokens that one query sees; None where there is no bound."""
        ...

    def visible(self, queries: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        """Boolean `[T, n]`: which `tokens` [n] each of the `queries` [T] sees; −1 is no token."""
        ...

    def sees(self, first: int, end: int, low: int, high: int) -> bool:
        """Whether each of the queries `first` … `end − 1` sees all tokens `low` … `high − 1`.

        As `visible`, from the ends alone.
        """
        ...

    def sink_positions(self, queries: np.ndarray) -> np.ndarray | None:
        """Positions `[T]` of the queries as their sinks see them; None: their own numbers."""
        ...
