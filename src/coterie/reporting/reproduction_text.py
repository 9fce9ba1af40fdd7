"""A reproduction as text: Markdown, CSV, JSON and tables for the terminal."""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
from collections.abc import Sequence
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from coterie.experiments.cells.paper_schema import ACCURACIES, NUMBERS, Column, Row
from coterie.files import write_atomically
from coterie.reporting.intervals import Interval
from coterie.reporting.measures import is_percentage
from coterie.reporting.reproduction import Reproduction, orders, printed_number, verdicts
from coterie.reporting.tables import in_bytes, show
from coterie.reporting.work import SIGN, said_below

TABLE, NUMBERS_CSV, CELLS_CSV, RESULTS = "table.md", "numbers.csv", "cells.csv", "results.json"


def write(reproduction: Reproduction, folder: Path) -> list[Path]:
    """The Markdown page, the numbers, the cells and everything as JSON, in that folder."""
    folder.mkdir(parents=True, exist_ok=True)
    contents = {
        TABLE: markdown(reproduction),
        NUMBERS_CSV: _csv(_number_lines(reproduction)),
        CELLS_CSV: _csv(_cell_lines(reproduction)),
        RESULTS: json.dumps(as_json(reproduction), indent=2) + "\n",
    }
    for name, content in contents.items():
        write_atomically(folder / name, content.encode())
    return [folder / name for name in contents]


def print_tables(reproduction: Reproduction) -> None:
    """For the terminal: one table for each metric, then orders, claims and what broke."""
    for metric in reproduction.table.metrics:
        head, *lines = _grid(reproduction, metric)
        title = f"{reproduction.name} at scale {reproduction.scale}: {metric_name(reproduction, metric)}"
        table = Table(box=None, header_style="bold", padding=(0, 1), pad_edge=False)
        for number, name in enumerate(head):
            table.add_column(Text(name), justify="right" if number else "left")
        for line in lines:
            table.add_row(*map(Text, line))
        show(Text(title, style="bold"), table, "")
    show(Text(_legend(reproduction)), "")
    for title, items in (
        ("Not comparable", [reproduction.unfair] if reproduction.unfair else []),
        ("Gradient steps per peer", _work_lines(reproduction)),
        ("Order of methods", _order_lines(reproduction)),
        ("Claims of the paper", _claim_lines(reproduction)),
        ("Broken cells", _broken_lines(reproduction)),
        ("Not run yet", _missing_lines(reproduction)),
        ("Notes", _notes(reproduction)),
    ):
        if items:
            show(Text(title, style="bold"), *(Text(f"- {item}") for item in items), "")


def markdown(reproduction: Reproduction) -> str:
    table, parts = reproduction.table, [f"# {reproduction.name}: {reproduction.table.title}", ""]
    note = table.scales[reproduction.scale].note
    parts += [f"{table.source}. {table.shows}", "", f"**The paper's setting.** {table.setting}", ""]
    parts += [f"**Scale `{reproduction.scale}`.** {note or 'As printed.'}", ""]
    for metric in table.metrics:
        parts += [f"## {metric_name(reproduction, metric)}", "", _legend(reproduction), ""]
        parts += [*_markdown_table(_grid(reproduction, metric)), ""]
    for title, items in (
        ("Not comparable", [reproduction.unfair] if reproduction.unfair else []),
        ("Gradient steps per peer", _work_lines(reproduction)),
        ("Order of methods, best first", _order_lines(reproduction)),
        ("Claims of the paper", _claim_lines(reproduction)),
        ("Broken cells", _broken_lines(reproduction)),
        ("Not run yet", _missing_lines(reproduction)),
        ("Notes", _notes(reproduction)),
    ):
        if items:
            parts += [f"## {title}", "", *(f"- {item}" for item in items), ""]
    return "\n".join(parts)


