"""How a token is to be chosen, as plain numbers: the command line reads its defaults here."""

from __future__ import annotations

from dataclasses import dataclass

from tinygpt.errors import ConfigError

GREEDY_BELOW = 1e-6  # a smaller temperature cannot tell any two float32 logits apart
MAX_SEED = 2**64 - 1
MAX_COUNT = 2**31 - 1  # what an index on the device can hold
# No finite logit of a working model overflows float32 when it is divided or multiplied by these.
MAX_TEMPERATURE = 1e30
MAX_PENALTY = 1e6


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
        heat, hottest = self.temperature, MAX_TEMPERATURE
        _require(0 <= heat <= hottest, "--temperature", heat, f"from 0 to {hottest:g}")
        counts = f"from 0 (off) to {MAX_COUNT}"
        _require(0 <= self.top_k <= MAX_COUNT, "--top-k", self.top_k, counts)
        _require(0 < self.top_p <= 1, "--top-p", self.top_p, "more than 0 and at most 1 (off)")
        _require(0 <= self.min_p <= 1, "--min-p", self.min_p, "from 0 (off) to 1")
        penalty = self.repetition_penalty
        allowed = 1 / MAX_PENALTY <= penalty <= MAX_PENALTY
        bounds = f"from {1 / MAX_PENALTY:g} to {MAX_PENALTY:g} (1 is off)"
        _require(allowed, "--repetition-penalty", penalty, bounds)
        window = self.repetition_window
        _require(0 <= window <= MAX_COUNT, "--repetition-window", window, f"{counts} tokens")
        seed = self.seed
        _require(seed is None or 0 <= seed <= MAX_SEED, "--seed", seed, f"from 0 to {MAX_SEED}")

    @property
    def greedy(self) -> bool:
        """True when no random number is drawn."""
        return self.temperature < GREEDY_BELOW


def _require(fine: bool, flag: str, given: object, allowed: str) -> None:
    if not fine:
        raise ConfigError(f"{flag} is {given}; it must be {allowed}")
