"""What a cache will take, before anything is allocated."""

from __future__ import annotations

from dataclasses import replace

from tinygpt.cache.kv_cache import eviction_of, storage_of
from tinygpt.cache.layout import CacheLayout
from tinygpt.cache.spec import CacheSpec
from tinygpt.errors import ConfigError

MOST_WINDOW = 1 << 24  # tokens; a larger window is no bound
SCAN = 512  # up to here the residual grows with the window, so bytes need not grow evenly


def cache_bytes(spec: CacheSpec, layout: CacheLayout, tokens: int) -> int:
    """Bytes of all buffers of one sequence after `tokens`."""
    total = 0
    for layer in layout.layers:
        storage = storage_of(spec, layer, eviction_of(spec, layer), layout)
        total += layer.kv_heads * storage.bytes_for(tokens)
    return total


def bytes_per_token(spec: CacheSpec, layout: CacheLayout) -> float:
    """Bytes that one more token takes in a long text; 0 for a bounded cache."""
    short, long = 1 << 16, 1 << 17
    return (cache_bytes(spec, layout, long) - cache_bytes(spec, layout, short)) / (long - short)


def full_bytes(spec: CacheSpec, layout: CacheLayout) -> int:
    """Bytes of a bounded cache once it no longer grows."""
    assert spec.held is not None
    return cache_bytes(spec, layout, 2 * (spec.held + spec.first_fp + 4 * spec.group + SCAN))


def largest_window(
    spec: CacheSpec, layout: CacheLayout, max_bytes: int, most: int = MOST_WINDOW
) -> CacheSpec:
    """`spec` with the largest window, up to `most` tokens, whose full cache fits in `max_bytes`.

    Raises:
        ConfigError: not even the smallest window fits; the message says what that takes.
    """
    least_window = 1 if spec.bits is None else spec.group + (spec.residual or 0)
    small = _windows(spec, range(least_window, min(least_window + SCAN, most) + 1))
    if not small:
        raise ConfigError(
            f"--kv-max-bytes cannot choose a window: none up to {most} tokens holds "
            f"--kv-group {spec.group} and --kv-residual {spec.residual_for(most)}; lower them"
        )
    fitting = [spec for spec in small if full_bytes(spec, layout) <= max_bytes]
    if not fitting:
        least = min(small, key=lambda spec: full_bytes(spec, layout))
        raise ConfigError(
            f"--kv-max-bytes {max_bytes} is too small: the smallest cache that can be made, window "
            f"{least.window}, takes {full_bytes(least, layout)} bytes; raise it, or take a smaller "
            "--kv-quantize"
        )
    low, high = fitting[-1].window or 0, most
    while low < high:  # the largest window that fits lies in [low, high]
        middle = (low + high + 1) // 2
        fits = full_bytes(replace(spec, window=middle), layout) <= max_bytes
        low, high = (middle, high) if fits else (low, middle - 1)
    return replace(spec, window=low)


def _windows(spec: CacheSpec, sizes: range) -> list[CacheSpec]:
    """`spec` with each window that its groups and residual allow."""
    found = []
    for size in sizes:
        try:
            found.append(replace(spec, window=size))
        except ConfigError:
            continue
    return found


def fitting_flags(layout: CacheLayout, tokens: int, free: int) -> str | None:
    """The flags of the mildest cache for `tokens` that fits in `free` bytes; None if none does."""
    for precision in ("int8", "int4"):
        try:
            if cache_bytes(CacheSpec(precision), layout, tokens) <= free:
                return f"--kv-quantize {precision}"
        except ConfigError:  # a head_dim without a group
            continue
    for precision in ("int8", "fp16"):
        try:
            bounded = largest_window(CacheSpec(precision), layout, free, max(SCAN, tokens))
        except ConfigError:
            continue
        return f"--kv-quantize {precision} --streaming-llm-window {bounded.window}"
    return None
