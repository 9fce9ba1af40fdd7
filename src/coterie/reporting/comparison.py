"""Tables of a sweep, from the records of its cells: tidy results, means and intervals, paired differences."""

from __future__ import annotations

import csv
import importlib
import importlib.util
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from coterie.errors import ConfigError, RunFolderError
from coterie.experiments.cells.cell import Cell, breakage
from coterie.experiments.cells.sweeping import SAME_DATA, compared_key, parse_value
from coterie.files import write_atomically
from coterie.metric import Metric
from coterie.reporting.intervals import Interval, interval
from coterie.reporting.measures import Record, measure, read_record
from coterie.reporting.work import said_above, steps_of, unequal

Lines = list[dict[str, Any]]
Chooser: TypeAlias = Literal["validation", "test"]
"""The data that choose the best of several settings; on these its number is too good."""
_MEASURES_OF: dict[Chooser, str] = {"validation": "validation", "test": "personal"}
Labels: TypeAlias = tuple[tuple[str, Any], ...]
MEASURES = {  # column of the tidy table, for the run's main metric -> measure
    "personal_{}": "personal",
    "personal_{}_after_local": "personal-after-local",
    "personal_{}_after_mixing": "personal-after-mixing",
    "spread_over_peers": "personal-spread",
    "worst_decile": "worst-decile",
    "global_{}": "global",
    "validation_{}": "validation",
    "own_cluster_share": "own-cluster-share",
}
_OF_A_LINE = {"algorithm", "mean", "std", "low", "high", "seeds", "steps_per_peer"}
_SUMMARISED = ("personal_{}", "worst_decile", "global_{}", "validation_{}")


@dataclass(frozen=True)
class Swept:
    """A cell of a sweep with what is known of it."""

    cell: Cell
    record: Record | None
    error: str | None
    unreadable: bool = False  # it ran, but its records are damaged


def read(cells: Sequence[Cell], where: Path) -> list[Swept]:
    return [_read(cell, where / cell.name) for cell in cells]


def _read(cell: Cell, folder: Path) -> Swept:
    try:
        record = read_record(folder)
    except RunFolderError as error:  # the others are still worth a table
        return Swept(cell, None, str(error), unreadable=True)
    return Swept(cell, record, None if record else breakage(folder) or "not run")


def tidy(swept: Sequence[Swept]) -> Lines:
    """A line for each run: its labels, its numbers, and where its records are."""
    lines = []
    for one in swept:
        result: Mapping[str, Any] = one.record.result if one.record else {}
        metric = main_metric([one, *swept])
        numbers = {
            column.format(metric.name): None if one.record is None else measure(one.record, wanted)
            for column, wanted in MEASURES.items()
        }
        work = {"work": result.get("work"), "gradient_steps_per_peer": steps_of(result)}
        work["samples_seen_per_peer"] = (result.get("samples_seen_per_peer") or {}).get("mean")
        more = {key: result.get(key) for key in ("bytes_sent_per_peer", "bytes_sent_busiest", "seconds")}
        status = {"status": one.error or "finished", "folder": one.cell.name}
        lines.append({**one.cell.labels, **numbers, **work, **more, **status})
    return lines


def main_metric(swept: Sequence[Swept]) -> Metric:
    """That of the first run that is finished."""
    return next((one.record.metric for one in swept if one.record is not None), Metric.of({}))


def in_percent(swept: Sequence[Swept]) -> bool:
    """Whether the main metric of all runs is read in percent."""
    return all(one.record.metric.percent for one in swept if one.record is not None)


def summary(swept: Sequence[Swept]) -> Lines:
    """Mean, standard deviation and Student's interval over seeds, for each combination of other labels."""
    table = tidy(swept)
    lines = []
    for labels, members in _without_seed(swept).items():
        chosen = [table[number] for number in members]
        steps = interval([taken for line in chosen if (taken := line["gradient_steps_per_peer"]) is not None])
        taken = {"steps_per_peer": steps.mean if steps else None}
        for column in _summarised([swept[number] for number in members]):
            found = interval([line[column] for line in chosen if line.get(column) is not None])
            if found is not None:
                lines.append({**dict(labels), "metric": column, **interval_columns(found), **taken})
    return lines


def chooser(swept: Sequence[Swept], asked: Chooser | None) -> Chooser:
    """Validation data, where all runs have them, unless the user says otherwise."""
    finished = [one.record for one in swept if one.record is not None]
    validated = bool(finished) and all(measure(one, "validation") is not None for one in finished)
    if asked == "validation" and finished and not validated:
        raise ConfigError(
            "--select validation: not all of these runs have validation data; set some aside with "
            "--set splitting.validation=0.2"
        )
    return asked or ("validation" if validated else "test")


