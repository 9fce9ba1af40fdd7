"""What `run`, `compare` and `demo` do once their experiments are known. Imports PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from coterie.catalogue import algorithms
from coterie.cli.output import Output, print_json, print_paths
from coterie.cli.problems import note
from coterie.cli.running.progress import Progress, Watcher
from coterie.errors import ConfigError
from coterie.experiments.cells.comparing import Planned
from coterie.experiments.cells.notices import Notice
from coterie.experiments.runs.folder import RunFolder
from coterie.experiments.runs.naming import going_on
from coterie.experiments.runs.running import run_or_resume
from coterie.experiments.runs.tracking import Tracker, track
from coterie.experiments.setup.prepare import note_of_isolation
from coterie.experiments.setup.schema import Experiment
from coterie.reporting import tables
from coterie.reporting.page.report import leave_report
from coterie.results.comparison import Comparison, run_plan
from coterie.results.sheets import sheet_of
from coterie.user_code import in_short


def run_and_show(
    experiment: Experiment | None, folder: Path, output: Output, trackers: Sequence[str] = ()
) -> None:
    """One experiment; None: that of the folder, which goes on."""
    experiment, tracked = experiment or _experiment_in(folder), _Tracked(trackers, folder)
    note(note_of_isolation(experiment), output.quiet)
    with Progress(output.quiet) as progress, going_on(folder, f"coterie run --resume {folder}"), tracked:
        watcher = _watcher(progress, experiment, in_short(experiment.algorithm))
        done = run_or_resume(experiment, folder, observer=[watcher, *tracked.watch("")])
    result = done.result()
    if output.json:
        print_json(result)
    else:
        tables.show(tables.summary([result]))
        _show_peers([[result]], [tables.label_of(result)])
    output.export(sheet_of({tables.label_of(result): [result]}))
    leave_report(folder)
    alone = Comparison({tables.label_of(result): [done]})
    print_paths(alone.plot(folder) if output.plots else [], folder, output)


def compare_and_show(
    plan: list[Planned], folder: Path, output: Output, trackers: Sequence[str] = ()
) -> Comparison:
    """Run the plan; table or JSON on stdout, plots in the folder."""
    if trackers and any(planned.experiment.execution.on_ray for planned in plan):
        raise ConfigError(
            "--track follows runs of this process, and with Ray those of a comparison are elsewhere; leave "
            "it out, or track a single `coterie run`"
        )
    tracked, elsewhere = _Tracked(trackers, folder), dict[str, Watcher]()
    with Progress(output.quiet, lines=3) as progress, tracked:

        def told(planned: Planned, notice: Notice) -> None:
            if planned.folder not in elsewhere:
                elsewhere[planned.folder] = _watcher(progress, planned.experiment, planned.label)
            elsewhere[planned.folder].tell(notice)

        done = run_plan(
            plan,
            folder,
            watch=lambda planned: [
                _watcher(progress, planned.experiment, planned.label),
                *tracked.watch(f"{planned.label}-s{planned.experiment.seed}"),
            ],
            told=told,
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


class _Tracked(ExitStack):
    """The trackers that were asked for, each with a folder of its own; closed whatever happens."""

    def __init__(self, names: Sequence[str], folder: Path) -> None:
        super().__init__()
        self._names, self._folder = names, folder
        for name in names:  # find out before the run that a package is missing
            track(name, folder / name)

    def watch(self, label: str) -> list[Tracker]:
        """label: what the next run is called; empty: its algorithm, data and seed."""
        called = label.replace("/", "-")
        return [self.enter_context(track(name, self._folder / name, called)) for name in self._names]


def _watcher(progress: Progress, experiment: Experiment, label: str) -> Watcher:
    point = algorithms[experiment.algorithm].facts.measured  # type: ignore[attr-defined]
    return progress.watch(label, experiment.rounds, point)


def _experiment_in(folder: Path) -> Experiment:
    """The experiment of a run folder that can be continued."""
    stored = RunFolder(folder)
    experiment = stored.experiment()
    stored.executor()  # fails here, before the run, if it cannot be read
    return experiment
