"""The sections of the results page that are about time."""

from __future__ import annotations

from collections.abc import Sequence

from tables import code, megabytes, number, table


def bench_section(found: dict) -> str:
    rows = [
        [
            code(one["cache"]),
            f"{one['length']:,}",
            f"{one['prefill_tokens_per_second']:.0f}",
            f"{1000 * one['first_token_seconds']:.0f}",
            f"{one['decode_tokens_per_second']:.1f}",
            *(f"{1000 * one[f'latency_p{p}']:.1f}" for p in (50, 90, 99)),
            number(1000 * one["decode_floor_seconds"], ".1f"),
            megabytes(one["bytes"]),
            megabytes(one["peak_bytes"]),
        ]
        for one in found["bench"]
    ]
    head = ["cache", "prompt", "prefill tok/s", "first token ms", "decode tok/s", "p50 ms", "p90"]
    text = (
        f"## Speed\n\nMedians of alternated runs, {found['tokens']} tokens each. The floor is the "
        f"time to read the weights and the cache once, at the {found['bandwidth'] / 1e9:.1f} GB/s "
        "that were measured in the same run.\n\n"
        + table([*head, "p99", "floor ms", "cache", "peak"], rows)
    )
    if not found["pairs"]:
        return text
    pairs = [
        [
            code(one["cache"]),
            f"{one['length']:,}",
            *(_ratios(one[k]) for k in ("prefill", "decode")),
        ]
        for one in found["pairs"]
    ]
    head = ["times as fast as mlx-lm", "prompt", "prefill, pair by pair", "decode, pair by pair"]
    return text + "\n" + table(head, pairs)


def decode_section(found: dict) -> str:
    setting = found["configuration"]
    starts = ", ".join(f"{one} {at:.2f} s" for one, at in found["start_up_seconds"].items())
    head = ["cache", "prompt", "mlx-lm's cache", "prefill tok/s", "× mlx-lm's", "decode tok/s"]
    head += ["× mlx-lm's", "turns", "step ms", "floor ms", "held", "mlx-lm's", "peak", "× mlx-lm's"]
    return (
        f"## Speed, beside mlx-lm\n\n`scripts/bench/decode.py` on {setting['model']}, "
        f"{setting['dtype']}, prompts from {setting['text']}, {setting['machine']}, "
        f"{setting['date']}. Both programs compute from the same arrays through the same BLAS. "
        "Each prefill is one measurement; a step is the median of turns of "
        f"{setting['tokens_a_turn']} tokens, and the ratio the median over pairs of turns. The "
        "floor is the time to read the weights and the cache once at the "
        f"{found['bandwidth'] / 1e9:.1f} GB/s measured in the same run. A whole process that "
        f"writes one token: {starts}.\n\n" + table(head, list(map(_decode_row, found["decode"])))
    )


def _decode_row(one: dict) -> list[str]:
    ours, theirs = one["tinygpt"], one["mlx_lm"]
    peer = "bounded only" if one["peer_is_unquantised"] else "the same"
    return [
        code(one["cache"]),
        f"{one['length']:,}",
        peer + (", dense prefill" if one["peer_prefill_was_dense"] else ""),
        f"{one['length'] / ours['prefill_seconds']:.0f}",
        f"{one['prefill_ratio']:.2f}",
        f"{1 / ours['step_seconds']:.1f}",
        f"{one['decode_ratio']:.2f}",
        f"{min(one['decode_ratios']):.2f}–{max(one['decode_ratios']):.2f}",
        f"{1000 * ours['step_seconds']:.1f}",
        f"{1000 * ours['floor_seconds']:.1f}",
        megabytes(ours["bytes"]),
        megabytes(theirs["bytes"]),
        f"{ours['peak_bytes'] / 1e6:.0f} MB",
        f"{one['peak_ratio']:.2f}",
    ]


def long_section(found: dict) -> str:
    rows = [
        [
            f"{row['tokens']:,}",
            f"{row['seconds']:.2f}",
            f"{row['bytes']:,}",
            megabytes(row["peak_bytes"]),
        ]
        for row in found["long"]
    ]
    return (
        f"## A long generation on {found['model']}\n\nWith `{found['cache']}`. Seconds are those "
        "of the last thousand tokens, the peak is the highest within them.\n\n"
        + table(["tokens", "seconds", "cache bytes", "peak memory"], rows)
    )


def _ratios(values: Sequence[float]) -> str:
    return " ".join(f"{value:.2f}" for value in values)
