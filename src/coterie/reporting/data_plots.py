"""Which peer has which labels, as a plot."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from coterie.data import Federation
from coterie.reporting.drawing import name_peers, new_figure, plain, save

# Paul Tol's "muted" set: ten colours that people with colour-blindness can tell apart.
MUTED = (
    "#332288", "#88CCEE", "#44AA99", "#117733", "#999933",
    "#DDCC77", "#CC6677", "#882255", "#AA4499", "#BBBBBB",
)  # fmt: skip
MOST_BARS = 400  # peers; of more, evenly spaced ones are drawn


def label_histogram(federation: Federation, title: str, path: Path) -> Path:
    """Stacked bars: how many training samples of each class each peer has."""
    counts = federation.label_histogram("train").numpy()
    peers, classes = counts.shape
    shown = np.arange(peers) if peers <= MOST_BARS else np.linspace(0, peers - 1, MOST_BARS).astype(np.int64)
    figure = new_figure(min(14.0, max(6.5, 2.5 + 0.22 * len(shown))), 4.2)
    axes = figure.subplots()
    colours = _colours(classes)
    _stack(axes, counts[shown], colours, federation.group_names)
    if peers > MOST_BARS:
        title += f" ({MOST_BARS} of {peers} peers, evenly spaced)"
    axes.set_title(title, fontsize=10)
    axes.set(xlabel="peer" if peers <= MOST_BARS else "peers", ylabel="training samples")
    if peers > MOST_BARS:
        axes.set_xticks([])
    name_peers(axes.xaxis, federation.names)
    if federation.clusters is not None:
        _mark_clusters(axes, federation.clusters.numpy()[shown])
    if classes <= len(MUTED):
        handles, names = axes.get_legend_handles_labels()
        axes.legend(
            handles[::-1], names[::-1], title="class", loc="center left", bbox_to_anchor=(1.01, 0.5),
            frameon=False, fontsize=8,
        )  # fmt: skip
    else:
        mapping = ScalarMappable(BoundaryNorm(range(classes + 1), classes), ListedColormap(colours))
        figure.colorbar(mapping, ax=axes, label="class", ticks=MaxNLocator(integer=True))
    return save(figure, path)


def _colours(classes: int) -> list[Any]:
    if classes <= len(MUTED):
        return list(MUTED[:classes])
    return [matplotlib.colormaps["viridis"](k / (classes - 1)) for k in range(classes)]


def _stack(axes: Axes, counts: NDArray[np.int64], colours: Sequence[Any], names: Sequence[str]) -> None:
    place = np.arange(len(counts))
    bottom = np.zeros(len(counts))
    for label in range(counts.shape[1]):
        top = bottom + counts[:, label]
        style = {"color": colours[label], "label": names[label]}
        if len(counts) <= 60:
            axes.bar(place, top - bottom, 0.85, bottom=bottom, edgecolor="white", linewidth=0.4, **style)
        else:  # one polygon per class instead of a bar per class and peer
            axes.stairs(top, np.arange(len(counts) + 1) - 0.5, baseline=bottom, fill=True, **style)
        bottom = top
    axes.set(xlim=(-0.7, len(counts) - 0.3), ylim=(0, 1.05 * max(1.0, float(bottom.max()))))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    plain(axes)
    axes.grid(visible=False, axis="x")


def _mark_clusters(axes: Axes, clusters: NDArray[np.int64]) -> None:
    """A line where one cluster ends; peers of a cluster stand beside each other."""
    axes.set_ylim(top=1.1 * axes.get_ylim()[1])
    starts = [0, *(np.flatnonzero(np.diff(clusters)) + 1), len(clusters)]
    if len(starts) > 20:
        return
    for first, last in pairwise(starts):
        if first:
            axes.axvline(first - 0.5, color="black", lw=0.8, ls=":")
        axes.text(
            (first + last - 1) / 2, 0.98, f"cluster {clusters[first]}", ha="center", va="top", fontsize=8,
            transform=axes.get_xaxis_transform(),
        )  # fmt: skip
