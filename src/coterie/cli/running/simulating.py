"""What `run`, `compare` and `demo` do once their experiments are known. Imports PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from coterie.catalogue import algorithms
from coterie.cli.output import Output, print_json, print_paths
from coterie.cli.problems import note
from coterie.cli.running.progress import Progress
from coterie.experiments.cells.comparing import Planned
from coterie.experiments.runs.folder import RunFolder
from coterie.experiments.runs.naming import going_on
from coterie.experiments.runs.observing import Observer
from coterie.experiments.runs.running import run_or_resume
from coterie.experiments.setup.prepare import note_of_isolation
from coterie.experiments.setup.schema import Experiment
from coterie.reporting import tables
from coterie.results.comparison import Comparison, run_plan
from coterie.user_code import in_short


def run_and_show(experiment: Experiment | None, folder: Path, output: Output) -> None:
    """One experiment; None: that of the folder, which goes on."""
    experiment = experiment or _experiment_in(folder)
    note(note_of_isolation(experiment), output.quiet)
    with Progress(output.quiet) as progress, going_on(folder, f"coterie run --resume {folder}"):
        watcher = _watcher(progress, experiment, in_short(experiment.algorithm))
        done = run_or_resume(experiment, folder, observer=watcher)
    result = done.result()
    if output.json:
        print_json(result)
    else:
        tables.show(tables.summary([result]))
        _show_peers([[result]], [tables.label_of(result)])
    alone = Comparison({tables.label_of(result): [done]})
    print_paths(alone.plot(folder) if output.plots else [], folder, output)


def compare_and_show(plan: list[Planned], folder: Path, output: Output) -> Comparison:
    """Run the plan; table or JSON on stdout, plots in the folder."""
    with Progress(output.quiet, lines=3) as progress:
        done = run_plan(
            plan,
            folder,
            watch=lambda planned: _watcher(progress, planned.experiment, planned.label),
            say=partial(note, quiet=output.quiet),
            go_on=f"coterie compare --resume {folder}",
        )
    if output.json:
        print_json(done.results())
    else:
        tables.show(done.table())
        _show_peers([[run.result() for run in group] for group in done.runs.values()], list(done.runs))
    output.export(done.sheet())
    print_paths(done.plot(folder) if output.plots else [], folder, output)
    return done


def _show_peers(groups: Sequence[Sequence[tables.Result]], labels: Sequence[str]) -> None:
    """Who is how well off, where peers have names."""
    table = tables.by_peer(groups, labels)
    if table is not None:
        tables.show("", table)


def _watcher(progress: Progress, experiment: Experiment, label: str) -> Observer:
    point = algorithms[experiment.algorithm].facts.measured  # type: ignore[attr-defined]
    return progress.watch(label, experiment.rounds, point)


def _experiment_in(folder: Path) -> Experiment:
    """The experiment of a run folder that can be continued."""
    stored = RunFolder(folder)
    experiment = stored.experiment()
    stored.executor()  # fails here, before the run, if it cannot be read
    return experiment
