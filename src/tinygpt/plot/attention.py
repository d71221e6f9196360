"""Pictures of attention: mass on the sinks, and what a bounded cache keeps of a layer's map."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np

from tinygpt.plot.canvas import new_figure

FAINTEST = 1e-5  # weights below are drawn white


def sink_mass(mass: np.ndarray, sinks: int) -> Any:
    """Shares [layers, H] as a map, with the numbers written in where there is room."""
    layers, heads = mass.shape
    figure = new_figure(2.5 + 0.45 * heads, 1.5 + 0.3 * layers)
    axes = figure.subplots()
    shown = axes.imshow(mass, cmap="Greys", vmin=0, vmax=1, aspect="auto")
    for layer in range(layers):
        for head in range(heads):
            share = float(mass[layer, head])
            color = "white" if share > 0.6 else "black"  # on grey too
            text = f"{100 * share:.0f}"
            axes.text(head, layer, text, ha="center", va="center", fontsize=7, color=color)
    axes.set_xticks(range(heads))
    axes.set_yticks(range(layers))
    axes.set_xlabel("head")
    axes.set_ylabel("layer")
    axes.set_title(f"Attention on the first {sinks} tokens (%)")
    figure.colorbar(shown, label="share of attention, later half of the text")
    return figure


def kept_map(weights: np.ndarray, layer: int, sinks: int, window: int, share: float) -> Any:
    """One layer's map [T, T]; what a cache of `sinks` + `window` drops is hatched.

    `share` of the attention is what it keeps.
    """
    tokens = len(weights)
    figure = new_figure(7.5, 6.5)
    axes = figure.subplots()
    norm = import_module("matplotlib.colors").LogNorm(FAINTEST, 1)
    shown = axes.imshow(
        np.maximum(weights, FAINTEST), cmap="Greys", norm=norm, interpolation="nearest"
    )
    edge = sinks + window
    if tokens > edge:
        axes.fill(
            [sinks - 0.5, tokens - window - 0.5, sinks - 0.5],
            [edge - 0.5, tokens - 0.5, tokens - 0.5],
            facecolor="none",
            edgecolor="tab:red",
            hatch="///",
            linewidth=1,
            label=f"dropped by {sinks} + {window}",
        )
        axes.legend(loc="upper right")
    axes.set_xlabel("key: position in the text (tokens)")
    axes.set_ylabel("query: position in the text (tokens)")
    axes.set_title(
        f"Layer {layer}, heads averaged: {sinks} + {window} keeps {share:.1%} of the attention"
    )
    figure.colorbar(shown, label="attention weight (log scale)")
    return figure