def as_json(reproduction: Reproduction) -> dict[str, Any]:
    return {
        "name": reproduction.name,
        "title": reproduction.table.title,
        "scale": reproduction.scale,
        "seeds": reproduction.seeds,
        "seconds": reproduction.seconds(),
        "rows": {row.name: row.shown for row in reproduction.rows},
        "columns": {column.name: column.shown for column in reproduction.columns},
        "tables": [
            {
                "title": metric_name(reproduction, metric),
                "legend": _legend(reproduction),
                "lines": _grid(reproduction, metric),
            }
            for metric in reproduction.table.metrics
        ],
        "notes": _notes(reproduction),
        "numbers": [dict(zip(_NUMBER_HEADER, line, strict=True)) for line in _numbers(reproduction)],
        "not_comparable": reproduction.unfair or None,
        "gradient_steps_per_peer": {
            column.name: reproduction.steps(column.name) for column in reproduction.columns
        },
        "orders": [vars(order) for order in orders(reproduction)],
        "claims": [
            {"says": one.claim.says, "status": one.status, "detail": one.detail}
            for one in verdicts(reproduction)
        ],
        "broken": [
            {"row": row, "column": column, "seed": seed, "error": message}
            for (row, column, seed), message in reproduction.broken.items()
        ],
        "missing": [
            {"row": row, "column": column, "seed": seed} for row, column, seed in reproduction.missing
        ],
    }


def metric_name(reproduction: Reproduction, metric: str) -> str:
    label = reproduction.table.metric_labels.get(metric)
    meaning = {**ACCURACIES, **NUMBERS}.get(metric, f"own test data, peers of {metric.replace('-', ' ')}")
    kind = "accuracy in %, " if is_percentage(metric) and "share" not in metric else ""
    return label or f"{metric}: {kind}{meaning}"


def _legend(reproduction: Reproduction) -> str:
    seeds = reproduction.seeds
    spread = f"mean ± standard deviation over {seeds} seeds" if seeds > 1 else "one seed"
    legend = f"Ours ({spread}), in parentheses the paper's number; †: see the notes."
    if not any(reproduction.trained_otherwise(column.name) for column in reproduction.columns):
        return legend
    return f"{legend} {said_below('those of Local, or of the median where there is none,')}."


def _grid(reproduction: Reproduction, metric: str) -> list[list[str]]:
    """The header and a line for each method, as text."""
    grid = [["method", *(column.shown for column in reproduction.columns)]]
    for row in reproduction.rows:
        grid.append([row.shown, *(_cell(reproduction, row, one, metric) for one in reproduction.columns)])
    floors = [reproduction.floor(column.name, metric) for column in reproduction.columns]
    if reproduction.table.floor and any(floor is not None for floor in floors):
        grid.append(["(majority class)", *("-" if floor is None else f"{floor:.1f}" for floor in floors)])
    return grid


def _cell(reproduction: Reproduction, row: Row, column: Column, metric: str) -> str:
    value, entry = printed_number(reproduction.table, row, column.name, metric)
    paper = ""
    if entry is not None and (value is not None or entry.note):  # a note alone: why there is no number
        number = "-" if value is None else plain_number(value, metric)
        paper = f" ({number}{'†' if entry.note else ''})"
    sign = SIGN if row.name in reproduction.trained_otherwise(column.name) else ""
    return ours(reproduction, row.name, column.name, metric) + sign + paper


def ours(reproduction: Reproduction, row: str, column: str, metric: str) -> str:
    """Our number, or why there is none."""
    number = reproduction.number(row, column, metric)
    runs = len(reproduction.records.get((row, column), {}))
    if number is None:
        broken = any(key[:2] == (row, column) for key in reproduction.broken)
        if metric.endswith("-to-target") and runs:
            return "not reached"
        return "broken" if broken else "-"
    text = plain_number(number.mean, metric)
    if number.std is not None:
        text += f"±{plain_number(number.std, metric)}"
    return text if number.n == runs else f"{text} [{number.n} of {runs}]"


def plain_number(value: float, metric: str) -> str:
    if metric == "bytes-to-target":
        return in_bytes(value)
    if metric.endswith("loss"):
        return f"{value:.3f}"
    if not is_percentage(metric):
        return f"{value:.0f}"
    # As the paper's readers would round what is printed: 53.15 is 53.2, though its float is below that.
    return str(Decimal(str(value)).quantize(Decimal("0.1"), ROUND_HALF_UP))


