"""Tables of `tinygpt eval`, as aligned text and as CSV. They compute nothing."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING

from tinygpt.cli.table import NONE, aligned
from tinygpt.units import size

if TYPE_CHECKING:
    from tinygpt.evaluate.greedy import Match
    from tinygpt.evaluate.passkey import Retrieval
    from tinygpt.evaluate.summary import Range, Result


def figure(value: float | None, form: str) -> str:
    """`value` in `form`, or a dash."""
    return NONE if value is None else format(value, form)


def quality_table(results: Sequence[Result]) -> str:
    """One line a cache: quality, then the comparison with the full cache, then its price."""
    head = "cache tokens perplexity ± bits/byte KL-mean KL-p99 KL-max top-1 compared"
    rows = [[*head.split(), "bytes", "bytes/token", "peak", "tok/s"]]
    rows += [
        [
            result.cache,
            str(result.tokens),
            figure(result.perplexity, ".3f"),
            figure(result.perplexity_se, ".3f"),
            figure(result.bits_per_byte, ".4f"),
            figure(result.kl_mean, ".3g"),
            figure(result.kl_p99, ".3g"),
            figure(result.kl_max, ".3g"),
            figure(result.top1, ".2%"),
            str(result.compared),
            size(result.bytes),
            figure(result.bytes_per_token, ".0f"),
            size(result.peak_bytes),
            figure(result.tokens_per_second, ".1f"),
        ]
        for result in results
    ]
    return aligned(rows)


def position_table(results: Sequence[Result]) -> str:
    """Perplexity by where in its text the predicted token stands; "" if there is one range."""
    ranges = {part.start: part for result in results for part in result.by_position}
    if len(ranges) < 2:
        return ""
    starts = sorted(ranges)
    rows = [["perplexity at", *(range_name(ranges[start]) for start in starts)]]
    for result in results:
        by_start = {part.start: part for part in result.by_position}
        cells = (
            figure(by_start[start].perplexity, ".3f") if start in by_start else NONE
            for start in starts
        )
        rows.append([result.cache, *cells])
    return aligned(rows)


def range_name(part: Range) -> str:
    """`256–1k`."""
    return f"{_thousands(part.start)}–{_thousands(part.stop)}"


def quality_csv(results: Sequence[Result]) -> str:
    """The figures of `--json` for a spreadsheet; a column for the perplexity of each range."""
    names = [field.name for field in fields(results[0])][:-1] if results else []
    ranges = {part.start: part for result in results for part in result.by_position}
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    spans = [f"perplexity_{ranges[start].start}_{ranges[start].stop}" for start in sorted(ranges)]
    writer.writerow([*names, "compared", *spans])
    for result in results:
        by_start = {part.start: part.perplexity for part in result.by_position}
        figures = [getattr(result, name) for name in names]
        writer.writerow(
            [*figures, result.compared, *(by_start.get(start) for start in sorted(ranges))]
        )
    return out.getvalue()


def greedy_table(matches: Sequence[Match]) -> str:
    """A line for each prompt and cache: the matched prefix, and how close the first miss was."""
    rows = [["greedy match", "cache", "matched", "of", "share", "margin"]]
    for cache in dict.fromkeys(match.cache for match in matches):
        own = [match for match in matches if match.cache == cache]
        for match in own:
            share = match.matched / match.tokens if match.tokens else None
            counts = [str(match.matched), str(match.tokens), figure(share, ".0%")]
            margin = figure(match.margin, ".4f")
            rows.append([_shortened(match.prompt), cache, *counts, margin])
        matched, tokens = sum(one.matched for one in own), sum(one.tokens for one in own)
        share = matched / tokens if tokens else None
        rows.append(["all prompts", cache, str(matched), str(tokens), figure(share, ".0%"), NONE])
    return aligned(rows)


def passkey_table(found: Sequence[Retrieval]) -> str:
    """Hits over depth and length, a block of lines for each cache."""
    lengths = sorted({one.length for one in found})
    rows = [["passkey", "depth", *(f"{length} tokens" for length in lengths)]]
    cells = {(one.cache, one.depth, one.length): one for one in found}
    for cache, depth in dict.fromkeys((one.cache, one.depth) for one in found):
        hits = (cells.get((cache, depth, length)) for length in lengths)
        shown = (NONE if one is None else f"{one.hits}/{one.trials}" for one in hits)
        rows.append([cache, str(depth), *shown])
    return aligned(rows)


def _thousands(count: int) -> str:
    return f"{count // 1024}k" if count and count % 1024 == 0 else str(count)


def _shortened(text: str, most: int = 40) -> str:
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 1] + "…"
