"""Pictures of what `tinygpt eval` and `bench` have written. They read figures and compute none."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tinygpt.plot.canvas import log_scale, new_figure, style

Row = Mapping[str, Any]
FULL = ("full", "fp32")
WIDE = 3.0  # times: values further apart than that are drawn on a logarithmic scale
FEW = 9  # tokens; a perplexity of fewer says nothing


def frontier(content: Row) -> Any:
    """Perplexity against bytes a token; the full cache as a line. None without results."""
    rows = [one for one in content.get("results", ()) if one["perplexity"] is not None]
    if not rows:
        return None
    figure = new_figure(8, 6)
    axes = figure.subplots()
    for index, one in enumerate(rows):
        axes.errorbar(
            one["bytes_per_token"],
            one["perplexity"],
            marker=style(index)["marker"],
            markersize=8,
            linestyle="none",
            label=_named(one, rows),
        )
    full = next((one for one in rows if one["cache"] in FULL), None)
    if full is not None:
        line = {"color": "black", "linewidth": 1, "linestyle": "--"}
        axes.axhline(full["perplexity"], label="the full cache's perplexity", **line)
    log_scale(axes, "x", [one["bytes_per_token"] for one in rows])
    axes.set_xlabel("bytes of cache per token of text (log scale)")
    _perplexity_axis(axes, [one["perplexity"] for one in rows])
    axes.set_title("What a cache costs and saves")
    axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=2, fontsize=8)  # names may be long
    return figure


def _named(one: Row, rows: Sequence[Row]) -> str:
    """A cache's name, with how many tokens were scored where that differs between caches."""
    same = len({row["tokens"] for row in rows}) == 1
    return str(one["cache"]) if same else f"{one['cache']} ({one['tokens']:,} tokens)"


def _perplexity_axis(axes: Any, values: Sequence[float]) -> None:
    wide = max(values) > WIDE * min(values)
    if wide:
        log_scale(axes, "y", values)
    axes.set_ylabel(f"perplexity (lower is better{', log scale' if wide else ''})")


def by_position(content: Row) -> Any:
    """Perplexity by where the predicted token stands. None with fewer than two ranges."""
    rows = [
        {**one, "by_position": [part for part in one["by_position"] if part["tokens"] >= FEW]}
        for one in content.get("results", ())
    ]
    ranges = sorted({(part["start"], part["stop"]) for one in rows for part in one["by_position"]})
    if len(ranges) < 2:
        return None
    figure = new_figure()
    axes = figure.subplots()
    for index, one in enumerate(rows):
        places = [ranges.index((part["start"], part["stop"])) for part in one["by_position"]]
        values = [part["perplexity"] for part in one["by_position"]]
        axes.plot(places, values, label=one["cache"], **style(index))
    axes.set_xticks(range(len(ranges)), [f"{start:,}–{stop:,}" for start, stop in ranges])
    axes.tick_params(axis="x", labelrotation=30)
    axes.set_xlabel("position of the predicted token (tokens)")
    _perplexity_axis(axes, [part["perplexity"] for one in rows for part in one["by_position"]])
    axes.set_title("Perplexity by position")
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right upper", fontsize=8)
    return figure


def latency(content: Row) -> Any:
    """Milliseconds a token by length of the prompt, median and 90th percentile."""
    rows = content.get("bench", ())
    if not rows:
        return None
    figure = new_figure()
    axes = figure.subplots()
    for index, cache in enumerate(dict.fromkeys(one["cache"] for one in rows)):
        own = sorted((one for one in rows if one["cache"] == cache), key=lambda one: one["length"])
        middle = [1000 * one["latency_p50"] for one in own]
        above = [1000 * (one["latency_p90"] - one["latency_p50"]) for one in own]
        lengths = [one["length"] * 1.02**index for one in own]  # whiskers apart
        axes.errorbar(
            lengths, middle, yerr=[[0] * len(own), above], label=cache, capsize=4, **style(index)
        )
    lengths = sorted({one["length"] for one in rows})
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
    axes.set_ylim(bottom=0)
    axes.set_xlabel("length of the prompt (tokens, log scale)")
    axes.set_ylabel("time per decoded token (ms), whisker to the 90th percentile")
    axes.set_title("Latency by context length")
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right upper", fontsize=8)
    return figure


def passkey(content: Row) -> Any:
    """Hits over depth and length, one map a cache, with the counts written in."""
    rows = content.get("passkey", ())
    if not rows:
        return None
    caches = list(dict.fromkeys(one["cache"] for one in rows))
    lengths = sorted({one["length"] for one in rows})
    depths = sorted({one["depth"] for one in rows})
    figure = new_figure(
        1.5 + (0.8 + 0.7 * len(lengths)) * len(caches), max(4.0, 2.0 + 0.35 * len(depths))
    )
    maps = figure.subplots(1, len(caches), squeeze=False, sharey=True)[0]
    for axes, cache in zip(maps, caches, strict=True):
        cells = {(one["depth"], one["length"]): one for one in rows if one["cache"] == cache}
        _hit_map(axes, cells, depths, lengths)
        axes.set_title(cache.replace(",", ",\n"), fontsize=9)
    maps[0].set_ylabel("depth of the key (share of the text)")
    figure.supxlabel("length of the text (tokens)")
    figure.suptitle("Passkeys found (dark: all, light: none)")
    return figure


def _hit_map(
    axes: Any,
    cells: Mapping[tuple[float, int], Row],
    depths: Sequence[float],
    lengths: Sequence[int],
) -> None:
    nothing = float("nan")
    shares = [
        [
            cells[depth, length]["hits"] / cells[depth, length]["trials"]
            if (depth, length) in cells
            else nothing
            for length in lengths
        ]
        for depth in depths
    ]
    axes.imshow(shares, cmap="Greys", vmin=0, vmax=1.25, aspect="auto")
    for y, depth in enumerate(depths):
        for x, length in enumerate(lengths):
            one = cells.get((depth, length))
            text = "–" if one is None else f"{one['hits']}/{one['trials']}"
            dark = one is not None and one["hits"] > one["trials"] / 2
            axes.text(x, y, text, ha="center", va="center", color="white" if dark else "black")
    axes.set_xticks(range(len(lengths)), [f"{length:,}" for length in lengths])
    axes.set_yticks(range(len(depths)), [f"{depth:g}" for depth in depths])


def long_run(content: Row) -> Any:
    """Cache bytes, peak memory and time of each thousand tokens of one generation."""
    rows = content.get("long", ())
    if not rows:
        return None
    figure = new_figure(8, 7)
    panels = figure.subplots(3, 1, sharex=True)
    steps = [one["tokens"] for one in rows]
    sizes = [b - a for a, b in zip([0, *steps], steps, strict=False)]
    speeds = [1000 * one["seconds"] / size for one, size in zip(rows, sizes, strict=True)]
    for axes, values, label in (
        (panels[0], [one["bytes"] / 1e6 for one in rows], "cache (MB)"),
        (panels[1], [one["peak_bytes"] / 1e6 for one in rows], "peak memory (MB)"),
        (panels[2], speeds, "time per token (ms)"),
    ):
        axes.plot(steps, values, color="black", marker=".")
        axes.set_ylabel(label)
        axes.set_ylim(bottom=0, top=1.25 * max(values))
        axes.grid(alpha=0.3)
    panels[2].set_xlabel("tokens generated")
    figure.suptitle(f"{content['model']} with {content['cache']}")
    return figure


PICTURES: dict[str, Callable[[Row], Any]] = {
    "frontier": frontier,
    "by_position": by_position,
    "latency": latency,
    "passkey": passkey,
    "long": long_run,
}
