"""What `run`, `compare` and `demo` do once their experiments are known. Imports PyTorch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coterie.catalogue import algorithms
from coterie.cli.output import Output, print_json, print_paths
from coterie.cli.problems import RunFailedError, note, running
from coterie.cli.running.compare import PLAN, Planned, in_own_folders
from coterie.cli.running.progress import Progress
from coterie.errors import CoterieError, RunFolderError
from coterie.experiments.runs.folder import RunFolder
from coterie.experiments.runs.running import Run, run_or_resume
from coterie.experiments.setup.dealing import Dealer
from coterie.experiments.setup.prepare import Objects, note_of_isolation, prepare
from coterie.experiments.setup.schema import Experiment
from coterie.files import write_atomically
from coterie.reporting import tables
from coterie.user_code import in_short


def run_and_show(experiment: Experiment | None, folder: Path, output: Output) -> None:
    """One experiment; None: that of the folder, which goes on."""
    experiment = experiment or _experiment_in(folder)
    note(note_of_isolation(experiment), output.quiet)
    with Progress(output.quiet) as progress:
        done = _run_in(folder, experiment, progress, command=f"coterie run --resume {folder}")
    result = done.result()
    if output.json:
        print_json(result)
    else:
        tables.show(tables.summary([result]))
    print_paths(_draw([done], folder) if output.plots else [], folder, output)


def run_plan(plan: list[Planned], folder: Path, quiet: bool) -> list[Run]:
    """Run what has not been run; of what has, read the result. All runs of a seed have the same data."""
    plan, dealer = in_own_folders(plan), Dealer()
    _check_all(plan, dealer)
    for said in dict.fromkeys(note_of_isolation(planned.experiment) for planned in plan):
        note(said, quiet)
    _write_plan(plan, folder)
    command = f"coterie compare --resume {folder}"
    runs: dict[str, Run] = {}
    try:
        with Progress(quiet, lines=3) as progress:
            for planned in _by_seed(plan):
                experiment, objects = dealer(planned.experiment)
                runs[planned.folder] = _run_in(
                    folder / planned.folder,
                    experiment,
                    progress,
                    command=command,
                    label=planned.label,
                    objects=objects,
                )
    except CoterieError as error:
        if not any(folder.glob("*/config.toml")):  # nothing ran: leave nothing behind
            (folder / PLAN).unlink()
            folder.rmdir()
            raise
        if "go on with" in str(error) or isinstance(error, RunFolderError):
            raise
        done = [p.label for p in _by_seed(plan) if p.folder in runs]
        failed = next(p.label for p in _by_seed(plan) if p.folder not in runs)
        raise RunFailedError(
            f"{failed}: {error}; finished: {', '.join(done) or 'none'}; go on, if need be with other "
            f"settings for the rest (--set training.lr=...), by: {command}"
        ) from error
    return [runs[planned.folder] for planned in plan]


def _by_seed(plan: list[Planned]) -> list[Planned]:
    """All algorithms on one seed's data, then on the next: one seed's data are in memory at a time."""
    return sorted(plan, key=lambda planned: planned.experiment.seed)


def show_plan(plan: list[Planned], runs: list[Run], folder: Path, output: Output) -> None:
    """Table or JSON on stdout, plots in the folder."""
    groups: dict[str, list[Run]] = {}  # by algorithm, one run for each seed
    seeds = {planned.experiment.seed for planned in plan}
    for planned, run in zip(plan, runs, strict=True):
        suffix = f"-s{planned.experiment.seed}" if len(seeds) > 1 else ""
        groups.setdefault(planned.label.removesuffix(suffix), []).append(run)
    _show_results({label: [run.result() for run in group] for label, group in groups.items()}, output)
    plots: list[Path] = []
    if output.plots:
        if len(seeds) > 1:
            note(f"note: the plots show seed {min(seeds)}", output.quiet)
        plots = _draw([group[0] for group in groups.values()], folder, list(groups))
    print_paths(plots, folder, output)


def _run_in(
    folder: Path,
    experiment: Experiment,
    progress: Progress,
    *,
    command: str,
    label: str = "",
    objects: Objects | None = None,
) -> Run:
    """Run in a new folder, or resume what the folder holds; `command` is said if it is interrupted."""
    point = algorithms[experiment.algorithm].facts.measured  # type: ignore[attr-defined]
    watcher = progress.watch(label or in_short(experiment.algorithm), experiment.rounds, point)
    with running(folder, command):
        return run_or_resume(experiment, folder, objects=objects, observer=watcher)


def _experiment_in(folder: Path) -> Experiment:
    """The experiment of a run folder that can be continued."""
    stored = RunFolder(folder)
    experiment = stored.experiment()
    stored.executor()  # fails here, before the run, if it cannot be read
    return experiment


def _check_all(plan: list[Planned], dealer: Dealer) -> None:
    """Find out now, not after an hour, that the third algorithm cannot run on this data or topology."""
    for planned in _by_seed(plan):
        experiment, objects = dealer(planned.experiment)
        try:
            prepare(experiment, objects)
        except CoterieError as error:
            raise type(error)(f"{planned.label}: {error}") from error


def _write_plan(plan: list[Planned], folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunFolderError(f"cannot make the folder {folder}: {error.strerror}") from None
    content = json.dumps([planned.entry() for planned in plan], indent=2).encode()
    if not (folder / PLAN).exists() or (folder / PLAN).read_bytes() != content:
        write_atomically(folder / PLAN, content)


def _show_results(results: dict[str, list[dict[str, Any]]], output: Output) -> None:
    local = next(group for group in results.values() if group[0]["algorithm"] == "local")
    if output.json:
        print_json(
            [
                {**result, "gain_over_local": tables.gain(result, reference)}
                for group in results.values()
                for result, reference in zip(group, local, strict=True)
            ]
        )
    else:
        tables.show(tables.summary_over_seeds(list(results.values()), list(results), local))


def _draw(runs: Sequence[Run], folder: Path, labels: Sequence[str] | None = None) -> list[Path]:
    """The plots of one run, or of several beside each other."""
    from coterie.reporting import plots  # Matplotlib, which not everyone wants to wait for

    names = list(labels or (plots.label_of(one) for one in runs))
    paths = [
        plots.learning_curves(runs, names, folder / "learning_curves.png"),
        plots.per_peer_accuracy(runs, names, folder / "per_peer_accuracy.png"),
        plots.who_learned_from_whom(runs, names, folder / "who_learned_from_whom.png"),
    ]
    return [path for path in paths if path is not None]
