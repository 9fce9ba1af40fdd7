"""Tables for the terminal, from results as `Run.result` gives them."""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.table import Table
from rich.text import Text

from coterie.metric import Metric
from coterie.reporting import work
from coterie.user_code import in_short

Result = Mapping[str, Any]

NARROWEST = 130  # columns that a table may take where there is no terminal
_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")
_COLUMNS = (  # with the name of the metric in the place of {}
    ("mean", "{}\nmean"),
    ("std", "\nstd"),
    ("worst", "worst\ndecile"),
    ("local", "after\nlocal"),
    ("mixing", "after\nmixing"),
    ("gain", "gain over\nLocal"),
    ("global", "global\n{}"),
    ("steps", "steps per\npeer"),
    ("sent", "sent per\npeer"),
    ("busiest", "busiest\npeer, hub"),
    ("seconds", "\nseconds"),
)
MOST_NAMED = 40  # peers in a table of their own
_ABOUT_SCORES = 6  # columns; they stand in a table of their own where all do not fit side by side


def show(*items: Any) -> None:
    """Print on stdout; where that is no terminal, wide enough for a table."""
    width = None if sys.stdout.isatty() else NARROWEST
    console = Console(width=width, highlight=False)
    for item in items:
        console.print(item)


def summary(
    results: Sequence[Result], labels: Sequence[str] | None = None, local: Result | None = None
) -> Summary:
    """A row for each result: distribution over peers, both points, gain over Local, traffic, time.

    local: the run of Local on the same data; without it the gain is unknown.
    """
    names = labels or [label_of(result) for result in results]
    rows = [[result] for result in results]
    return _table(rows, names, None if local is None else [local])


def summary_over_seeds(
    groups: Sequence[Sequence[Result]], labels: Sequence[str], local: Sequence[Result]
) -> Summary:
    """A row for each algorithm: mean ± standard deviation over seeds of every number."""
    return _table(groups, labels, local)


def label_of(result: Result) -> str:
    """The algorithm with the hyper-parameters that were set: random-gossip(peers=5)."""
    settings = ",".join(f"{key}={value}" for key, value in result["settings"].items())
    name = in_short(result["algorithm"])
    return f"{name}({settings})" if settings else name


def gain(result: Result, local: Result | None) -> float | None:
    """By how much the peers' mean score is better than Local's."""
    mine = mean_of(result, "personal_{}")
    other = None if local is None else mean_of(local, "personal_{}")
    return None if mine is None or other is None else float(Metric.of(result).gain(mine, other))


def mean_of(result: Result, key: str, statistic: str = "mean") -> float | None:
    """key: an entry of the result, for its main metric, whose name comes in the place of {}."""
    entry = result.get(key.format(Metric.of(result).name))
    return None if entry is None else float(entry[statistic])


def _table(
    groups: Sequence[Sequence[Result]], labels: Sequence[str], local: Sequence[Result] | None
) -> Summary:
    first = groups[0][0]
    seeds = len(groups[0])
    names = ", ".join(in_short(first[key]) for key in ("data", "partition", "model"))
    title = f"{first['peers']} peers, {names}, "
    title += f"{first['rounds']} rounds, " + (f"{seeds} seeds" if seeds > 1 else f"seed {first['seed']}")
    metric = Metric.of(first)
    caption = f"{metric.unit} on each peer's own test data"
    caption += "" if metric.higher_is_better else f" ({metric.better})"
    if first.get("reported") == "best":
        caption += ", of the model that did best on its validation data"
    caption += "; *: the point its paper measures at, used for the rest"
    if seeds > 1:
        caption += "; ±: over seeds"
    steps = [_mean([work.steps_of(result) for result in group]) for group in groups]
    alone = _mean([work.steps_of(result) for result in local]) if local else None
    marks = [work.SIGN if differs else "" for differs in work.unequal(steps, alone)]
    if len(groups) > 1:
        title += "\n" + work.said_above([result for group in groups for result in group])
    if any(marks):
        caption += "\n" + work.said_below("Local's" if alone is not None else "the median")
    rows = []
    for group, mark in zip(groups, marks, strict=True):
        cells = [_cells(result, local[i] if local else None) for i, result in enumerate(group)]
        point = {"after_local": "local", "after_mixing": "mixing"}[group[0]["point"]]
        signs = {point: "*", "steps": mark}
        rows.append([_cell(key, [c[key] for c in cells], signs.get(key, ""), metric) for key, _ in _COLUMNS])
    return Summary(title, caption, metric, labels, rows)