def best(swept: Sequence[Swept]) -> dict[str, Any]:
    """The labels with the best mean over seeds of the main metric; empty if nothing was run.

    On validation data, where all runs have them, else on test data.
    """
    metric = main_metric(swept)
    kind = "validation" if chooser(swept, None) == "validation" else "personal"
    column = f"{kind}_{metric.name}"
    lines = [line for line in summary(swept) if line["metric"] == column]
    if not lines:
        return {}
    first = (max if metric.higher_is_better else min)(lines, key=lambda line: line["mean"])
    return {key: first[key] for key in swept[0].cell.labels if key != "seed"}


def chosen(swept: Sequence[Swept], by: Chooser) -> Lines:
    """The best of several settings, on each data set and for each algorithm; nothing where there is one."""
    metric = main_metric(swept)
    lines = []
    for members in _groups(swept):
        settings = {labels: _line(labels, runs, by, metric) for labels, runs in members.items()}
        known = {labels: line for labels, line in settings.items() if line[_column(by, metric)] is not None}
        if len(known) > 1:
            best = max if metric.higher_is_better else min
            labels = best(known, key=lambda labels: known[labels][_column(by, metric)])  # the first of equals
            lines.append({**known[labels], "settings": len(known)})
    return lines


def choice_said(by: Chooser, metric: Metric) -> str:
    """What the table of chosen settings says above it."""
    if by == "validation":
        return f"Best setting, chosen by validation {metric.title}; test data had no say"
    return (
        f"Best setting, chosen by TEST {metric.title}: being chosen makes its number too good\n"
        "(--set splitting.validation=0.2 sets data aside to choose by)"
    )


def _column(by: Chooser, metric: Metric) -> str:
    return f"{'validation' if by == 'validation' else 'personal'}_{metric.name}"


def _line(labels: Labels, runs: list[Swept], by: Chooser, metric: Metric) -> dict[str, Any]:
    line: dict[str, Any] = {**dict(labels), "chosen_by": by}
    for kind, wanted in _MEASURES_OF.items():
        values = [measure(one.record, wanted) for one in runs if one.record is not None]
        found = interval([value for value in values if value is not None])
        line[_column(kind, metric)] = None if found is None else found.mean
    return line


def _groups(swept: Sequence[Swept]) -> list[dict[Labels, list[Swept]]]:
    """Runs that compete: on the same data and, where other things vary as well, of the same algorithm."""
    by_data: dict[str, dict[Labels, list[Swept]]] = {}
    for one in swept:
        labels = tuple((key, value) for key, value in one.cell.labels.items() if key != "seed")
        data = one.cell.experiment.model_dump_json(include=SAME_DATA - {"seed"})
        by_data.setdefault(data, {}).setdefault(labels, []).append(one)
    return [group for members in by_data.values() for group in _of_each_algorithm(members)]


def _of_each_algorithm(members: dict[Labels, list[Swept]]) -> list[dict[Labels, list[Swept]]]:
    values: dict[str, set[str]] = {}
    for key, value in (pair for labels in members for pair in labels):
        values.setdefault(key, set()).add(str(value))
    varying = {key for key, some in values.items() if len(some) > 1}
    if len(varying) < 2 or "algorithm" not in varying:
        return [members]
    groups: dict[Any, dict[Labels, list[Swept]]] = {}
    for labels, runs in members.items():
        groups.setdefault(dict(labels)["algorithm"], {})[labels] = runs
    return list(groups.values())


def work_said(swept: Sequence[Swept]) -> str:
    """What the sweep's tables say about local work; empty if nothing was run."""
    results = [one.record.result for one in swept if one.record is not None]
    return said_above(results) if results else ""


def trained_otherwise(lines: Lines) -> list[bool]:
    """Which lines of the summary have other steps than Local with the same labels, or than the median."""

    def others(line: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in line.items() if key not in _OF_A_LINE}

    steps = [line["steps_per_peer"] for line in lines]
    local = [
        next((one["steps_per_peer"] for one in lines if _is_local(one) and others(one) == others(line)), None)
        for line in lines
    ]
    marks = unequal(steps)
    return [
        unequal([own], reference)[0] if reference is not None else mark
        for own, reference, mark in zip(steps, local, marks, strict=True)
    ]


