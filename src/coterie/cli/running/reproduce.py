"""`coterie reproduce`: the papers' tables and figures, ours beside theirs."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from coterie.cli.interruption import same_command_goes_on
from coterie.cli.output import Csv, Exports, Json, Latex, NoPlots, Output, Parquet, Quiet, print_json
from coterie.cli.problems import complain, note
from coterie.errors import ConfigError
from coterie.experiments.cells import reproducing
from coterie.experiments.cells.cell import Cell
from coterie.experiments.cells.paper_schema import Scale as ScaleName
from coterie.experiments.cells.reproducing import Reproducible
from coterie.experiments.runs.naming import CELLS
from coterie.experiments.setup.config import check_engine, require_data_folder


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


@same_command_goes_on()
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
    engine: Annotated[
        str, typer.Option(help="local, ray, or the address ray://head:10001.", metavar="NAME")
    ] = "local",
    tables_only: TablesOnly = False,
    json: Json = False,
    quiet: Quiet = False,
    no_plots: NoPlots = False,
    csv: Csv = None,
    parquet: Parquet = None,
    latex: Latex = None,
) -> None:
    """Reproduce tables and figures of the papers; run again to go on after an interruption."""
    if names == ["list"]:
        _list(json)
        return
    exports = Exports(csv, parquet, latex)
    exports.check()
    wanted = _with_some_of(only or [], _find(names), scale.value, quiet)
    check_engine(engine)
    plans = [
        (one, [cell.on(engine) for cell in cells])
        for one, cells in _plans(wanted, scale.value, seeds, data_dir)
    ]
    if not tables_only:  # records are enough for tables
        for cell in (cell for _, cells in plans for cell in cells):
            require_data_folder(cell.experiment)

    from coterie.cli.running.cells import reproduce_all  # PyTorch

    finished = reproduce_all(
        plans,
        scale.value,
        out,
        only=only or [],
        jobs=jobs,
        tables_only=tables_only,
        output=Output(json, quiet, not no_plots, exports),
    )
    for one in finished:
        if one.unfair:
            complain(f"{one.name}: {one.unfair}")
    # Cells that broke before are no failure of a command that runs nothing; records that it cannot read are.
    if any(one.unfair or (one.unreadable if tables_only else one.broken) for one in finished):
        raise typer.Exit(1)


def _list(json: bool) -> None:
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
    return [(one, one.cells(scale, seeds, folder)) for one in wanted]
