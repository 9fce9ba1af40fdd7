"""`coterie sweep`: one experiment over values of its keys and over seeds."""

from __future__ import annotations

import dataclasses
import hashlib
import json as json_format
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coterie.catalogue import algorithms
from coterie.cli.options import Asked, experiment_options
from coterie.cli.output import Json, Quiet, print_json
from coterie.cli.problems import note
from coterie.cli.running import folders, running_cells
from coterie.cli.running.cell_progress import CellProgress
from coterie.cli.running.reproduce import Jobs, TablesOnly
from coterie.errors import ConfigError
from coterie.experiments.setup.config import resolve
from coterie.registry import parse_call

if TYPE_CHECKING:
    from coterie.experiments.cells.cell import Cell
    from coterie.reporting.comparison import Swept

CELLS = "cells"


@experiment_options()
@running_cells.interruptible()
def sweep(
    asked: Asked,
    file: Annotated[
        Path | None, typer.Argument(help="The experiment's TOML file.", metavar="FILE", show_default=False)
    ] = None,
    *,
    over: Annotated[
        list[str] | None,
        typer.Option(
            "--over", help="A key and its values, such as training.lr=0.01,0.1; repeatable.",
            metavar="KEY=V1,V2", show_default=False,
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Run so many seeds, counted up from --seed.")] = 1,
    compare: Annotated[
        tuple[str, str] | None,
        typer.Option(help="Two values: their difference on the same seeds and splits.", metavar="A B"),
    ] = None,
    target: Annotated[
        float | None, typer.Option(help="Accuracy from 0 to 1: rounds and bytes until it is reached.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", help="Folder for records and tables; what is there is not run again.", metavar="DIR",
            show_default="runs/sweep-...",
        ),
    ] = None,
    jobs: Jobs = None,
    tables_only: TablesOnly = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:  # fmt: skip
    """Run every combination of values and seeds; run again to go on after an interruption."""
    if file is not None:
        if asked.config is not None:
            raise ConfigError(f"name the experiment's file once: {file} or --config {asked.config}")
        asked = dataclasses.replace(asked, config=file)
    if target is not None and not 0 < target < 1:
        raise ConfigError(f"--target is an accuracy between 0 and 1, not {target}")
    cells = _plan(asked, over or [], seeds, quiet)
    if compare is not None:
        _check_compared(cells, *compare)
    if not tables_only:  # records are enough for tables
        running_cells.require_data(cell.experiment for cell in cells)
    folder = out or _default_folder(cells)
    broken: dict[str, str] = {}
    if not tables_only:
        with (
            running_cells.runner(folder / CELLS, jobs, len(cells)) as runner,
            CellProgress("sweep", cells, quiet) as progress,
        ):
            broken = runner.work_off(cells, progress)
    swept = _report(cells, folder, compare, target, json, quiet)
    if broken or any(one.unreadable for one in swept):
        raise typer.Exit(1)


def _plan(asked: Asked, over: list[str], seeds: int, quiet: bool) -> list[Cell]:
    """The cells, checked before anything runs."""
    from coterie.experiments.cells.cell import Cell
    from coterie.experiments.cells.sweeping import combinations, parse_axis, require_distinct

    axes = [parse_axis(text) for text in over]
    if not axes and seeds == 1:
        raise ConfigError("what to sweep over? Write --over training.lr=0.01,0.1, or --seeds 3")
    noted: set[str] = set()
    cells = []
    for labels, table in combinations(axes, seeds, asked.table):
        _give_hub_its_star(table, noted, quiet)
        cells.append(Cell(resolve(table), labels))
    require_distinct(cells)
    return cells


def _give_hub_its_star(table: dict[str, Any], noted: set[str], quiet: bool) -> None:
    """Methods with a hub are swept beside others, whose topology they cannot have."""
    name = parse_call(str(table.get("algorithm", "local")), "algorithm")[0]
    cls: Any = algorithms[name]
    if cls.facts.hub and parse_call(str(table.get("topology") or "star"))[0] != "star":
        if name not in noted:
            note(f"note: {name} goes through a hub: topology star instead of {table['topology']}", quiet)
            noted.add(name)
        table["topology"] = "star"


def _check_compared(cells: list[Cell], first: str, second: str) -> None:
    """Find out before the runs that nothing can be compared after them."""
    from coterie.experiments.cells.sweeping import compared_key

    compared_key(cells, first, second)


def _default_folder(cells: list[Cell]) -> Path:
    """The same command has the same folder, so that it goes on where it was interrupted."""
    names = json_format.dumps(sorted(cell.name for cell in cells))
    digest = hashlib.sha256(names.encode()).hexdigest()[:8]
    return folders.RUNS / f"sweep-{folders.slug(cells[0].experiment.data)}-{digest}"


def _report(
    cells: list[Cell],
    folder: Path,
    compare: tuple[str, str] | None,
    target: float | None,
    json: bool,
    quiet: bool,
) -> list[Swept]:
    from coterie.reporting import comparison
    from coterie.reporting.tables import show

    swept = comparison.read(cells, folder / CELLS)
    tables = {"results": comparison.tidy(swept), "summary": comparison.summary(swept)}
    if compare is not None:
        tables["comparison"] = comparison.compare(swept, *compare)
    if target is not None:
        tables["targets"] = comparison.to_target(swept, target)
    folder.mkdir(parents=True, exist_ok=True)
    for name, lines in tables.items():
        note(f"written: {comparison.write_csv(lines, folder / f'{name}.csv')}", quiet)
    parquet = comparison.write_parquet(tables["results"], folder / "results.parquet")
    if parquet is None:
        note("note: no results.parquet; for that install polars, or pandas and pyarrow", quiet)
    else:
        note(f"written: {parquet}", quiet)
    if json:
        print_json(tables)
        return swept
    for name, lines in tables.items():
        if name != "results":
            show(_shown(name, lines), "")
    for one in swept:
        if one.error is not None:
            show(f"broken: {one.cell.describe()}: {one.error}")
    return swept


def _shown(name: str, lines: list[dict[str, Any]]) -> Any:
    from rich.table import Table
    from rich.text import Text

    titles = {
        "summary": "Mean over seeds with Student's 95 % interval (accuracies in %)",
        "comparison": "Paired differences on the same seeds and splits, with their 95 % interval (points)",
        "targets": "Until the mean personal accuracy reaches the target",
    }
    table = Table(title=titles[name], box=None, header_style="bold", padding=(0, 1), pad_edge=False)
    columns = list(lines[0]) if lines else []
    for column in columns:
        table.add_column(column, justify="right" if isinstance(lines[0][column], float) else "left")
    for line in lines:
        table.add_row(*(Text(_text(name, column, line[column])) for column in columns))
    return table


def _text(table: str, column: str, value: Any) -> str:
    from coterie.reporting.tables import in_bytes

    if value is None:
        return "-"
    if column.startswith("bytes"):
        return in_bytes(value)
    if not isinstance(value, float):
        return str(value)
    if table == "targets":
        return f"{value:g}" if column == "target" else f"{value:.1f}"
    signed = table == "comparison" and column != "std"  # a difference has a direction, its spread has none
    return f"{100 * value:+.2f}" if signed else f"{100 * value:.2f}"
