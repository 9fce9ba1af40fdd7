"""`coterie run`: one experiment."""

from __future__ import annotations

from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from coterie.cli.completing import runs_there
from coterie.cli.options import Asked, experiment_options
from coterie.cli.output import Csv, Exports, Json, Latex, NoPlots, Output, Parquet, Quiet
from coterie.cli.problems import note
from coterie.errors import RunFolderError
from coterie.experiments.runs import naming
from coterie.experiments.setup.config import note_of_validation, resolve_to_run
from coterie.experiments.setup.recommending import with_advice

RunDir = Annotated[
    Path | None,
    typer.Option(
        "--run-dir",
        help="New folder for records, plots and checkpoints.",
        metavar="DIR",
        show_default="runs/<date-time>-...",
    ),
]
Resume = Annotated[
    Path | None,
    typer.Option(
        "--resume",
        help="Continue what was interrupted in this folder.",
        metavar="DIR",
        show_default=False,
        autocompletion=runs_there,
    ),
]


class TrackerName(StrEnum):
    tensorboard = "tensorboard"
    mlflow = "mlflow"
    wandb = "wandb"


Track = Annotated[
    list[TrackerName] | None,
    typer.Option(
        "--track",
        help="Also write for this tracker, to a folder of its name within the run's; may be repeated.",
        show_default=False,
    ),
]


@experiment_options()
def run(
    asked: Asked,
    *,
    run_dir: RunDir = None,
    resume: Resume = None,
    json: Json = False,
    quiet: Quiet = False,
    no_plots: NoPlots = False,
    csv: Csv = None,
    parquet: Parquet = None,
    latex: Latex = None,
    track: Track = None,
) -> None:
    """Run one experiment and show what the peers learned."""
    exports = Exports(csv, parquet, latex)
    exports.check()
    if resume is not None:
        asked.refuse_with("--resume", *(["--run-dir"] if run_dir else []))
        if not resume.is_dir():
            raise RunFolderError(f"{resume} does not exist; there is no run to resume")
        folder, experiment = resume, None
    else:
        table = with_advice(asked.table(), partial(note, quiet=quiet))
        experiment = resolve_to_run(table)
        note(note_of_validation([table]), quiet)
        name = (experiment.algorithm, experiment.data, f"s{experiment.seed}")
        folder = run_dir or naming.new_folder(*name)
        naming.refuse_existing(folder, "run")

    from coterie.cli.running import simulating  # PyTorch

    simulating.run_and_show(experiment, folder, Output(json, quiet, not no_plots, exports), track or [])
