"""How a model's rotary frequencies were stretched for longer texts than it was first trained on.

Formulas are those of the Hugging Face definitions, in float64. llama3: Llama 3.1 (arXiv
2407.21783). yarn: Peng et al., 2023, arXiv 2309.00071. longrope: Ding et al., 2024, arXiv
2402.13753. dynamic: NTK-aware scaling whose base grows with the text.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from tinygpt.errors import ConfigError

Kind = Literal["linear", "dynamic", "llama3", "yarn", "longrope", "divisors"]
KINDS: tuple[str, ...] = get_args(Kind)
LARGEST = 1e30  # of a factor; float32 holds its products

Frequencies = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """One scaling. A kind reads the fields that its line names; the others keep their defaults.

    linear      factor
    dynamic     factor, original_context (the context from which on the base grows)
    llama3      factor, original_context, low_freq_factor, high_freq_factor
    yarn        factor, original_context, beta_fast, beta_slow, truncate, attention_factor
    longrope    divisors up to original_context tokens, long_divisors beyond it, attention_factor
    divisors    divisors (GGUF's rope_freqs), attention_factor

    Divisors are what the frequencies are divided by, one for each pair of dimensions.
    `attention_factor` multiplies rotated queries and keys.

    Raises:
        ConfigError: a kind that does not exist, or a field that is no positive number of use.
    """

    kind: Kind
    factor: float = 1.0
    original_context: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    divisors: tuple[float, ...] = ()
    long_divisors: tuple[float, ...] = ()
    attention_factor: float = 1.0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError(f"rope scaling {self.kind!r} does not exist; use {', '.join(KINDS)}")
        numbers = (self.factor, self.beta_fast, self.beta_slow, self.attention_factor)
        if not all(0 < x < LARGEST for x in (*numbers, *self.divisors, *self.long_divisors)):
            raise ConfigError(
                f"{self.kind} rope scaling: every factor must be positive and below {LARGEST:g}"
            )
        if self.kind in ("dynamic", "llama3", "yarn", "longrope") and self.original_context < 1:
            raise ConfigError(
                f"{self.kind} rope scaling: original context is {self.original_context} tokens; "
                "it must be at least 1"
            )
        if self.kind == "llama3" and not 0 < self.low_freq_factor < self.high_freq_factor:
            raise ConfigError(
                f"llama3 rope scaling: low_freq_factor is {self.low_freq_factor}; it must be "
                f"positive and below high_freq_factor {self.high_freq_factor}"
            )

    def check_pairs(self, pairs: int) -> None:
        """ConfigError where there is not one divisor for each of `pairs` pairs of dimensions."""
        given = {
            "divisors": [self.divisors],
            "longrope": [self.divisors, self.long_divisors],
        }
        for divisors in given.get(self.kind, []):
            if len(divisors) != pairs:
                raise ConfigError(
                    f"{self.kind} rope scaling has {len(divisors)} divisors, a rotation of "
                    f"{2 * pairs} dimensions needs {pairs}"
                )


def plain_frequencies(base: float, dims: int) -> Frequencies:
    """Radians a position for each pair of dimensions, `[dims/2]`."""
    frequencies: Frequencies = base ** (-np.arange(0, dims, 2, dtype=np.float64) / dims)
    return frequencies


def scaled_frequencies(base: float, dims: int, scaling: RopeScaling) -> Frequencies:
    """`plain_frequencies` under a scaling; those that depend on a text's length: a short one."""
    plain = plain_frequencies(base, dims)
    match scaling.kind:
        case "linear":
            return plain / scaling.factor
        case "llama3":
            return _llama3(plain, scaling)
        case "yarn":
            return _yarn(plain, base, scaling)
        case "longrope" | "divisors":
            plain /= np.array(scaling.divisors)
    return plain  # dynamic: a short text is not stretched


def dynamic_base(base: float, dims: int, scaling: RopeScaling, tokens: int) -> float:
    """The base of dynamic scaling for a text of `tokens`."""
    stretch = max(1.0, tokens / scaling.original_context)
    grown = scaling.factor * stretch - (scaling.factor - 1)
    return float(base * grown ** (dims / (dims - 2)))


def yarn_attention_factor(factor: float, mscale: float = 1.0, mscale_all_dim: float = 0.0) -> float:
    """YaRN's attention factor; a zero in either mscale leaves both out."""
    if factor <= 1:
        return 1.0
    if not mscale or not mscale_all_dim:
        mscale, mscale_all_dim = 1.0, 0.0
    log = 0.1 * math.log(factor)
    return (mscale * log + 1) / (mscale_all_dim * log + 1)


def longrope_attention_factor(factor: float, original_context: int) -> float:
    """LongRoPE's attention factor for a context that is `factor` times the original."""
    if factor <= 1 or original_context < 2:
        return 1.0
    return math.sqrt(1 + math.log(factor) / math.log(original_context))


def _llama3(plain: Frequencies, scaling: RopeScaling) -> Frequencies:
    """Long waves divided by the factor, short ones kept, a linear blend between."""
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    turns = scaling.original_context * plain / (2 * math.pi)  # in the original context
    kept = np.clip((turns - low) / (high - low), 0, 1)
    blended: Frequencies = plain * (kept + (1 - kept) / scaling.factor)
    return blended


def _yarn(plain: Frequencies, base: float, scaling: RopeScaling) -> Frequencies:
    """Frequencies of many turns in the original context kept, those of few divided."""
    pairs = len(plain)

    def pair_of(turns: float) -> float:
        return pairs * math.log(scaling.original_context / (turns * 2 * math.pi)) / math.log(base)

    first, last = pair_of(scaling.beta_fast), pair_of(scaling.beta_slow)
    if scaling.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, 2 * pairs - 1)
    last = last + 0.001 if first == last else last
    divided = np.clip((np.arange(pairs) - first) / (last - first), 0, 1)
    blended: Frequencies = plain * (1 - divided + divided / scaling.factor)
    return blended
