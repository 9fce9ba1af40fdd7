"""`coterie reproduce`: the papers' tables and figures, ours beside theirs."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coterie.cli.output import Json, NoPlots, Quiet, print_json
from coterie.cli.problems import note
from coterie.cli.running import running_cells
from coterie.cli.running.cell_progress import CellProgress
from coterie.errors import ConfigError
from coterie.experiments.setup.config import resolve

if TYPE_CHECKING:
    from coterie.experiments.cells.cell import Cell
    from coterie.experiments.cells.paper_schema import Scale as ScaleName
    from coterie.experiments.cells.reproducing import Reproducible
    from coterie.reporting.reproduction import Reproduction

CELLS = "cells"


class Scale(StrEnum):
    smoke = "smoke"
    laptop = "laptop"
    paper = "paper"


Out = Annotated[
    Path,
    typer.Option(
        "--out", help="Folder for records, tables and figures; what is there is not run again.", metavar="DIR"
    ),
]  # fmt: skip
Jobs = Annotated[
    int | None,
    typer.Option(
        "--jobs", min=1, help="Cells that run at a time, one thread each; default: one per core.",
        show_default=False,
    ),
]  # fmt: skip
TablesOnly = Annotated[
    bool, typer.Option("--tables-only", help="Run nothing; tables and figures from the records that exist.")
]


@running_cells.interruptible()
def reproduce(
    names: Annotated[
        list[str],
        typer.Argument(help="list, all, a paper, paper/table-1, or your own file.toml.", metavar="NAME..."),
    ],
    scale: Annotated[
        Scale, typer.Option(help="smoke: seconds; laptop: minutes to an hour; paper: as printed.")
    ] = Scale.smoke,
    seeds: Annotated[int, typer.Option(min=1, help="Run so many seeds, from 0 on.")] = 1,
    only: Annotated[
        list[str] | None,
        typer.Option(help="Run only this row or column; may be repeated.", show_default=False),
    ] = None,
    out: Out = Path("reproductions"),
    jobs: Jobs = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(help="Folder of data files; default: COTERIE_DATA.", metavar="DIR", show_default=False),
    ] = None,
    tables_only: TablesOnly = False,
    json: Json = False,
    quiet: Quiet = False,
    no_plots: NoPlots = False,
) -> None:
    """Reproduce tables and figures of the papers; run again to go on after an interruption."""
    from coterie.experiments.cells import reproducing

    if names == ["list"]:
        _list(json)
        return
    wanted = _with_some_of(only or [], _find(names), scale.value, quiet)
    plans = _plans(wanted, scale.value, seeds, data_dir)
    if not tables_only:  # records are enough for tables
        running_cells.require_data(cell.experiment for _, cells in plans for cell in cells)
    finished = []
    with running_cells.runner(out / CELLS, jobs, plans_of(plans)) as runner:
        for one, cells in plans:
            if not tables_only:
                todo = reproducing.chosen(cells, only or [])
                with CellProgress(one.name, todo, quiet) as progress:
                    runner.work_off(todo, progress)
            finished.append(_report(one, scale.value, cells, out, json, quiet, not no_plots))
    if json:
        from coterie.reporting.reproduction_text import as_json

        print_json([as_json(reproduction) for reproduction in finished])
    # Cells that broke before are no failure of a command that runs nothing; records that it cannot read are.
    if any(one.unreadable if tables_only else one.broken for one in finished):
        raise typer.Exit(1)


def plans_of(plans: list[tuple[Reproducible, list[Cell]]]) -> int:
    """How many cells the largest has: more processes than that would be idle."""
    return max((len(cells) for _, cells in plans), default=0)


def _list(json: bool) -> None:
    from coterie.experiments.cells import reproducing

    found = reproducing.find("all")
    if json:
        print_json(
            [
                {
                    "name": one.name,
                    "title": one.table.title,
                    "source": one.table.source,
                    "shows": one.table.shows,
                    "scales": {name: plan.note for name, plan in one.table.scales.items()},
                }
                for one in found
            ]
        )
        return
    width = max(len(one.name) for one in found)
    for one in found:
        typer.echo(f"{one.name:<{width}}  {one.table.title}")
    typer.echo(
        "\ncoterie reproduce NAME --scale laptop --seeds 3 runs one of them; `all` or a paper, several."
    )


def _find(names: list[str]) -> list[Reproducible]:
    """Each once, and none in the place of another."""
    from coterie.experiments.cells import reproducing

    found: dict[str, Reproducible] = {}
    for one in (one for name in names for one in reproducing.find(name)):
        if found.setdefault(one.name, one).table != one.table:
            raise ConfigError(
                f"two files are called {one.name}.toml: their tables would overwrite each other"
            )
        if one.name == CELLS:
            raise ConfigError(
                f"{CELLS}.toml: the folder {CELLS} holds the records; give the file another name"
            )
    return list(found.values())


def _with_some_of(
    only: list[str], found: list[Reproducible], scale: ScaleName, quiet: bool
) -> list[Reproducible]:
    """Those that have one of the rows and columns named, or all if none is named."""
    from coterie.experiments.cells import reproducing

    reproducing.check_only(found, scale, only)
    wanted = [one for one in found if not only or one.parts(scale).intersection(only)]
    skipped = ", ".join(one.name for one in found if one not in wanted)
    if skipped:
        note(f"note: skipped, for lack of a row or column called {' or '.join(only)}: {skipped}", quiet)
    return wanted


def _plans(
    wanted: list[Reproducible], scale: ScaleName, seeds: int, data_dir: Path | None
) -> list[tuple[Reproducible, list[Cell]]]:
    """The cells of each, checked before anything runs."""
    folder = None if data_dir is None else str(data_dir.expanduser().resolve())
    if data_dir is not None and not data_dir.expanduser().is_dir():
        raise ConfigError(f"--data-dir {data_dir} is not a folder")
    return [(one, one.cells(scale, seeds, resolve, folder)) for one in wanted]


def _report(
    one: Reproducible, scale: ScaleName, cells: list[Cell], out: Path, json: bool, quiet: bool, plots: bool
) -> Reproduction:
    from coterie.reporting import reproduction, reproduction_plots, reproduction_text

    done = reproduction.assemble(one.name, one.table, scale, cells, out / CELLS)
    folder = out / one.name / scale
    paths = reproduction_text.write(done, folder)[:1]
    if plots:
        paths += reproduction_plots.draw(done, folder)
    if not json:
        reproduction_text.print_tables(done)
    for path in paths:
        note(f"written: {path}", quiet)
    return done
