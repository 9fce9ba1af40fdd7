"""A paper's figures from our records: curves, bars, lines over a parameter, heat maps."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from coterie.experiments.cells.cell import MOST_PEERS_IN_SHARES
from coterie.experiments.cells.paper_schema import Column, Figure, Row
from coterie.reporting.drawing import (
    COLOURS,
    GREY,
    LINES,
    MARKERS,
    colour_of,
    line_style,
    new_figure,
    plain,
    save,
)
from coterie.reporting.intervals import Interval
from coterie.reporting.measures import Record, is_percentage
from coterie.reporting.numbers.curves import band
from coterie.reporting.numbers.maps import borders_of, sorted_by
from coterie.reporting.reproduction import Reproduction, printed_number

Part = TypeVar("Part", Row, Column)
MOST_BETWEEN_MARKERS = 8
_LEGEND_LETTERS = 26
_LEGEND_KEY = 4.5  # in letters: long enough for a marker with a dash on either side
_ROOM_FOR_REMARKS = 0.3  # above the highest bar, as a part of its height
_LEVELS = (":", "-.", (0, (6, 2)), (0, (1, 4)))


def draw(reproduction: Reproduction, folder: Path) -> list[Path]:
    """Every figure of the description that has something to show."""
    folder.mkdir(parents=True, exist_ok=True)
    forms = {"curves": _curves, "bars": _bars, "line": _line, "heat-map": _heat_maps}
    paths = []
    for number, figure in enumerate(reproduction.table.figures, start=1):
        path = folder / f"figure-{number}"
        rows = _chosen(reproduction.rows, figure.rows)
        columns = _chosen(reproduction.columns, figure.columns)
        if any((row.name, one.name) in reproduction.records for row in rows for one in columns):
            drawn = forms[figure.form](reproduction, figure, rows, columns)
            if drawn is not None:
                drawn.suptitle(_title(reproduction, figure), fontsize=10)
                paths.append(save(drawn, path))
    return paths


def _chosen(parts: list[Part], names: list[str] | None) -> list[Part]:
    """Those that the figure names, in its order; without names all."""
    present = {part.name: part for part in parts}
    return [present[name] for name in (present if names is None else names) if name in present]


def _title(reproduction: Reproduction, figure: Figure) -> str:
    seeds = "1 seed" if reproduction.seeds == 1 else f"mean of {reproduction.seeds} seeds"
    if figure.each_peer or figure.form == "heat-map":
        seeds = "first seed"
    title = textwrap.fill(figure.title or reproduction.table.title, 60)
    return f"{title}\n{reproduction.name}, {reproduction.scale}, {seeds}"


@dataclass(frozen=True)
class _Curve:
    """A line of a panel: whose it is, and how it looks."""

    row: Row
    column: Column
    label: str
    look: dict[str, Any]
    peer: int | None = None  # None: the mean over peers


def _curves(reproduction: Reproduction, figure: Figure, rows: list[Row], columns: list[Column]) -> Any:
    """A panel for each column (or one for all) and metric, a curve for each method."""
    groups = [columns] if figure.together else [[column] for column in columns]
    drawn = new_figure(1.8 + 4.2 * len(groups), 0.9 + 3.0 * len(figure.metrics))
    panels = drawn.subplots(len(figure.metrics), len(groups), squeeze=False, sharex="col")
    for line, metric in zip(panels, figure.metrics, strict=True):
        for axes, group in zip(line, groups, strict=True):
            for number, curve in enumerate(_curves_of(reproduction, figure, rows, group)):
                _curve(axes, reproduction, curve, metric, number)
            if not axes.lines:
                axes.text(0.5, 0.5, "not run yet", ha="center", va="center", transform=axes.transAxes)
            if metric == "divergence":
                axes.axhline(0, color=GREY, lw=0.8, zorder=0)
            if not figure.together:
                axes.set_title(textwrap.fill(group[0].shown, 50), fontsize=9)
            _name_axes(axes, figure.x_label or "round", metric, first=axes is line[0])
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _legend(drawn, panels[0, 0])
    return drawn


def _curves_of(
    reproduction: Reproduction, figure: Figure, rows: list[Row], columns: list[Column]
) -> list[_Curve]:
    """Numbered among all rows or columns, not those of this figure: each looks the same in all figures."""
    curves = []
    for dashes, row in enumerate(rows):
        for column in columns:
            if figure.together:
                look = line_style(reproduction.columns.index(column)) | {"linestyle": _cycle(LINES, dashes)}
                label = column.shown if len(rows) == 1 else f"{row.shown}, {column.shown}"
                curves.append(_Curve(row, column, label, look))
                continue
            look = line_style(reproduction.rows.index(row))
            if not figure.each_peer:
                curves.append(_Curve(row, column, row.shown, look))
                continue
            for peer in range(_peers(reproduction, row, column)):
                own = {"linestyle": _cycle(LINES, peer), "marker": _cycle(MARKERS, peer)}
                curves.append(_Curve(row, column, f"{row.shown}, peer {peer}", look | own, peer))
    return curves


def _peers(reproduction: Reproduction, row: Row, column: Column) -> int:
    by_seed = reproduction.records.get((row.name, column.name), {})
    return int(by_seed[min(by_seed)].result["peers"]) if by_seed else 0


def _cycle(looks: tuple[str, ...], number: int) -> str:
    return looks[number % len(looks)]


def _curve(axes: Axes, reproduction: Reproduction, curve: _Curve, metric: str, number: int) -> None:
    rounds, values = _values(reproduction, curve, metric)
    if not rounds:
        return
    values = values * (100 if is_percentage(metric) else 1)
    mean, low, high = band(values)
    step = max(1, len(rounds) // MOST_BETWEEN_MARKERS)
    axes.plot(
        rounds, mean, label=curve.label, ms=4, markevery=(number % step, step), **curve.look
    )  # fmt: skip
    if len(values) > 1:
        axes.fill_between(rounds, low, high, color=curve.look["color"], alpha=0.15, lw=0)


def _values(reproduction: Reproduction, curve: _Curve, metric: str) -> tuple[list[int], Any]:
    """Rounds and (seeds, rounds) values; a single peer's of the first seed: in others it has other data."""
    by_seed = reproduction.records.get((curve.row.name, curve.column.name), {})
    if curve.peer is not None and by_seed:
        rounds, of_peers = by_seed[min(by_seed)].of_peers(metric)
        return rounds, of_peers[None, :, curve.peer] if rounds else of_peers
    measured = [one for one in (record.curve(metric) for record in by_seed.values()) if one[0]]
    rounds = measured[0][0] if measured else []
    return rounds, np.stack([values for where, values in measured if where == rounds] or [np.zeros(0)])


