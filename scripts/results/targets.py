"""What was to be reached, beside what the files say: the last section of the results page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tables import table

TEXTS = {"kivi_emma": "Emma", "kivi_prideprejudice": "Pride and Prejudice"}
LEAST_DECODE = {  # times mlx-lm's speed, by cache and tokens
    ("full", 100): 1.0,
    ("int8", 2000): 1.35,
    ("int8", 6000): 1.35,
    ("int4", 2000): 1.15,
    ("int4", 6000): 1.15,
}


@dataclass(frozen=True, slots=True)
class Target:
    """`reached` is to be at least `wanted`, or at most where `most` is true."""

    what: str
    wanted: float
    reached: float
    most: bool = False
    form: str = ".2f"

    @property
    def row(self) -> list[str]:
        """Its line in the table."""
        met = self.reached <= self.wanted if self.most else self.reached >= self.wanted
        bound = f"{'≤' if self.most else '≥'} {self.wanted:{self.form}}"
        return [self.what, bound, f"{self.reached:{self.form}}", "yes" if met else "**no**"]


def targets_section(files: dict[str, dict]) -> str:
    """All targets that the files have something about; nothing without them."""
    found = [*_of_decode(files), *_of_quality(files), *_of_sizes(files)]
    if not found:
        return ""
    rows = [target.row for target in found]
    return "## What was to be reached\n\n" + table(["what", "wanted", "reached", "met"], rows)


def _of_decode(files: dict[str, dict]) -> Iterator[Target]:
    measured = files.get("decode", {"decode": []})["decode"]
    rows = {(one["cache"], one["length"]): one for one in measured}
    for (cache, at), wanted in LEAST_DECODE.items():
        if (cache, at) in rows:
            what = f"decode after {at:,} tokens, {cache}, times mlx-lm's speed"
            yield Target(what, wanted, rows[cache, at]["decode_ratio"])
    for at, peak in ((2000, 0.8), (6000, 0.65)):
        if ("int8", at) not in rows or ("full", at) not in rows:
            continue
        int8, full = rows["int8", at], rows["full", at]
        speed = full["tinygpt"]["step_seconds"] / int8["tinygpt"]["step_seconds"]
        yield Target(f"decode after {at:,} tokens, int8, times our own full cache's", 1.0, speed)
        yield Target(f"peak after {at:,} tokens, int8, of mlx-lm's", peak, int8["peak_ratio"], True)
    for (cache, at), one in rows.items():
        dense = rows.get(("full", at))
        if cache in ("full", "int8") and dense is not None:
            ratio = dense["mlx_lm"]["prefill_seconds"] / one["tinygpt"]["prefill_seconds"]
            what = f"prefill of {at:,} tokens, {cache}, times mlx-lm's full cache's"
            yield Target(what, 1.0 if cache == "full" else 0.8, ratio)


def _of_quality(files: dict[str, dict]) -> Iterator[Target]:
    for name, title in TEXTS.items():
        rows = {one["cache"]: one for one in files.get(name, {"results": []})["results"]}
        for cache, wanted in (("int8", 0.0002), ("int4", 0.004), ("int3", 0.02)):
            if cache in rows:
                what = f"mean KL of {cache} on {title}"
                yield Target(what, wanted, rows[cache]["kl_mean"], True, ".2g")
        if "int4" in rows and "full" in rows:
            change = rows["int4"]["perplexity"] / rows["full"]["perplexity"] - 1
            yield Target(f"top-1 of int4 on {title}", 0.95, rows["int4"]["top1"], form=".1%")
            yield Target(f"perplexity of int4 on {title}, change", 0.005, change, True, "+.2%")


def _of_sizes(files: dict[str, dict]) -> Iterator[Target]:
    for one in files.get("bytes", {"bytes": []})["bytes"]:
        if (one["cache"], one["tokens"]) == ("int4", 500):
            yield Target("MB of int4 after 500 tokens, 12 × 8 × 32", 2.5, one["bytes"] / 1e6, True)
    rows = files.get("long_smollm2", {"long": []})["long"]
    if len(rows) > 1:
        pace = rows[-1]["seconds"] / rows[0]["seconds"]
        what = f"time of the last 1,000 of {rows[-1]['tokens']:,} tokens, of the first 1,000's"
        yield Target(what, 1.1, pace, True)
