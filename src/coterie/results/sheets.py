"""Sheets of a comparison, with intervals over seeds, and of who has which labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal

from coterie.data import Federation
from coterie.metric import Metric
from coterie.reporting.comparison import Lines, interval_columns
from coterie.reporting.intervals import Interval, interval
from coterie.reporting.tables import gain, in_bytes, mean_of
from coterie.reporting.work import steps_of
from coterie.results.exports import Column, Sheet

Result = Mapping[str, Any]
Numbers = dict[str, list[Interval | None]]  # by metric: one for each algorithm


def sheet_of(results: Mapping[str, Sequence[Result]], local: Sequence[Result] | None = None) -> Sheet:
    """results: by algorithm, one for each seed; local: those of Local on the same seeds, if there are any."""
    first = next(iter(results.values()))
    beside: Sequence[Result | None] = local or [None] * len(first)
    groups = [
        [_measures(result, alone) for result, alone in zip(group, beside, strict=True)]
        for group in results.values()
    ]
    numbers: Numbers = {
        name: [_over_seeds([measures[name] for measures in group]) for group in groups]
        for name in groups[0][0]
    }
    columns = _columns(list(results), numbers, Metric.of(first[0]))
    return Sheet(_lines(list(results), numbers), columns, _caption(first))


def _measures(result: Result, local: Result | None) -> dict[str, float | None]:
    name = Metric.of(result).name
    return {
        f"personal_{name}": mean_of(result, "personal_{}"),
        "worst_decile": mean_of(result, "personal_{}", "worst_decile"),
        f"personal_{name}_after_local": mean_of(result, "personal_{}_after_local"),
        f"personal_{name}_after_mixing": mean_of(result, "personal_{}_after_mixing"),
        "gain_over_local": None if result["algorithm"] == "local" else gain(result, local),
        f"global_{name}": mean_of(result, "global_{}"),
        "gradient_steps_per_peer": steps_of(result),
        "bytes_sent_per_peer": result["bytes_sent_per_peer"],
    }


def _over_seeds(values: Sequence[float | None]) -> Interval | None:
    return interval([value for value in values if value is not None and value == value])


def _lines(labels: Sequence[str], numbers: Numbers) -> Lines:
    return [
        {"algorithm": label, "metric": name, **interval_columns(found)}
        for place, label in enumerate(labels)
        for name, cells in numbers.items()
        if (found := cells[place]) is not None
    ]


def _columns(labels: Sequence[str], numbers: Numbers, metric: Metric) -> list[Column]:
    """Those that a paper shows, without what nobody has."""
    good: Literal["highest", "lowest"] = "highest" if metric.higher_is_better else "lowest"
    sent = [None if cell is None else in_bytes(cell.mean) for cell in numbers["bytes_sent_per_peer"]]
    columns = [
        Column("algorithm", labels),
        Column(metric.unit, numbers[f"personal_{metric.name}"], metric.text, good),
        Column("worst tenth", numbers["worst_decile"], metric.text, good),
        Column("gain over Local", numbers["gain_over_local"], partial(metric.text, signed=True), "highest"),
        Column(f"global {metric.title}", numbers[f"global_{metric.name}"], metric.text, good),
        Column("sent per peer", sent),
    ]
    return [column for column in columns if any(cell is not None for cell in column.cells)]


def _caption(group: Sequence[Result]) -> str:
    first, seeds = group[0], len(group)
    spread = f"mean and Student's 95 % interval over {seeds} seeds" if seeds > 1 else "one seed"
    what = f"{first['peers']} peers, {first['data']}, {first['partition']}, {first['model']}"
    return f"{what}, {first['rounds']} rounds; {spread}"


def sheet_of_labels(federation: Federation, caption: str) -> Sheet:
    """A line for each peer: its sizes, and how many training samples of each class, or bin, it has."""
    counts = federation.label_histogram("train").tolist()
    parts = {"train": federation.train, "validation": federation.validation, "test": federation.test}
    sizes = {name: part.sizes.tolist() for name, part in parts.items() if part.total}
    lines: Lines = []
    for peer, of_classes in enumerate(counts):
        cluster = {} if federation.clusters is None else {"cluster": int(federation.clusters[peer])}
        own = {name: size[peer] for name, size in sizes.items()}
        groups = {f"class {name}": n for name, n in zip(federation.group_names, of_classes, strict=True)}
        name = {"name": federation.name_of(peer)} if federation.names else {}
        lines.append({"peer": peer, **name, **cluster, **own, **groups})
    columns = [Column(name, [str(line[name]) for line in lines]) for name in lines[0]]
    return Sheet(lines, columns, caption)