def _is_local(line: dict[str, Any]) -> bool:
    return str(line.get("algorithm", "")).partition("(")[0] == "local"


def to_target(swept: Sequence[Swept], target: float) -> Lines:
    """Rounds and bytes per peer until the mean of the main metric is as good as the target."""
    lines = []
    for labels, members in _without_seed(swept).items():
        records = [record for number in members if (record := swept[number].record) is not None]
        rounds = [value for one in records if (value := measure(one, "rounds-to-target", target)) is not None]
        volume = [value for one in records if (value := measure(one, "bytes-to-target", target)) is not None]
        mean_rounds, mean_bytes = interval(rounds), interval(volume)
        lines.append(
            {
                **dict(labels),
                "target": target,
                "reached": len(rounds),
                "seeds": len(records),
                "rounds": mean_rounds.mean if mean_rounds else None,
                "rounds_std": mean_rounds.std if mean_rounds else None,
                "bytes_per_peer": mean_bytes.mean if mean_bytes else None,
                "bytes_per_peer_std": mean_bytes.std if mean_bytes else None,
            }
        )
    return lines


def compare(swept: Sequence[Swept], first: str, second: str) -> Lines:
    """The difference first - second, run by run on the same seeds and splits, with its interval."""
    key = compared_key([one.cell for one in swept], first, second)
    table = tidy(swept)
    pairs: dict[Labels, dict[Any, dict[str, int]]] = {}
    for number, one in enumerate(swept):
        value = str(one.cell.labels[key])
        if value in (first, second):
            others = tuple((k, v) for k, v in one.cell.labels.items() if k not in (key, "seed"))
            pairs.setdefault(others, {}).setdefault(one.cell.labels["seed"], {})[value] = number
    lines = []
    for others, by_seed in pairs.items():
        members = [swept[number] for pair in by_seed.values() for number in pair.values()]
        for column in _summarised(members):
            differences = []
            for pair in by_seed.values():
                a, b = (table[pair[name]].get(column) for name in (first, second))
                if a is not None and b is not None:
                    differences.append(a - b)
            found = interval(differences)
            if found is not None:
                lines.append(
                    {
                        **dict(others),
                        "difference": f"{first} - {second}",
                        "metric": column,
                        **interval_columns(found),
                    }
                )
    return lines


def _summarised(swept: Sequence[Swept]) -> list[str]:
    """The columns that are summed up, for the main metric of these runs."""
    return [column.format(main_metric(swept).name) for column in _SUMMARISED]


def _without_seed(swept: Sequence[Swept]) -> dict[Labels, list[int]]:
    """Which cells differ only in their seed."""
    groups: dict[Labels, list[int]] = {}
    for number, one in enumerate(swept):
        labels = tuple((key, value) for key, value in one.cell.labels.items() if key != "seed")
        groups.setdefault(labels, []).append(number)
    return groups


def interval_columns(found: Interval) -> dict[str, Any]:
    return {"mean": found.mean, "std": found.std, "low": found.low, "high": found.high, "seeds": found.n}


def write_csv(lines: Lines, path: Path) -> Path:
    text = io.StringIO()
    names = list(dict.fromkeys(name for line in lines for name in line))
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: "" if value is None else value for name, value in line.items()} for line in lines)
    write_atomically(path, text.getvalue().encode())
    return path


def write_parquet(lines: Lines, path: Path) -> Path | None:
    """With polars, or with pandas and pyarrow; None if neither is installed."""
    content = io.BytesIO()
    names = list(dict.fromkeys(name for line in lines for name in line))
    columns = {name: _as_numbers([line.get(name) for line in lines]) for name in names}
    if importlib.util.find_spec("polars") is not None:
        polars = importlib.import_module("polars")
        polars.DataFrame(columns, strict=False).write_parquet(content)
    elif all(importlib.util.find_spec(name) is not None for name in ("pandas", "pyarrow")):
        pandas = importlib.import_module("pandas")
        pandas.DataFrame(columns).to_parquet(content, index=False)
    else:
        return None
    write_atomically(path, content.getvalue())
    return path


def _as_numbers(values: list[Any]) -> list[Any]:
    """Swept values are kept as the user wrote them; where all are numbers, so is the column."""
    parsed: list[Any] = [parse_value(value) if isinstance(value, str) else None for value in values]
    if not parsed or any(type(value) not in (int, float) for value in parsed):
        return values
    return parsed if all(type(value) is int for value in parsed) else [float(value) for value in parsed]
