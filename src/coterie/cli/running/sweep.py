"""`coterie sweep`: one experiment over values of its keys and over seeds."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Literal, cast

import typer

from coterie.cli.interruption import same_command_goes_on
from coterie.cli.options import Asked, experiment_options
from coterie.cli.output import Csv, Exports, Json, Latex, Output, Parquet, Quiet
from coterie.cli.problems import complain, note
from coterie.cli.running.reproduce import Jobs, TablesOnly
from coterie.errors import ConfigError
from coterie.experiments.cells.cell import Cell
from coterie.experiments.cells.sweeping import (
    compared_key,
    default_folder,
    parse_axis,
    plan_cells,
    refuse_ranges,
    require_validation,
)
from coterie.experiments.setup.config import require_data_folder


class Select(StrEnum):
    validation = "validation"
    test = "test"


@experiment_options()
@same_command_goes_on()
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
    optuna: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", show_default=False,
            help="Let Optuna try N combinations; --over takes ranges: log(0.001,1), uniform(0,1), int(1,9).",
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Run so many seeds, counted up from --seed.")] = 1,
    compare: Annotated[
        tuple[str, str] | None,
        typer.Option(help="Two values: their difference on the same seeds and splits.", metavar="A B"),
    ] = None,
    target: Annotated[
        float | None,
        typer.Option(help="A value of the main metric, such as 0.8: rounds and bytes until it is reached."),
    ] = None,
    select: Annotated[
        Select | None,
        typer.Option(
            help="The data that choose the best setting; default: validation, where there are such data.",
            show_default=False,
        ),
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
    csv: Csv = None,
    parquet: Parquet = None,
    latex: Latex = None,
) -> None:  # fmt: skip
    """Run every combination of values and seeds; run again to go on after an interruption."""
    if file is not None:
        if asked.config is not None:
            raise ConfigError(f"name the experiment's file once: {file} or --config {asked.config}")
        asked = dataclasses.replace(asked, config=file)
    exports = Exports(csv, parquet, latex)
    exports.check()
    if optuna is not None:
        unfit = {"--compare": compare, "--target": target, "--select": select, "--jobs": jobs}
        if given := [name for name, value in {**unfit, "--tables-only": tables_only}.items() if value]:
            raise ConfigError(f"--optuna tries one combination after the other; leave out {', '.join(given)}")

        from coterie.cli.running.cells import search_and_report  # PyTorch

        search_and_report(asked.table, over or [], seeds, out, optuna, Output(json, quiet, False, exports))
        return
    refuse_ranges(over or [])
    cells = plan_cells(
        asked.table, [parse_axis(text) for text in over or []], seeds, partial(note, quiet=quiet)
    )
    if target is not None:
        _check_target(target, cells)
    if compare is not None:
        compared_key(cells, *compare)  # find out before the runs that nothing can be compared after them
    if not tables_only:  # records are enough for tables
        for cell in cells:
            require_data_folder(cell.experiment)
    if select is Select.validation:
        require_validation(cells)
    folder = out or default_folder(cells)

    from coterie.cli.running.cells import report_sweep, work_off  # PyTorch
    from coterie.reporting.measures import different_data

    broken = {} if tables_only else work_off("sweep", cells, folder, jobs, quiet)
    by = cast(Literal["validation", "test"] | None, select and select.value)
    swept = report_sweep(cells, folder, compare, target, by, Output(json, quiet, False, exports))
    if unfair := different_data((one.cell, one.record) for one in swept if one.record is not None):
        complain(unfair)
    if broken or unfair or any(one.unreadable for one in swept):
        raise typer.Exit(1)


def _check_target(target: float, cells: Sequence[Cell]) -> None:
    """Refuse what no accuracy can be; another metric may have any value."""
    experiments = [cell.experiment for cell in cells]
    accuracies = all(one.task == "classification" and not one.metrics for one in experiments)
    if accuracies and not 0 < target < 1:
        raise ConfigError(f"--target is an accuracy between 0 and 1, not {target}")
