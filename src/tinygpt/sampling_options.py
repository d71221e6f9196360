"""How a token is to be chosen, as plain numbers: the command line reads its defaults here."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tinygpt.errors import ConfigError

GREEDY_BELOW = 1e-6  # a smaller temperature cannot tell any two float32 logits apart
MAX_SEED = 2**64 - 1


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """How the next token is chosen; the order of the filters is in `tinygpt.sampling`.

    `temperature` 0 takes the most likely token; `top_k` 0, `top_p` 1, `min_p` 0,
    `repetition_penalty` 1 and `repetition_window` 0 (tokens, the prompt's included) switch their
    filter off. `seed` None draws one from the operating system.

    Raises:
        ConfigError: a value out of its range, named with the command line's flag.
    """

    temperature: float = 0.8
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    repetition_window: int = 64
    seed: int | None = None

    def __post_init__(self) -> None:
        finite = math.isfinite(self.temperature)
        _require(finite and self.temperature >= 0, "--temperature", self.temperature, "0 or more")
        _require(self.top_k >= 0, "--top-k", self.top_k, "0 (off) or more")
        _require(0 < self.top_p <= 1, "--top-p", self.top_p, "more than 0 and at most 1 (off)")
        _require(0 <= self.min_p <= 1, "--min-p", self.min_p, "from 0 (off) to 1")
        penalty = self.repetition_penalty
        allowed = math.isfinite(penalty) and penalty > 0
        _require(allowed, "--repetition-penalty", penalty, "more than 0 (1 is off)")
        window = self.repetition_window
        _require(window >= 0, "--repetition-window", window, "0 (off) or more tokens")
        seed = self.seed
        _require(seed is None or 0 <= seed <= MAX_SEED, "--seed", seed, f"from 0 to {MAX_SEED}")

    @property
    def greedy(self) -> bool:
        """True when no random number is drawn."""
        return self.temperature < GREEDY_BELOW


def _require(fine: bool, flag: str, given: object, allowed: str) -> None:
    if not fine:
        raise ConfigError(f"{flag} is {given}; it must be {allowed}")