def _bars(reproduction: Reproduction, figure: Figure, rows: list[Row], columns: list[Column]) -> Any:
    """A group of bars for each column; the paper's numbers, where they have our scale, as black lines."""
    drawn = new_figure(2.2 + 0.42 * len(rows) * len(columns), 0.9 + 3.2 * len(figure.metrics))
    panels = drawn.subplots(len(figure.metrics), 1, squeeze=False, sharex=True)[:, 0]
    width, compared = 0.8 / len(rows), False
    for axes, metric in zip(panels, figure.metrics, strict=True):
        for number, row in enumerate(rows):
            places = np.arange(len(columns)) + (number - (len(rows) - 1) / 2) * width
            numbers = [reproduction.number(row.name, column.name, metric) for column in columns]
            heights = [np.nan if one is None else one.mean for one in numbers]
            errors = [0.0 if one is None or one.std is None else one.std for one in numbers]
            look = reproduction.rows.index(row)
            axes.bar(places, heights, width * 0.9, yerr=errors, color=colour_of(look), label=row.shown,
                     hatch="//" if look >= len(COLOURS) else "", edgecolor="white", linewidth=0,
                     error_kw={"lw": 0.8})  # fmt: skip
            for place, column, one in zip(places, columns, numbers, strict=True):
                _remark(axes, place, one, _what_a_bar_hides(reproduction, row, column, metric, one))
                value, _ = printed_number(reproduction.table, row, column.name, metric)
                if value is not None and is_percentage(metric):
                    axes.hlines(value, place - width / 2, place + width / 2, color="black", lw=1.6)
                    compared = True
        if axes.texts:
            axes.margins(y=_ROOM_FOR_REMARKS)
        letters = max(12, 4 * len(rows))  # as wide as a group of bars
        names = [textwrap.fill(column.shown, letters) for column in columns]
        axes.set_xticks(np.arange(len(columns)), names, fontsize=9)
        _name_axes(axes, figure.x_label, metric, first=True)
    if compared:
        panels[-1].set_xlabel("black lines: the paper's numbers", fontsize=8)
    _legend(drawn, panels[0])
    return drawn


def _what_a_bar_hides(
    reproduction: Reproduction, row: Row, column: Column, metric: str, number: Interval | None
) -> str:
    """No bar looks like zero, the best number of rounds; the mean of some seeds looks like that of all."""
    if number is not None:
        return "" if number.n == reproduction.seeds else f"{number.n} of {reproduction.seeds} seeds"
    has_run = (row.name, column.name) in reproduction.records
    return "never" if has_run and metric.endswith("-to-target") else ""


def _remark(axes: Axes, place: float, number: Interval | None, text: str) -> None:
    """Upright, above the bar and its error, or where the bar would stand."""
    if text:
        top = 0.0 if number is None else number.mean + (number.std or 0.0)
        axes.annotate(text, (place, top), xytext=(0, 3), textcoords="offset points", rotation=90,
                      ha="center", va="bottom", fontsize=7)  # fmt: skip


