"""What a run says on stderr and in --stats-json. It formats figures and computes nothing."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tinygpt.cache.kv_cache import KVCache
    from tinygpt.cache.spec import CacheSpec


@dataclass(frozen=True, slots=True)
class Figures:
    """What a generation took: tokens and seconds."""

    prompt_tokens: int
    prefill_tokens: int
    prefill_seconds: float
    generated_tokens: int
    decode_seconds: float

    @property
    def prefill_rate(self) -> float:
        """Tokens per second, 0 when nothing was prefilled."""
        return _rate(self.prefill_tokens, self.prefill_seconds)

    @property
    def decode_rate(self) -> float:
        """Tokens per second, 0 when nothing was generated."""
        return _rate(self.generated_tokens, self.decode_seconds)


def report_line(figures: Figures, cached: bool) -> str:
    """The first line of the report, in the original's form."""
    return (
        f"({figures.generated_tokens} tokens in {figures.decode_seconds:.2f} s — "
        f"{figures.decode_rate:.1f} tok/s · {'KV-cached' if cached else 'uncached'} · "
        f"prefill {figures.prefill_tokens} tokens in {figures.prefill_seconds:.2f} s — "
        f"{figures.prefill_rate:.1f} tok/s)"
    )


def figures_json(figures: Figures) -> dict[str, object]:
    """The same for a program to read; the rates are tokens per second."""
    return {
        **asdict(figures),
        "prefill_tokens_per_second": figures.prefill_rate,
        "decode_tokens_per_second": figures.decode_rate,
    }


def cache_json(cache: KVCache, seen: int) -> dict[str, object]:
    """The cache for a program to read: tokens seen and held, bytes allocated.

    `spec` is what was asked for, `resolved` what that came to.
    """
    return {
        "seen": seen,
        "held": cache.held,
        "bytes": cache.nbytes,
        "spec": asdict(cache.spec),
        "resolved": resolved_json(cache),
    }


def resolved_json(cache: KVCache) -> dict[str, object]:
    """The cache's options as used; those of packing are null where nothing is packed."""
    from tinygpt.cache.report import dtype_name  # brings in MLX, which --help can do without

    spec = cache.spec
    packed = spec.bits is not None
    return {
        "precision": dtype_name(cache) if spec.precision == "full" else spec.precision,
        "group": spec.group if packed else None,
        "residual": spec.residual_for(spec.window) if packed else None,
        "first_fp": max(spec.sinks, spec.first_fp) if packed else None,
        "sink": spec.sinks,
        "window": spec.window,
        "positions": spec.positions,
    }


def banner(spec: CacheSpec, times_smaller: float) -> list[str]:
    """What was chosen for the cache, a line for each axis that is not the default."""
    lines = []
    if spec.precision.startswith("int"):
        lines.append(
            f"KIVI: per-channel K + per-token V, {spec.precision[3:]}-bit, "
            f"groups of {spec.group} ({times_smaller:.1f}× smaller than the full cache)"
        )
    elif spec.precision != "full":
        lines.append(f"KV cache stored at {spec.precision}")
    if spec.window is not None:
        lines.append(
            f"StreamingLLM: sink={spec.sinks} window={spec.window} (drop middle on overflow)"
        )
    return lines


def finish_line(reason: str, cached: bool) -> str | None:
    """Why the text ends, where that is not what was asked for."""
    leave_out = "" if cached else "leave out --no-cache: "
    return {
        "context": f"stopped at the end of the model's learned positions; {leave_out}"
        "--streaming-llm-window M goes on",
        "interrupted": "interrupted",
        "closed": "stopped: nobody reads stdout any more",
    }.get(reason)


def _rate(tokens: int, seconds: float) -> float:
    return tokens / seconds if seconds > 0 else 0.0