def by_peer(groups: Sequence[Sequence[Result]], labels: Sequence[str]) -> Group | None:
    """A row for each peer that has a name, a column for each algorithm; None without names, or with many."""
    names = groups[0][0].get("names")
    if not names or len(names) > MOST_NAMED:
        return None
    metric, seeds = Metric.of(groups[0][0]), len(groups[0])
    said = f"Each peer's {metric.unit}, at the point marked *" + (", mean over seeds" if seeds > 1 else "")
    table = Table(box=None, header_style="bold", padding=(0, 1), pad_edge=False)
    table.add_column("peer", overflow="fold")
    columns = [_of_peers(group) for group in groups]
    for label in labels:
        table.add_column(label, justify="right", overflow="fold")
    for peer, name in enumerate(names):
        values = [column[peer] for column in columns]
        table.add_row(Text(name), *("-" if value is None else metric.text(value) for value in values))
    return Group(Text(said), table)


def _of_peers(group: Sequence[Result]) -> list[float | None]:
    """Each peer's score, mean over seeds."""
    found = [result.get(f"personal_{Metric.of(result).name}") for result in group]
    each = [entry["per_peer"] for entry in found if entry is not None and "sample" not in entry]
    return [_mean(values) for values in zip(*each, strict=True)] or [None] * int(group[0]["peers"])


@dataclass(frozen=True)
class Summary:
    """A table with a row for each algorithm, in two parts below each other on a narrow terminal."""

    title: str
    caption: str
    metric: Metric
    labels: Sequence[str]
    rows: Sequence[Sequence[Text]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        whole = self._part(slice(None), self.title, self.caption)
        if console.measure(whole, options=options.update(max_width=10_000)).maximum <= options.max_width:
            yield whole
            return
        yield self._part(slice(_ABOUT_SCORES), self.title, None)
        yield ""
        yield self._part(slice(_ABOUT_SCORES, None), None, self.caption)

    def _part(self, columns: slice, title: str | None, caption: str | None) -> Table:
        table = Table(
            title=title, caption=caption, box=None, header_style="bold", padding=(0, 1), pad_edge=False
        )
        table.add_column("\nalgorithm", overflow="fold")
        for column in _COLUMNS[columns]:
            table.add_column(column[1].format(self.metric.title), justify="right", no_wrap=True)
        for label, row in zip(self.labels, self.rows, strict=True):
            table.add_row(Text(label), *list(row)[columns])
        return table


def _cells(result: Result, local: Result | None) -> dict[str, float | None]:
    own = None if local is None or result["algorithm"] == "local" else gain(result, local)
    return {
        "mean": mean_of(result, "personal_{}"),
        "std": mean_of(result, "personal_{}", "std"),
        "worst": mean_of(result, "personal_{}", "worst_decile"),
        "local": mean_of(result, "personal_{}_after_local"),
        "mixing": mean_of(result, "personal_{}_after_mixing"),
        "gain": own,
        "global": mean_of(result, "global_{}"),
        "steps": work.steps_of(result),
        "sent": result["bytes_sent_per_peer"],
        "busiest": result["bytes_sent_busiest"],
        "seconds": result["seconds"],
    }


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None and math.isfinite(value)]
    return statistics.fmean(known) if known else None


def _cell(key: str, values: Sequence[float | None], sign: str, metric: Metric) -> Text:
    known = [value for value in values if value is not None and math.isfinite(value)]
    mean = _mean(known)
    if mean is None:
        return Text("-")
    if key == "steps":
        return Text(f"{mean:.0f}{sign}")
    if key in ("sent", "busiest"):
        return Text(in_bytes(mean))
    if key == "seconds":
        return Text(f"{mean:.1f}")
    text = metric.text(mean, signed=key == "gain")
    if len(known) > 1:
        text += f"±{metric.text(statistics.pstdev(known))}"
    style = "" if key != "gain" else "green" if mean > 0 else "red" if mean < 0 else ""
    return Text(text + sign, style=style)


def in_bytes(value: float) -> str:
    """1234567 as 1.2 MB."""
    for unit in _UNITS:
        if value < 999.5 or unit == _UNITS[-1]:
            break
        value /= 1000
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.3g} {unit}"