def _line(reproduction: Reproduction, figure: Figure, rows: list[Row], columns: list[Column]) -> Any:
    """Over a parameter: the columns' x with a line for each row, or the rows' x with one for each column."""
    drawn = new_figure(6.0, 0.9 + 3.2 * len(figure.metrics))
    panels = drawn.subplots(len(figure.metrics), 1, squeeze=False, sharex=True)[:, 0]
    over_columns = any(column.x is not None for column in columns)
    lines: list[Any] = list(rows if over_columns else columns)
    along: list[Any] = [one for one in (columns if over_columns else rows) if one.x is not None]
    flat: list[Any] = [] if over_columns else [row for row in rows if row.x is None]  # such as Local
    for axes, metric in zip(panels, figure.metrics, strict=True):
        for one in lines:
            number = (reproduction.rows if over_columns else reproduction.columns).index(one)
            pairs = [(one.name, at.name) if over_columns else (at.name, one.name) for at in along]
            numbers = [reproduction.number(row, column, metric) for row, column in pairs]
            axes.errorbar(
                [at.x for at in along], [np.nan if n is None else n.mean for n in numbers],
                yerr=[0.0 if n is None or n.std is None else n.std for n in numbers],
                ms=5, capsize=2, label=one.shown, **line_style(number),
            )  # fmt: skip
            for place, row in enumerate(flat):
                level = reproduction.number(row.name, one.name, metric)
                if level is not None:
                    # Lines and levels of one column share its colour, unless there is only that column.
                    look = number if len(lines) > 1 else len(reproduction.columns) + place
                    axes.axhline(
                        level.mean, color=colour_of(look), ls=_LEVELS[place % len(_LEVELS)],
                        label=row.shown if len(lines) == 1 else f"{row.shown}, {one.shown}",
                    )  # fmt: skip
        _name_axes(axes, figure.x_label, metric, first=True)
    _legend(drawn, panels[0])
    return drawn


def _heat_maps(reproduction: Reproduction, figure: Figure, rows: list[Row], columns: list[Column]) -> Any:
    """Who learned from whom in the first seed: a panel for each method and column."""
    shown = _maps_of(reproduction, rows, columns)
    if all(record.facts["shares"] is None for _, record in shown):
        return None
    across = min(4, len(shown))
    down = -(-len(shown) // across)
    drawn = new_figure(1.4 + 2.9 * across, 1.0 + 2.9 * down)
    panels = drawn.subplots(down, across, squeeze=False)
    for axes in panels.flat[len(shown) :]:
        axes.set_visible(False)
    for axes, (label, record) in zip(panels.flat, shown, strict=False):
        axes.set_title(label, fontsize=9)
        if record.facts["shares"] is None:
            _empty_map(axes, record)
        else:
            _heat_map(axes, record)
    drawn.supxlabel("sender (each map has its own colours)", fontsize=8)
    drawn.supylabel("receiver", fontsize=8)
    return drawn


def _maps_of(reproduction: Reproduction, rows: list[Row], columns: list[Column]) -> list[tuple[str, Record]]:
    """Labels and records of the first seed; without Local, which learns from nobody by definition."""
    found = []
    for column in columns:
        for row in rows:
            by_seed = reproduction.records.get((row.name, column.name), {})
            if by_seed and row.name != "local":
                label = row.shown if len(columns) == 1 else f"{row.shown}, {column.shown}"
                found.append((label, by_seed[min(by_seed)]))
    return found


def _heat_map(axes: Axes, record: Record) -> None:
    clusters = None if record.facts["clusters"] is None else np.array(record.facts["clusters"])
    shares = sorted_by(clusters, np.array(record.facts["shares"]))
    image = axes.imshow(shares, cmap="viridis", vmin=0, interpolation="nearest")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=5))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=5))
    for border in borders_of(clusters):
        axes.axhline(border - 0.5, color="white", lw=0.6)
        axes.axvline(border - 0.5, color="white", lw=0.6)
    axes.figure.colorbar(image, ax=axes, shrink=0.75)


def _empty_map(axes: Axes, record: Record) -> None:
    """Without a panel it would look as if the method had not been run."""
    too_many = int(record.result["peers"]) > MOST_PEERS_IN_SHARES
    reason = f"not recorded for more\nthan {MOST_PEERS_IN_SHARES} peers" if too_many else "all weights are 0"
    axes.text(0.5, 0.5, reason, ha="center", va="center", fontsize=9, transform=axes.transAxes)
    axes.set_box_aspect(1)
    axes.set_xticks([])
    axes.set_yticks([])


def _name_axes(axes: Axes, x: str, metric: str, *, first: bool) -> None:
    plain(axes)
    axes.set_xlabel(x, fontsize=9)
    if first:
        axes.set_ylabel(f"{metric}{' (%)' if is_percentage(metric) else ''}", fontsize=9)


def _legend(drawn: Any, axes: Axes) -> None:
    handles, names = axes.get_legend_handles_labels()
    names = [textwrap.fill(name, _LEGEND_LETTERS) for name in names]
    drawn.legend(handles, names, loc="outside right center", frameon=False, fontsize=8,
                 handlelength=_LEGEND_KEY)  # fmt: skip
