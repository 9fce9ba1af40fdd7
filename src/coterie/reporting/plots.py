"""Plots of finished runs as PNG files: learning curves, every peer's score, who learned from whom.

A group holds the runs of one algorithm, one for each seed. Curves are means over all of them, with a band
from the lowest to the highest seed; where single peers are shown, they are the peers of all seeds.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from coterie.experiments.runs.run import Run
from coterie.metric import Metric
from coterie.protocol import Point
from coterie.reporting.drawing import (
    COLOURS,
    GREY,
    colour_of,
    line_style,
    name_peers,
    new_figure,
    plain,
    save,
)

Array = NDArray[np.float64]
Group = Sequence[Run]

GAINED, LOST = COLOURS[0], COLOURS[1]
POINT_NAMES: dict[Point, str] = {"after_local": "after local training", "after_mixing": "after mixing"}
MOST_PEERS_ON_MAP = 1000  # a heat map of more has a million cells and shows nothing


def draw(groups: Sequence[Group], labels: Sequence[str], folder: Path) -> list[Path]:
    """All plots of one algorithm, or of several beside each other."""
    paths = [
        learning_curves(groups, labels, folder / "learning_curves.png"),
        per_peer_scores(groups, labels, folder / f"per_peer_{groups[0][0].metric.name}.png"),
        who_learned_from_whom(groups, labels, folder / "who_learned_from_whom.png"),
    ]
    return [path for path in paths if path is not None]


def learning_curves(groups: Sequence[Group], labels: Sequence[str], path: Path) -> Path:
    """Mean of the main metric by round, at both points, with the spread over seeds and over peers."""
    runs = [group[0] for group in groups]
    if len(runs) == 1:
        figure = new_figure(7.0, 4.2)
        axes = figure.subplots()
        _curve_with_band(axes, groups[0], COLOURS[0], labels[0])
        axes.set_title(f"{labels[0]}: personal {runs[0].metric.title} of {_peers(groups[0])}")
        axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)
        _name_axes(axes, runs[0].metric)
        return save(figure, path)
    columns, title = min(4, len(runs)), runs[0].metric.title
    rows = math.ceil(len(runs) / columns)
    figure = new_figure(10.5, 4.0 + 2.3 * rows)
    grid = figure.add_gridspec(rows + 1, columns, height_ratios=[4.0, *[2.3] * rows])
    together = figure.add_subplot(grid[0, :])
    for number, (group, label) in enumerate(zip(groups, labels, strict=True)):
        _mean_curve(together, group, number, label)
    seeds = max(len(group) for group in groups)
    bands = f"; bands: lowest to highest of {seeds} seeds" if seeds > 1 else ""
    together.set_title(f"Personal {title}, mean of {_peers(groups[0])}, each at its own point{bands}")
    together.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)
    _name_axes(together, runs[0].metric)
    for number, (group, label) in enumerate(zip(groups, labels, strict=True)):
        axes = figure.add_subplot(grid[1 + number // columns, number % columns], sharey=together)
        _curve_with_band(axes, group, colour_of(number), label)
        axes.set_title(label, fontsize=9)
        _small(axes, number, columns, len(runs), "round", title)
    figure.supxlabel(
        "below: mean at its own point (solid) and at the other point (dashed); "
        "band: worst to best tenth of the peers at its own point",
        fontsize=9,
    )
    return save(figure, path)


def per_peer_scores(groups: Sequence[Group], labels: Sequence[str], path: Path) -> Path:
    """Every peer's score; against Local where it was run, so that one sees who gained and who was hurt."""
    local = next((group for group in groups if group[0].experiment.algorithm == "local"), None)
    shown = [(group, label) for group, label in zip(groups, labels, strict=True) if group is not local]
    if local is None or not shown:
        return _sorted_peers(groups[0], labels[0], path)
    columns = min(3, len(shown))
    rows = math.ceil(len(shown) / columns)
    figure = new_figure(max(5.5, 3.6 * columns), 0.9 + 2.6 * rows)
    everyone = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    reference = _last_scores(local)
    order = np.argsort(reference, kind="stable")
    for number, axes in enumerate(everyone.flat):
        if number >= len(shown):
            axes.set_visible(False)
            continue
        group, label = shown[number]
        metric, what = local[0].metric, "peers" + (" of all seeds" if len(local) > 1 else "")
        _against_local(axes, _last_scores(group)[order], reference[order], label, metric)
        _small(axes, number, columns, len(shown), f"{what}, sorted by Local", metric.title)
        name_peers(axes.xaxis, _names(local, order))
    handles, names = everyone[0, 0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper center", ncols=3, frameon=False)
    return save(figure, path)


def who_learned_from_whom(groups: Sequence[Group], labels: Sequence[str], path: Path) -> Path | None:
    """Heat map of models received, or of learned weights; None if there are none, or too many peers."""
    if groups[0][0].peers > MOST_PEERS_ON_MAP:
        return None
    shown = [(group, label) for group, label in zip(groups, labels, strict=True) if int(group[0].graph.sum())]
    if not shown:
        return None
    columns = min(3, len(shown))
    rows = math.ceil(len(shown) / columns)
    figure = new_figure(1.3 + 3.2 * columns, 1.0 + 3.2 * rows)
    grid = figure.subplots(rows, columns, squeeze=False)
    shares = [np.mean([_shares(run) for run in group], axis=0) for group, _ in shown]
    top = max(float(share.max()) for share in shares)
    image: Any = None
    for number, axes in enumerate(grid.flat):
        if number >= len(shown):
            axes.set_visible(False)
            continue
        image = _map(axes, shown[number][0], shares[number], top, shown[number][1])
        _small(axes, number, columns, len(shown), "sender", "receiver")
    figure.colorbar(image, ax=grid, shrink=0.8, label="share of what a peer learned from others")
    has_clusters, seeds = shown[0][0][0].clusters is not None, len(shown[0][0])
    note = "Who learned from whom" + (f", mean of {seeds} seeds" if seeds > 1 else "")
    note += " (lines: the true clusters)" if has_clusters else ""
    figure.suptitle(note)
    return save(figure, path)


def _rounds(group: Group) -> list[int]:
    """Those that all runs have measured: one of them may have ended early."""
    common = set.intersection(*(set(run.history.rounds) for run in group))
    return sorted(common)


def _scores(group: Group, point: Point | None = None) -> Array:
    """(seeds, rounds, peers) the main metric over time."""
    rounds = _rounds(group)
    places = [[run.history.rounds.index(number) for number in rounds] for run in group]
    every = [_array(run.scores_over_time(point=point)) for run in group]
    return np.stack([scores[place] for scores, place in zip(every, places, strict=True)])


def _last_scores(group: Group) -> Array:
    """Of the peers of all seeds."""
    return np.concatenate([_array(run.personal_scores) for run in group])


def _peers(group: Group) -> str:
    return f"{group[0].peers} peers" + (f" and {len(group)} seeds" if len(group) > 1 else "")


def _curve_with_band(axes: Axes, group: Group, colour: Any, label: str) -> None:
    run, rounds = group[0], _rounds(group)
    other: Point = "after_mixing" if run.point == "after_local" else "after_local"
    own = np.concatenate(_scores(group), axis=1)  # (rounds, peers of all seeds)
    worst, best = _deciles(own)
    axes.fill_between(
        rounds, worst, best, color=colour, alpha=0.18, lw=0, label="worst to best tenth of peers"
    )
    marker = "o" if len(rounds) == 1 else ""
    axes.plot(
        rounds, np.nanmean(own, 1), color=colour, marker=marker, label=f"mean {POINT_NAMES[run.point]} *"
    )
    dashed = np.nanmean(np.concatenate(_scores(group, other), axis=1), 1)
    axes.plot(
        rounds, dashed, color=colour, ls="--", lw=1.2, marker=marker, label=f"mean {POINT_NAMES[other]}"
    )


def _mean_curve(axes: Axes, group: Group, number: int, label: str) -> None:
    of_seeds, rounds = np.nanmean(_scores(group), axis=2), _rounds(group)  # (seeds, rounds)
    means = of_seeds.mean(0)
    if len(group) > 1:
        low, high = of_seeds.min(0), of_seeds.max(0)
        axes.fill_between(rounds, low, high, color=colour_of(number), alpha=0.15, lw=0)
    # Markers in different places, so that curves which coincide are still seen.
    step = max(1, len(rounds) // 8)
    axes.plot(rounds, means, markevery=(number % step, step), ms=5, label=label, **line_style(number))


def _deciles(values: Array) -> tuple[Array, Array]:
    """Means of the lowest and of the highest tenth of the peers, at least one, for each round."""
    ordered = np.sort(values, 1)
    measured = ~np.isnan(ordered)
    tenth = max(1, math.ceil(int(measured[0].sum()) / 10))
    ordered = ordered[:, measured.all(0)]
    return ordered[:, :tenth].mean(1), ordered[:, -tenth:].mean(1)


def _against_local(axes: Axes, mine: Array, local: Array, label: str, metric: Metric) -> None:
    place = np.arange(len(mine))
    size = max(4.0, min(28.0, 900 / len(mine)))
    axes.step(place, local, where="mid", color=GREY, lw=1.2, label="Local")
    gained = metric.gain(mine, local)
    sides = ("above", "below") if metric.higher_is_better else ("below", "above")
    for better, colour, marker, name in (
        (gained >= 0, GAINED, "o", f"peer at or {sides[0]} its Local {metric.title}"),
        (gained < 0, LOST, "v", f"peer {sides[1]} its Local {metric.title}"),
    ):
        axes.vlines(place[better], local[better], mine[better], color=colour, lw=1, alpha=0.6)
        axes.scatter(place[better], mine[better], color=colour, marker=marker, s=size, label=name, zorder=3)
    difference = metric.text(float(metric.gain(np.nanmean(mine), np.nanmean(local))), signed=True)
    unit, hurt = "points" if metric.percent else "better", int((gained < 0).sum())
    axes.set_title(f"{label}: {difference} {unit}, {hurt} of {len(mine)} {sides[1]}", fontsize=9)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _sorted_peers(group: Group, label: str, path: Path) -> Path:
    run = group[0]
    figure = new_figure(7.0, 4.0)
    axes = figure.subplots()
    order = np.argsort(_last_scores(group), kind="stable")
    values = _last_scores(group)[order]
    values = values[~np.isnan(values)]
    size = max(4.0, min(36.0, 1800 / max(1, len(values))))
    axes.scatter(np.arange(len(values)), values, color=COLOURS[0], s=size, zorder=3, label="a peer")
    worst = float(np.mean(run.metric.worst(values.tolist())))
    axes.axhline(float(values.mean()), color=GREY, lw=1.2, label=f"mean {values.mean():.3f}")
    axes.axhline(worst, color=LOST, lw=1.2, ls="--", label=f"worst decile {worst:.3f}")
    axes.set_title(f"{label}: personal {run.metric.title} {POINT_NAMES[run.point]}, last round")
    axes.set(xlabel="peers, sorted", ylabel=run.metric.title)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)
    plain(axes)
    name_peers(axes.xaxis, _names(group, order[: len(values)]))
    return save(figure, path)


def _names(group: Group, order: NDArray[np.int64]) -> list[str]:
    """The peers' names in an order of all peers of all seeds; none if they have none."""
    names = [name for run in group for name in run.names]
    return [names[place] for place in order] if names else []


def _by_cluster(run: Run) -> NDArray[np.int64]:
    """The peers, those of a cluster side by side."""
    if run.clusters is None:
        return np.arange(run.peers)
    return np.argsort(run.clusters.numpy(), kind="stable")


def _shares(run: Run) -> Array:
    """(receivers, senders) sorted by cluster: each row adds up to 1, or is 0 if nothing arrived."""
    order = _by_cluster(run)
    return _array(run.shares)[order][:, order]


def _map(axes: Axes, group: Group, shares: Array, top: float, label: str) -> Any:
    run = group[0]
    image = axes.imshow(shares, cmap="cividis", vmin=0, vmax=top, interpolation="nearest")
    if run.clusters is not None:
        sizes = np.bincount(np.unique(run.clusters.numpy(), return_inverse=True)[1])
        for edge in np.cumsum(sizes)[:-1] - 0.5:
            axes.axhline(edge, color="white", lw=1)
            axes.axvline(edge, color="white", lw=1)
    known = [share for run in group if (share := run.own_cluster_share) is not None]
    inside = f": {statistics.fmean(known):.0%} from its own cluster" if known else ""
    axes.set_title(f"{label}{inside}", fontsize=9)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    for axis in (axes.xaxis, axes.yaxis):
        name_peers(axis, _names([run], _by_cluster(run)))
    return image


def _name_axes(axes: Axes, metric: Metric) -> None:
    axes.set(xlabel="round", ylabel=f"{metric.title} on the peer's own test data")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    plain(axes)


def _small(axes: Axes, number: int, columns: int, total: int, x: str, y: str) -> None:
    """A panel in a grid: names only at the left and at the bottom."""
    if number % columns == 0:
        axes.set_ylabel(y, fontsize=9)
    if number + columns >= total:
        axes.set_xlabel(x, fontsize=9)
        axes.tick_params(labelbottom=True)
    axes.tick_params(labelsize=8)
    if not axes.images:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        plain(axes)


def _array(values: Any) -> Array:
    return np.asarray(values.double().numpy())