def _work_lines(reproduction: Reproduction) -> list[str]:
    """Nothing where all methods trained equally long."""
    lines = []
    for column in reproduction.columns:
        if otherwise := reproduction.trained_otherwise(column.name):
            steps = reproduction.steps(column.name).items()
            rows = (f"{row} {count:.0f}{SIGN if row in otherwise else ''}" for row, count in steps)
            lines.append(f"{column.shown}: {', '.join(rows)}")
    return lines


def _order_lines(reproduction: Reproduction) -> list[str]:
    labels = {column.name: column.shown for column in reproduction.columns}
    return [
        f"{labels[order.column]}, {order.metric}: ours {_places(order.ours)}; "
        f"paper {_places(order.printed)}; {order.agreeing} of {order.pairs} pairs agree"
        for order in orders(reproduction)
        if order.ours
    ]


def _places(places: list[list[str]]) -> str:
    return " > ".join(" = ".join(names) for names in places)


def _claim_lines(reproduction: Reproduction) -> list[str]:
    return [
        f"{one.claim.says}: {one.status.upper()}" + (f" ({one.detail})" if one.detail else "")
        for one in verdicts(reproduction)
    ]


def _broken_lines(reproduction: Reproduction) -> list[str]:
    return [f"{r}, {c}, seed {s}: {message}" for (r, c, s), message in reproduction.broken.items()]


def _missing_lines(reproduction: Reproduction) -> list[str]:
    """For each column, the rows that lack seeds."""
    lacking: dict[str, dict[str, list[str]]] = {}
    for row, column, seed in reproduction.missing:
        lacking.setdefault(column, {}).setdefault(row, []).append(str(seed))
    return [
        f"{column}: " + ", ".join(f"{row} (seed {' '.join(seeds)})" for row, seeds in rows.items())
        for column, rows in lacking.items()
    ]


def _notes(reproduction: Reproduction) -> list[str]:
    lines = list(reproduction.table.notes)
    for row, column in itertools.product(reproduction.rows, reproduction.columns):
        entry = row.printed.get(column.name)
        if entry is not None and entry.note:
            lines.append(f"† {row.shown}, {column.shown}: {entry.note}")
    return lines


_NUMBER_HEADER = (
    "row", "column", "metric", "mean", "std", "low", "high", "seeds", "printed", "printed_spread", "note",
)  # fmt: skip


def _numbers(reproduction: Reproduction) -> list[list[Any]]:
    lines = []
    for metric, row, column in itertools.product(
        reproduction.table.metrics, reproduction.rows, reproduction.columns
    ):
        number = reproduction.number(row.name, column.name, metric) or Interval(math.nan, None, None, None, 0)
        value, entry = printed_number(reproduction.table, row, column.name, metric)
        ours_mean = None if number.n == 0 else number.mean
        main = entry is not None and metric in reproduction.table.compared
        lines.append(
            [
                row.name, column.name, metric, ours_mean, number.std, number.low, number.high, number.n,
                value, entry.spread if main and entry else None, entry.note if entry else "",
            ]
        )  # fmt: skip
    return lines


def _number_lines(reproduction: Reproduction) -> list[Sequence[Any]]:
    return [_NUMBER_HEADER, *_numbers(reproduction)]


def _cell_lines(reproduction: Reproduction) -> list[Sequence[Any]]:
    metrics = reproduction.table.metrics
    lines: list[Sequence[Any]] = [["row", "column", "seed", "status", "seconds", "folder", *metrics]]
    for (row, column), by_seed in reproduction.records.items():
        for seed, record in by_seed.items():
            values = [reproduction.values(row, column, metric).get(seed) for metric in metrics]
            seconds = f"{float(record.result['seconds']):.1f}"
            lines.append([row, column, seed, "finished", seconds, record.folder.name, *values])
    for (row, column, seed), message in reproduction.broken.items():
        lines.append([row, column, seed, f"broken: {message}", "", "", *[None] * len(metrics)])
    lines += [[*key, "missing", "", "", *[None] * len(metrics)] for key in reproduction.missing]
    return lines


def _csv(lines: Sequence[Sequence[Any]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(
        [["" if value is None else value for value in line] for line in lines]
    )
    return text.getvalue()


def _markdown_table(grid: Sequence[Sequence[str]]) -> list[str]:
    head, *lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in grid]
    return [head, "|---" * len(grid[0]) + "|", *lines]
