"""`coterie compare`: several algorithms on the same data, one after the other."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from coterie.cli.completing import list_of_algorithms, names_of
from coterie.cli.options import Asked, experiment_options
from coterie.cli.output import Csv, Exports, Json, Latex, NoPlots, Output, Parquet, Quiet
from coterie.cli.problems import note
from coterie.cli.running.run import Resume, RunDir, Track
from coterie.experiments.cells.comparing import corrected, make_plan, read_plan, split_names
from coterie.experiments.runs import naming


@experiment_options(without=("algorithm",))
def compare(
    asked: Asked,
    *,
    algorithms: Annotated[
        str,
        typer.Option(
            help="Algorithms, separated by commas.",
            metavar="A,B,C",
            show_default=False,
            autocompletion=list_of_algorithms,
        ),
    ] = "",
    algorithm: Annotated[
        list[str] | None,
        typer.Option(
            "--algorithm",
            help="One more algorithm; repeatable.",
            metavar="NAME",
            show_default=False,
            autocompletion=names_of("algorithms"),
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Run so many seeds, counted up from --seed.")] = 1,
    run_dir: RunDir = None,
    resume: Resume = None,
    json: Json = False,
    quiet: Quiet = False,
    no_plots: NoPlots = False,
    track: Track = None,
    csv: Csv = None,
    parquet: Parquet = None,
    latex: Latex = None,
) -> None:
    """Compare algorithms on the same data, peers and seed; Local is always among them."""
    say, exports = partial(note, quiet=quiet), Exports(csv, parquet, latex)
    exports.check()
    names = [name.strip() for name in [*split_names(algorithms), *(algorithm or [])]]
    if resume is not None:
        more = {"--algorithms": names, "--seeds": seeds > 1, "--run-dir": run_dir}
        if refused := [name for name, given in more.items() if given]:
            asked.refuse_with("--resume", *refused)
        plan, folder = corrected(read_plan(resume), asked.table(), resume, say), resume
    else:
        plan = make_plan(asked.table, names, seeds, say)
        folder = run_dir or naming.new_folder("compare", plan[0].experiment.data)
        naming.refuse_existing(folder, "compare")

    from coterie.cli.running import simulating  # PyTorch

    simulating.compare_and_show(plan, folder, Output(json, quiet, not no_plots, exports), track or [])
