"""A comparison of algorithms: running what was planned, and what came of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from coterie.errors import CoterieError, RunFailedError, RunFolderError
from coterie.experiments.cells.comparing import PLAN, Planned, Say, in_own_folders
from coterie.experiments.runs.naming import going_on
from coterie.experiments.runs.observing import Watching
from coterie.experiments.runs.running import Run, run, run_or_resume
from coterie.experiments.setup.dealing import Dealer
from coterie.experiments.setup.prepare import Objects, note_of_isolation, prepare
from coterie.files import write_atomically
from coterie.reporting import tables

Watch = Callable[[Planned], Watching]


@dataclass(frozen=True, repr=False)
class Comparison:
    """Runs of several algorithms on the same data: for each of them, one run for each seed."""

    runs: Mapping[str, Sequence[Run]]
    folder: Path | None = None

    @property
    def seeds(self) -> list[int]:
        return [run.experiment.seed for run in next(iter(self.runs.values()))]

    @property
    def local(self) -> Sequence[Run]:
        """The runs of Local, which is always among them."""
        return next(group for group in self.runs.values() if group[0].experiment.algorithm == "local")

    def results(self) -> list[dict[str, Any]]:
        """Every run as plain data, with its gain over Local: what `--json` prints."""
        alone = [run.result() for run in self.local]
        return [
            {**result, "gain_over_local": tables.gain(result, reference)}
            for group in self.runs.values()
            for result, reference in zip([run.result() for run in group], alone, strict=True)
        ]

    def table(self) -> tables.Summary:
        """A row for each algorithm, for the terminal: `rich.print(comparison.table())`."""
        results = {label: [run.result() for run in group] for label, group in self.runs.items()}
        local = [run.result() for run in self.local]
        return tables.summary_over_seeds(list(results.values()), list(results), local)


def compared(plan: Sequence[Planned], runs: Sequence[Run], folder: Path | None) -> Comparison:
    """The runs of a plan, those that differ only in their seed together."""
    groups: dict[str, list[Run]] = {}
    several = len({planned.experiment.seed for planned in plan}) > 1
    for planned, done in zip(plan, runs, strict=True):
        suffix = f"-s{planned.experiment.seed}" if several else ""
        groups.setdefault(planned.label.removesuffix(suffix), []).append(done)
    return Comparison(groups, folder)


def run_plan(
    plan: Sequence[Planned],
    folder: Path | None,
    *,
    given: Objects | None = None,
    watch: Watch = lambda planned: None,
    say: Say = lambda message: None,
    go_on: str = "",
) -> Comparison:
    """Run what has not been run; of what has, read the result. All runs of a seed have the same data.

    folder: for the plan and the runs; None: nothing is kept. given: the user's own objects, for all runs.
    watch: who looks on at a run. go_on: how to go on after an interruption.
    """
    plan, dealer = in_own_folders(list(plan)), Dealer(given)
    _check_all(plan, dealer)
    for said in dict.fromkeys(note_of_isolation(planned.experiment) for planned in plan):
        say(said)
    if folder is not None:
        _write_plan(plan, folder)
    runs: dict[str, Run] = {}
    try:
        for planned in _by_seed(plan):
            runs[planned.folder] = _run_one(planned, folder, dealer, watch(planned), go_on)
    except CoterieError as error:
        _give_up(plan, runs, folder, error, go_on)
    return compared(plan, [runs[planned.folder] for planned in plan], folder)


def _run_one(planned: Planned, folder: Path | None, dealer: Dealer, observer: Watching, go_on: str) -> Run:
    experiment, objects = dealer(planned.experiment)
    objects = replace(objects, algorithm=planned.algorithm)
    if folder is None:
        return run(experiment, objects=objects, observer=observer)
    place = folder / planned.folder
    with going_on(place, go_on):
        return run_or_resume(experiment, place, objects=objects, observer=observer)


def _give_up(
    plan: Sequence[Planned], runs: Mapping[str, Run], folder: Path | None, error: CoterieError, go_on: str
) -> None:
    """Raise the error with what is finished and how to go on; leave nothing behind if nothing ran."""
    if folder is not None and not any(folder.glob("*/config.toml")):
        (folder / PLAN).unlink()
        folder.rmdir()
        raise error
    if folder is None or "go on with" in str(error) or isinstance(error, RunFolderError):
        raise error
    done = [p.label for p in _by_seed(plan) if p.folder in runs]
    failed = next(p.label for p in _by_seed(plan) if p.folder not in runs)
    raise RunFailedError(
        f"{failed}: {error}; finished: {', '.join(done) or 'none'}; go on, if need be with other "
        f"settings for the rest (--set training.lr=...), by: {go_on}"
    ) from error


def _by_seed(plan: Sequence[Planned]) -> list[Planned]:
    """All algorithms on one seed's data, then on the next: one seed's data are in memory at a time."""
    return sorted(plan, key=lambda planned: planned.experiment.seed)


def _check_all(plan: Sequence[Planned], dealer: Dealer) -> None:
    """Find out now, not after an hour, that the third algorithm cannot run on this data or topology."""
    for planned in _by_seed(plan):
        experiment, objects = dealer(planned.experiment)
        try:
            prepare(experiment, replace(objects, algorithm=planned.algorithm))
        except CoterieError as error:
            raise type(error)(f"{planned.label}: {error}") from error


def _write_plan(plan: Sequence[Planned], folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunFolderError(f"cannot make the folder {folder}: {error.strerror}") from None
    content = json.dumps([planned.entry() for planned in plan], indent=2).encode()
    if not (folder / PLAN).exists() or (folder / PLAN).read_bytes() != content:
        write_atomically(folder / PLAN, content)
