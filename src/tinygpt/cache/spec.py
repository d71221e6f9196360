"""What the user asked for, and the one table of its flags.

`CacheSpec` holds the choice and refuses what cannot be right; `FLAGS` feeds the command line, the
file headers and the docs. This module knows no model and allocates nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

from tinygpt.errors import ConfigError

PRECISIONS = ("full", "fp32", "fp16", "bf16", "int8", "int4", "int3", "int2")
POSITIONS = ("rolling", "absolute")
GROUPS = (32, 64, 128)  # what mx.quantized_matmul accepts
DEFAULT_SINK = 4
DEFAULT_RESIDUAL = 32
MOST = 2**31 - 1  # what an index of an array can hold


@dataclass(frozen=True, slots=True)
class CacheSpec:
    """Precision, eviction and positions of a cache. Sizes are tokens.

    `precision` "full" is the model's compute type. `group` is how many tokens of a key channel
    share a scale. `residual` None is 32, with a window at most an eighth of it in steps of 8.
    `sink` None is 4 with a window. `slack` is how many of the last tokens may be undone.

    Raises:
        ConfigError: a value outside its range, or a window too small for the groups.
    """

    precision: str = "full"
    group: int = 32
    residual: int | None = None
    first_fp: int = 4
    sink: int | None = None
    window: int | None = None
    positions: str = "rolling"
    slack: int = 0

    def __post_init__(self) -> None:
        _one_of("--kv-quantize", self.precision, PRECISIONS)
        _one_of("--streaming-llm-positions", self.positions, POSITIONS)
        _one_of("--kv-group", self.group, GROUPS)
        for flag, value, least in (
            ("--kv-residual", self.residual, 0),
            ("--kv-first-fp", self.first_fp, 0),
            ("--streaming-llm-sink", self.sink, 0),
            ("--streaming-llm-window", self.window, 1),
            ("slack", self.slack, 0),
        ):
            if value is not None and (type(value) is not int or not least <= value <= MOST):
                raise ConfigError(
                    f"{flag} is {value}; it must be a whole number from {least} to {MOST}"
                )
        if self.sink and self.window is None:
            raise ConfigError(
                f"--streaming-llm-sink {self.sink} needs --streaming-llm-window: "
                "without a window nothing is evicted"
            )
        if self.bits is not None and self.window is not None:
            self.check_window(self.window, "--streaming-llm-window")

    def check_window(self, window: int, name: str) -> None:
        """Raise ConfigError if a packed cache of this group cannot have `window`, called `name`."""
        residual = self.residual_for(window)
        if self.bits is not None and window < residual + self.group:
            raise ConfigError(
                f"{name} {window} is smaller than --kv-residual {residual} + --kv-group "
                f"{self.group}, so no group could ever be packed: take a larger window, a smaller "
                "--kv-group or --kv-residual, or --kv-quantize fp16"
            )

    @property
    def bits(self) -> int | None:
        """Bits of a code, None where tokens are stored as floats."""
        return int(self.precision[3:]) if self.precision.startswith("int") else None

    @property
    def sinks(self) -> int:
        """How many first tokens are never evicted."""
        if self.window is None:
            return 0
        return DEFAULT_SINK if self.sink is None else self.sink

    @property
    def held(self) -> int | None:
        """The most tokens that one query sees, None where there is no bound."""
        return None if self.window is None else self.sinks + self.window

    def residual_for(self, window: int | None) -> int:
        """How many last tokens at least stay in half precision."""
        if self.residual is not None:
            return self.residual
        if window is None:
            return DEFAULT_RESIDUAL
        return min(DEFAULT_RESIDUAL, window // 8 // 8 * 8)

    def value_group(self, head_dim: int) -> int:
        """How many channels of a value share a scale.

        Raises:
            ConfigError: no group that the kernels accept divides `head_dim`.
        """
        for group in sorted(GROUPS, reverse=True):
            if group <= self.group and head_dim % group == 0:
                return group
        raise ConfigError(
            f"--kv-quantize {self.precision} needs a head_dim that one of the groups 32, 64, 128 "
            f"up to --kv-group {self.group} divides; this model's head_dim is {head_dim}: "
            "take --kv-quantize fp16"
        )


def _one_of(flag: str, value: object, allowed: tuple[object, ...]) -> None:
    if value not in allowed:
        raise ConfigError(f"{flag} is {value!r}; it must be one of {', '.join(map(str, allowed))}")


@dataclass(frozen=True, slots=True)
class Flag:
    """One option: its flag, its key in a spec, its key in a `.tinygpt` header, its default.

    `parse` turns the flag's text into a value and raises ConfigError.
    """

    flag: str
    key: str
    parse: Callable[[str], object]
    help: str
    metavar: str
    header: str | None = None
    default: object = None


def parse_choice(flag: str, choices: tuple[str, ...]) -> Callable[[str], object]:
    """A parser that takes one of `choices`."""

    def parse(text: str) -> object:
        _one_of(flag, text, choices)
        return text

    return parse


def parse_count(flag: str, least: int, *words: str) -> Callable[[str], object]:
    """A parser for an integer of at least `least`, or one of `words`."""
    allowed = f"an integer from {least} to {MOST}" + "".join(f", or {word!r}" for word in words)

    def parse(text: str) -> object:
        if text in words:
            return text
        digits = text.removeprefix("-")
        if not (digits.isascii() and digits.isdigit() and len(digits) <= 10):
            raise ConfigError(f"{flag} is {text!r}; it must be {allowed}")
        if not least <= int(text) <= MOST:
            raise ConfigError(f"{flag} is {text}; it must be {allowed}")
        return int(text)

    return parse


_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}


def parse_bytes(text: str) -> int:
    """Bytes from `64M`, `1.5G`, `512Ki`, `1000000`; a trailing B is allowed."""
    number = text.strip().lower().removesuffix("b")
    digits = number.rstrip("kmgi")
    try:
        size = float(digits) * _UNITS[number[len(digits) :]]
        if not 1 <= size < 2**63:
            raise ValueError
    except (ValueError, KeyError):
        raise ConfigError(
            f"--kv-max-bytes is {text!r}; it must be a size such as 64M, 1.5G or 512Ki"
        ) from None
    return int(size)


_DEFAULTS = {field.name: field.default for field in fields(CacheSpec)}

FLAGS: tuple[Flag, ...] = (
    Flag(
        "--kv-quantize",
        "precision",
        parse_choice("--kv-quantize", PRECISIONS),
        "How a kept token is stored. int8, int4, int3 and int2 are KIVI; full is the compute type.",
        "|".join(PRECISIONS),
        header="kviBits",
        default=_DEFAULTS["precision"],
    ),
    Flag(
        "--kv-group",
        "group",
        parse_choice("--kv-group", tuple(map(str, GROUPS))),
        "Tokens of a key channel that share a scale (int8 to int2).",
        "32|64|128",
        default=_DEFAULTS["group"],
    ),
    Flag(
        "--kv-residual",
        "residual",
        parse_count("--kv-residual", 0),
        "Last tokens that stay in half precision (int8 to int2). Default: 32; with a window at "
        "most an eighth of it.",
        "N",
    ),
    Flag(
        "--kv-first-fp",
        "first_fp",
        parse_count("--kv-first-fp", 0),
        "First tokens that stay in half precision (int8 to int2).",
        "N",
        default=_DEFAULTS["first_fp"],
    ),
    Flag(
        "--streaming-llm-sink",
        "sink",
        parse_count("--streaming-llm-sink", 0),
        "First tokens that are never evicted. Default: 4 with a window.",
        "N",
        header="streamingSink",
    ),
    Flag(
        "--streaming-llm-window",
        "window",
        parse_count("--streaming-llm-window", 1, "none"),
        "Keep only the last M tokens beyond the sinks; none keeps all.",
        "M|none",
        header="streamingWindow",
        default="none",
    ),
    Flag(
        "--streaming-llm-positions",
        "positions",
        parse_choice("--streaming-llm-positions", POSITIONS),
        "Distance to the sinks: by place in the cache (rolling), or the original one (absolute).",
        "|".join(POSITIONS),
        default=_DEFAULTS["positions"],
    ),
    Flag(
        "--kv-max-bytes",
        "max_bytes",
        parse_bytes,
        "Pick the largest window whose cache fits in this many bytes (64M, 1.5G, 512Ki).",
        "SIZE",
    ),
    Flag(
        "--prefill-chunk",
        "prefill_chunk",
        parse_count("--prefill-chunk", 1),
        "Prompt tokens computed at a time (128 on a CPU, 512 on a GPU); it changes memory and "
        "speed, not the text.",
        "N",
    ),
)
