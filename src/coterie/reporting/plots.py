"""Plots of finished runs as PNG files: learning curves, every peer's score, who learned from whom.

A group holds the runs of one algorithm, one for each seed. Curves are means over all of them, with a band
from the lowest to the highest seed; where single peers are shown, they are the peers of all seeds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, PercentFormatter

from coterie.metric import Metric
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
from coterie.reporting.numbers.curves import learning_curve
from coterie.reporting.numbers.gains import Gains, gains_of, mean_of, scores_of, worst_of
from coterie.reporting.numbers.known import POINT_NAMES, Known, Whole, known
from coterie.reporting.numbers.maps import MOST_PEERS_ON_MAP, HeatMap, heat_map
from coterie.spreads import MOST_LISTED, evenly

if TYPE_CHECKING:
    from coterie.experiments.runs.run import Run

Group = Sequence[Known]

GAINED, LOST = COLOURS[0], COLOURS[1]


def draw(runs: Sequence[Sequence[Run | Known]], labels: Sequence[str], folder: Path) -> list[Path]:
    """All plots of one algorithm, or of several side by side: PNG files, and beside each an SVG."""
    groups = [known(group) for group in runs]
    paths = [
        learning_curves(groups, labels, folder / "learning_curves"),
        per_peer_scores(groups, labels, folder / f"per_peer_{groups[0][0].metric.name}"),
        who_learned_from_whom(groups, labels, folder / "who_learned_from_whom"),
    ]
    return [path for path in paths if path is not None]


def learning_curves(given: Sequence[Sequence[Run | Known]], labels: Sequence[str], path: Path) -> Path:
    """Mean of the main metric by round, at both points, with the spread over seeds and over peers."""
    groups = [known(group) for group in given]
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
        place = grid[1 + number // columns, number % columns]
        axes = figure.add_subplot(place, sharex=together, sharey=together)
        _curve_with_band(axes, group, colour_of(number), label)
        axes.set_title(label, fontsize=9)
        _small(axes, number, columns, len(runs), "round", title)
    figure.supxlabel(
        "below: mean at its own point (solid) and at the other point (dashed); "
        "band: worst to best tenth of the peers at its own point",
        fontsize=9,
    )
    return save(figure, path)


def per_peer_scores(given: Sequence[Sequence[Run | Known]], labels: Sequence[str], path: Path) -> Path:
    """Every peer's score; against Local where it was run, so that one sees who gained and who was hurt."""
    groups = [known(group) for group in given]
    local = next((group for group in groups if group[0].algorithm == "local"), None)
    shown = [(group, label) for group, label in zip(groups, labels, strict=True) if group is not local]
    if local is None or not shown:
        return _sorted_peers(groups[0], labels[0], path)
    columns = min(3, len(shown))
    rows = math.ceil(len(shown) / columns)
    figure = new_figure(max(5.5, 3.6 * columns), 0.9 + 2.6 * rows)
    everyone = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for number, axes in enumerate(everyone.flat):
        if number >= len(shown):
            axes.set_visible(False)
            continue
        group, label = shown[number]
        metric, what = local[0].metric, "peers" + (" of all seeds" if len(local) > 1 else "")
        gains = gains_of(group, local)
        _against_local(axes, gains, label)
        _small(axes, number, columns, len(shown), f"{what}, sorted by Local", metric.title)
        name_peers(axes.xaxis, _names(local, gains.by_local))
    handles, names = everyone[0, 0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper center", ncols=3, frameon=False)
    return save(figure, path)


def who_learned_from_whom(
    given: Sequence[Sequence[Run | Known]], labels: Sequence[str], path: Path
) -> Path | None:
    """Heat map of models received, or of learned weights; None if there are none, or too many peers."""
    groups = [known(group) for group in given]
    if groups[0][0].peers > MOST_PEERS_ON_MAP:
        return None
    shown = [(group, label) for group, label in zip(groups, labels, strict=True) if group[0].received]
    if not shown:
        return None
    columns = min(3, len(shown))
    rows = math.ceil(len(shown) / columns)
    figure = new_figure(1.3 + 3.2 * columns, 1.0 + 3.2 * rows)
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    maps = [heat_map(group) for group, _ in shown]
    top = max(float(one.shares.max()) for one in maps)
    image: Any = None
    for number, axes in enumerate(grid.flat):
        if number >= len(shown):
            axes.set_visible(False)
            continue
        image = _map(axes, shown[number][0][0], maps[number], top, shown[number][1])
        _small(axes, number, columns, len(shown), "sender", "receiver")
    figure.colorbar(image, ax=grid, shrink=0.8, label="share of what a peer learned from others")
    has_clusters, seeds = shown[0][0][0].clusters is not None, len(shown[0][0])
    note = "Who learned from whom" + (f", mean of {seeds} seeds" if seeds > 1 else "")
    note += " (lines: the true clusters)" if has_clusters else ""
    figure.suptitle(note)
    return save(figure, path)


def _peers(group: Group) -> str:
    return f"{group[0].peers} peers" + (f" and {len(group)} seeds" if len(group) > 1 else "")


def _curve_with_band(axes: Axes, group: Group, colour: Any, label: str) -> None:
    run, curve = group[0], learning_curve(group)
    axes.fill_between(
        curve.rounds,
        curve.worst,
        curve.best,
        color=colour,
        alpha=0.18,
        lw=0,
        label="worst to best tenth of peers",
    )
    marker = "o" if len(curve.rounds) == 1 else ""
    own, other = f"mean {POINT_NAMES[run.point]} *", f"mean {POINT_NAMES[run.other_point]}"
    axes.plot(curve.rounds, curve.mean, color=colour, marker=marker, label=own)
    axes.plot(curve.rounds, curve.other, color=colour, ls="--", lw=1.2, marker=marker, label=other)


def _mean_curve(axes: Axes, group: Group, number: int, label: str) -> None:
    curve = learning_curve(group)
    if len(group) > 1:
        axes.fill_between(curve.rounds, curve.low, curve.high, color=colour_of(number), alpha=0.15, lw=0)
    # Markers in different places, so that curves which coincide are still seen.
    step = max(1, len(curve.rounds) // 8)
    axes.plot(
        curve.rounds, curve.mean, markevery=(number % step, step), ms=5, label=label, **line_style(number)
    )


def _against_local(axes: Axes, gains: Gains, label: str) -> None:
    metric, order = gains.metric, gains.by_local
    place = (
        evenly(len(order)) if len(order) > MOST_LISTED else np.arange(len(order))
    )  # of very many, a sample
    some = order[place]
    mine, local, gained = gains.mine[some], gains.local[some], gains.gain[some]
    size = max(4.0, min(28.0, 900 / len(mine)))
    axes.step(place, local, where="mid", color=GREY, lw=1.2, label="Local")
    sides = ("above", "below") if metric.higher_is_better else ("below", "above")
    for better, colour, marker, name in (
        (gained >= 0, GAINED, "o", f"peer at or {sides[0]} its Local {metric.title}"),
        (gained < 0, LOST, "v", f"peer {sides[1]} its Local {metric.title}"),
    ):
        axes.vlines(place[better], local[better], mine[better], color=colour, lw=1, alpha=0.6)
        axes.scatter(place[better], mine[better], color=colour, marker=marker, s=size, label=name, zorder=3)
    difference = f"{metric.text(gains.mean, signed=True)} points"
    if not metric.percent:
        difference = f"{metric.text(abs(gains.mean))} {'better' if gains.mean >= 0 else 'worse'}"
    axes.set_title(f"{label}: {difference}, {gains.hurt} of {len(order)} {sides[1]}", fontsize=9)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _in_percent(axes, metric)


def _sorted_peers(group: Group, label: str, path: Path) -> Path:
    run = group[0]
    figure = new_figure(7.0, 4.0)
    axes = figure.subplots()
    order = np.argsort(scores_of(group), kind="stable")
    values = scores_of(group)[order]
    values = values[~np.isnan(values)]
    few = evenly(len(values)) if len(values) > MOST_LISTED else np.arange(len(values))
    size = max(4.0, min(36.0, 1800 / max(1, len(few))))
    each = "a peer" if len(few) == len(values) else f"{len(few):,} of {len(values):,} peers,\nevenly spaced"
    axes.scatter(few, values[few], color=COLOURS[0], s=size, zorder=3, label=each)
    mean, worst, sign = mean_of(group), worst_of(group), " %" if run.metric.percent else ""
    axes.axhline(mean, color=GREY, lw=1.2, label=f"mean {run.metric.text(mean)}{sign}")
    axes.axhline(worst, color=LOST, lw=1.2, ls="--", label=f"worst decile {run.metric.text(worst)}{sign}")
    axes.set_title(f"{label}: personal {run.metric.title} {POINT_NAMES[run.point]}, last round")
    axes.set(xlabel="peers, sorted", ylabel=run.metric.title)
    _in_percent(axes, run.metric)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)
    plain(axes)
    name_peers(axes.xaxis, _names(group, order[: len(values)]))
    return save(figure, path)


def _names(group: Group, order: Whole) -> list[str]:
    """The peers' names in an order of all peers of all seeds; none if they have none."""
    names = [name for run in group for name in run.names]
    return [names[place] for place in order] if names else []


def _map(axes: Axes, run: Known, found: HeatMap, top: float, label: str) -> Any:
    image = axes.imshow(found.shares, cmap="cividis", vmin=0, vmax=top, interpolation="nearest")
    for edge in found.borders:
        axes.axhline(edge - 0.5, color="white", lw=1)
        axes.axvline(edge - 0.5, color="white", lw=1)
    inside = "" if found.inside is None else f": {found.inside:.0%} from its own cluster"
    axes.set_title(f"{label}{inside}", fontsize=9)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    for axis in (axes.xaxis, axes.yaxis):
        name_peers(axis, _names([run], found.order))
    return image


def _name_axes(axes: Axes, metric: Metric) -> None:
    axes.set(xlabel="round", ylabel=f"{metric.title} on the peer's own test data")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _in_percent(axes, metric)
    plain(axes)


def _in_percent(axes: Axes, metric: Metric) -> None:
    """The scale as the tables and the page write it."""
    if metric.percent:
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, symbol=" %"))


def _small(axes: Axes, number: int, columns: int, total: int, x: str, y: str) -> None:
    """A panel in a grid whose scales are the same: names only at the left and at the bottom."""
    at_left, at_bottom = number % columns == 0, number + columns >= total
    if at_left:
        axes.set_ylabel(y, fontsize=9)
    if at_bottom:
        axes.set_xlabel(x, fontsize=9)
    axes.tick_params(labelleft=at_left, labelbottom=at_bottom)
    axes.tick_params(labelsize=8)
    if not axes.images:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        plain(axes)
