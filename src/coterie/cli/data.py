"""`coterie data show`: who has which labels."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coterie.cli.options import DATA_FLAGS, Asked, experiment_options
from coterie.cli.output import Csv, Exports, Latex, Parquet
from coterie.errors import RunFolderError
from coterie.experiments.runs.naming import first_free
from coterie.experiments.setup.config import resolve_to_run
from coterie.reporting.tables import show as show_table
from coterie.user_code import in_short

PLOT = "label-histogram"


@experiment_options(*DATA_FLAGS)
def show(
    asked: Asked,
    *,
    out: Annotated[
        Path | None,
        typer.Option(
            help="The plot; default: label-histogram.png, with a number if that exists.",
            metavar="FILE",
            show_default=False,
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the plot if it exists.")] = False,
    csv: Csv = None,
    parquet: Parquet = None,
    latex: Latex = None,
) -> None:
    """Print and plot each peer's labels."""
    exports = Exports(csv, parquet, latex)
    exports.check()
    experiment = resolve_to_run(asked.table())
    if out is None:
        out = Path(PLOT if force else first_free(PLOT, lambda name: Path(f"{name}.png").exists()))
        out = out.with_suffix(".png")
    if out.exists() and not force:
        raise RunFolderError(
            f"{out} exists already; choose another file with --out, or replace it with --force"
        )
    if not out.resolve().parent.is_dir():
        raise RunFolderError(f"the folder of {out} does not exist")

    # PyTorch and Matplotlib
    from coterie.experiments.setup.prepare import Objects, deal
    from coterie.reporting import data_plots, data_tables
    from coterie.results.sheets import sheet_of_labels

    federation, experiment = deal(experiment, Objects())
    names = f"{in_short(experiment.data)}, {in_short(experiment.partition)}"
    title = f"{names}, {experiment.peers} peers, seed {experiment.seed}"
    show_table(data_tables.label_table(federation, title))
    for path in exports.write(sheet_of_labels(federation, title)):
        typer.echo(f"written: {path}")
    if federation.dropped:
        typer.echo(f"{federation.dropped} training samples belong to no peer")
    typer.echo(f"plot: {data_plots.label_histogram(federation, title, out)}")
