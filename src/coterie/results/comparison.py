"""A comparison of algorithms: running what was planned, and what came of it."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from coterie.errors import ConfigError, CoterieError, RunFailedError, RunFolderError
from coterie.experiments.api import (
    name_of,
    objects_in,
    peers_of,
    resolve_to_simulate,
    say,
    table_of,
)
from coterie.experiments.cells.comparing import (
    PLAN,
    Planned,
    Say,
    corrected,
    in_own_folders,
    make_plan,
    read_plan,
    split_names,
)
from coterie.experiments.cells.notices import Notice
from coterie.experiments.cells.on_ray import Task, run_tasks
from coterie.experiments.runs import naming
from coterie.experiments.runs.folder import RunFolder
from coterie.experiments.runs.observing import Watching
from coterie.experiments.runs.run import Run
from coterie.experiments.runs.running import run, run_or_resume
from coterie.experiments.runs.stored import StoredRun
from coterie.experiments.setup.dealing import Dealer
from coterie.experiments.setup.prepare import Objects, note_of_isolation, prepare
from coterie.experiments.setup.schema import Experiment
from coterie.files import write_atomically
from coterie.protocol import Algorithm
from coterie.reporting import tables
from coterie.reporting.page.report import leave_report
from coterie.results.exports import Sheet
from coterie.results.sheets import sheet_of

Watch = Callable[[Planned], Watching]

_ENDING = 20.0  # seconds that cancelled tasks have to leave their folder alone


@dataclass(frozen=True, repr=False)
class Comparison:
    """Runs of several algorithms on the same data: for each of them, one run for each seed.

    One that is read from its folder may be interrupted; numbers are of the seeds that all have finished.
    """

    runs: Mapping[str, Sequence[Run]]
    folder: Path | None = None

    def __repr__(self) -> str:
        """Who was compared, and how they fared, in a line."""
        if not self.seeds:
            return f"<Comparison of {', '.join(self.runs)}, no seed finished by all>"
        scores = ", ".join(f"{label} {_mean(group):.3f}" for label, group in self.finished.items())
        first = next(iter(self.finished.values()))[0]
        seeds = f"{len(self.seeds)} seed{'s' if len(self.seeds) > 1 else ''}"
        return f"<Comparison on {first.experiment.data}, {seeds}, {first.metric.title}: {scores}>"

    @functools.cached_property
    def seeds(self) -> list[int]:
        """Those that all algorithms have finished."""
        done = [{run.experiment.seed for run in group if run.finished} for group in self.runs.values()]
        return sorted(set.intersection(*done)) if done else []

    @functools.cached_property
    def finished(self) -> dict[str, list[Run]]:
        """The runs of these seeds, in their order."""
        if not self.seeds:
            raise RunFolderError(
                f"{self.folder}: there is no seed that all algorithms have finished; go on with: "
                f"coterie compare --resume {self.folder}"
            )
        return {
            label: sorted(
                (run for run in group if run.experiment.seed in self.seeds),
                key=lambda run: run.experiment.seed,
            )
            for label, group in self.runs.items()
        }

    @property
    def local(self) -> list[Run]:
        """The runs of Local, which is always among them."""
        return next(group for group in self.finished.values() if group[0].experiment.algorithm == "local")

    @property
    def best(self) -> str:
        """The algorithm with the best mean over peers and seeds, on test data."""
        choose = max if self.local[0].metric.higher_is_better else min
        return choose(self.finished, key=lambda label: _mean(self.finished[label]))

    def results(self) -> list[dict[str, Any]]:
        """Every run as plain data, with its gain over Local: what `--json` prints."""
        alone = [run.result() for run in self.local]
        return [
            {**result, "gain_over_local": tables.gain(result, reference)}
            for group in self.finished.values()
            for result, reference in zip([run.result() for run in group], alone, strict=True)
        ]

    def sheet(self) -> Sheet:
        """The numbers with their means and intervals over seeds, for CSV, Parquet, LaTeX and data frames."""
        results = {label: [run.result() for run in group] for label, group in self.finished.items()}
        return sheet_of(results, [run.result() for run in self.local])

    def frame(self, library: str | None = None) -> Any:
        """A line for each algorithm and metric: mean, standard deviation and interval over seeds."""
        return self.sheet().frame(library)

    def csv(self, path: str | os.PathLike[str]) -> Path:
        return self.sheet().csv(path)

    def parquet(self, path: str | os.PathLike[str]) -> Path:
        return self.sheet().parquet(path)

    def latex(self, path: str | os.PathLike[str] | None = None) -> str:
        """The table in LaTeX, the best in bold; with a path, also written there."""
        return self.sheet().latex(path)

    def plot(self, folder: str | os.PathLike[str]) -> list[Path]:
        """Learning curves with bands over seeds, every peer's score, who learned from whom.

        PNG files of 300 dots per inch, and beside each an SVG.
        """
        from coterie.reporting import plots  # Matplotlib, which not everyone wants to wait for

        place = Path(os.fspath(folder))
        return plots.draw(list(self.finished.values()), list(self.finished), place)

    def table(self) -> tables.Summary:
        """A row for each algorithm, for the terminal: `rich.print(comparison.table())`."""
        results = {label: [run.result() for run in group] for label, group in self.finished.items()}
        local = [run.result() for run in self.local]
        return tables.summary_over_seeds(list(results.values()), list(results), local)


def _mean(group: Sequence[Run]) -> float:
    return statistics.fmean(float(run.personal_scores.nanmean()) for run in group)


def compare(
    algorithms: Sequence[str | Algorithm[Any]] | Mapping[str, str | Algorithm[Any]],
    data: Any = "digits",
    model: Any = None,
    partition: Any = None,
    topology: Any = None,
    peers: int | None = None,
    rounds: int = 20,
    seed: int = 0,
    *,
    seeds: int = 1,
    run_dir: str | Path | None = None,
    resume_from: str | Path | None = None,
    observer: Watching = None,
    **sections: Any,
) -> Comparison:
    """Compare algorithms on the same data, peers and seeds; Local is always among them.

    algorithms: names or Algorithms; a dict says what each is called in tables.
    data, model, ..., sections: as in `coterie.simulate`, for all of them. All train equally long, unless
        `training={"work": "own"}`.
    seeds: so many, counted up from `seed`.
    run_dir: a new folder for everything; default: keep nothing. resume_from: one that was interrupted, where
        only `sections` may change, for the runs that are not finished.
    observer: looks on at every run, one after the other.
    """
    parts = {"data": data, "model": model, "partition": partition, "topology": topology}
    if resume_from is not None:
        folder: Path | None = Path(os.fspath(resume_from))
        plan = corrected(
            read_plan(Path(os.fspath(resume_from))), dict(sections), Path(os.fspath(resume_from)), say
        )
    else:
        folder = None if run_dir is None else Path(os.fspath(run_dir))
        if folder is not None:
            naming.refuse_existing(folder, "compare")
        size = {"peers": peers if peers is not None else peers_of(data), "rounds": rounds, "seed": seed}
        plan = _plan(_named(algorithms), parts, size, sections, seeds)
    return run_plan(
        plan,
        folder,
        given=objects_in({"algorithm": "local", **parts}),
        watch=lambda planned: observer,
        say=say,
        go_on=f"coterie.compare(..., resume_from={str(folder)!r})",
    )


def _plan(
    named: Mapping[str, str | Algorithm[Any]],
    parts: Mapping[str, Any],
    size: Mapping[str, Any],
    sections: Mapping[str, Any],
    seeds: int,
) -> list[Planned]:
    def make_table(name: str | None) -> dict[str, Any]:
        algorithm = "local" if name is None else named.get(name, name)
        return {**table_of({"algorithm": algorithm, **parts}, sections), **size}

    own = {name: one for name, one in named.items() if isinstance(one, Algorithm)}
    return make_plan(make_table, list(named), seeds, say, own=own, check=resolve_to_simulate)


def _named(algorithms: Any) -> dict[str, str | Algorithm[Any]]:
    """By what they are called; an object by its class and what was set."""
    if not algorithms:
        raise ConfigError('which algorithms? Write ["d-psgd", "fedavg"]; `coterie list` shows all')
    if isinstance(algorithms, Mapping):
        return dict(algorithms)
    if isinstance(algorithms, str):
        return {name.strip(): name.strip() for name in split_names(algorithms)}
    named: dict[str, str | Algorithm[Any]] = {}
    for one in algorithms:
        label = one if isinstance(one, str) else _label(one)
        if label in named:
            raise ConfigError(f"algorithm {label!r} is named twice; a dict gives each a name of its own")
        named[label] = one
    return named


def _label(algorithm: Any) -> str:
    """`Mine(rate=0.1)`, with what is not as the class has it."""
    objects_in({"algorithm": algorithm})  # says what to do with a class
    if not isinstance(algorithm, Algorithm):
        raise ConfigError(f"an algorithm is a name or a coterie.Algorithm, not {algorithm!r}")
    values = {field.name: (getattr(algorithm, field.name), field.default) for field in fields(algorithm)}
    changed = ",".join(f"{name}={value}" for name, (value, usual) in values.items() if value != usual)
    return name_of(algorithm) + (f"({changed})" if changed else "")


def compared(plan: Sequence[Planned], runs: Mapping[str, Run], folder: Path | None) -> Comparison:
    """The runs of a plan, by their folders; those that differ only in their seed belong together."""
    groups: dict[str, list[Run]] = {}
    several = len({planned.experiment.seed for planned in plan}) > 1
    for planned in plan:
        suffix = f"-s{planned.experiment.seed}" if several else ""
        group = groups.setdefault(planned.label.removesuffix(suffix), [])
        if planned.folder in runs:
            group.append(runs[planned.folder])
    return Comparison(groups, folder)


def opened_comparison(folder: Path, objects: Objects) -> Comparison:
    """The comparison in a folder, finished or interrupted."""
    plan = in_own_folders(read_plan(folder))
    begun = [planned.folder for planned in plan if RunFolder(folder / planned.folder).holds_run]
    return compared(plan, {name: StoredRun(RunFolder(folder / name), objects) for name in begun}, folder)


def run_plan(
    plan: Sequence[Planned],
    folder: Path | None,
    *,
    given: Objects | None = None,
    watch: Watch = lambda planned: None,
    told: Callable[[Planned, Notice], None] | None = None,
    say: Say = lambda message: None,
    go_on: str = "",
) -> Comparison:
    """Run what has not been run; of what has, read the result. All runs of a seed have the same data.

    folder: for the plan and the runs; None: nothing is kept. given: the user's own objects, for all runs.
    watch: who looks on at a run in this process. told: is told how far one is that goes on Ray.
    go_on: how to go on after an interruption.
    """
    plan, dealer = in_own_folders(list(plan)), Dealer(given)
    _check_all(plan, dealer)
    for said in dict.fromkeys(note_of_isolation(planned.experiment) for planned in plan):
        say(said)
    if folder is not None:
        _write_plan(plan, folder)
    if any(planned.experiment.execution.on_ray for planned in plan):
        done = _compared_on_ray(plan, folder, dealer, given or Objects(), told, go_on)
    else:
        done = _compared_here(plan, folder, dealer, watch, go_on)
    if folder is not None:
        leave_report(folder)
    return done


def _compared_here(
    plan: list[Planned], folder: Path | None, dealer: Dealer, watch: Watch, go_on: str
) -> Comparison:
    """One run after another."""
    runs: dict[str, Run] = {}
    try:
        for planned in _by_seed(plan):
            runs[planned.folder] = _run_one(planned, folder, dealer, watch(planned), go_on)
    except CoterieError as error:
        _give_up(plan, runs, folder, error, go_on)
    return compared(plan, runs, folder)


def _run_one(planned: Planned, folder: Path | None, dealer: Dealer, observer: Watching, go_on: str) -> Run:
    experiment, objects = dealer(planned.experiment)
    objects = replace(objects, algorithm=planned.algorithm)
    if folder is None:
        return run(experiment, objects=objects, observer=observer)
    place = folder / planned.folder
    with naming.going_on(place, go_on):
        return run_or_resume(experiment, place, objects=objects, observer=observer)


def _compared_on_ray(
    plan: list[Planned],
    folder: Path | None,
    dealer: Dealer,
    given: Objects,
    told: Callable[[Planned, Notice], None] | None,
    go_on: str,
) -> Comparison:
    """All runs beside each other, as many at a time as Ray has room for; then they are read."""
    with _apart() as apart:
        where, runs, broken = folder or apart, dict[str, Run](), dict[str, str]()

        def ended(task: Task, message: str | None) -> None:
            broken.update({} if message is None else {task.name: message})

        todo = {p.folder: p for p in plan if RunFolder(where / p.folder).result() is None}
        tasks = [Task(name, p.experiment, replace(given, algorithm=p.algorithm)) for name, p in todo.items()]
        tell = None if told is None else lambda task, notice: told(todo[task.name], notice)
        run_tasks(tasks, where, _run_there, ended, tell)
        try:
            for planned in _by_seed(plan):
                if planned.folder in broken:
                    raise RunFailedError(broken[planned.folder])
                done = _run_one(_here(planned), where, dealer, None, go_on)
                runs[planned.folder] = replace(done, run_dir=None if folder is None else done.run_dir)
        except CoterieError as error:
            _give_up(plan, runs, folder, error, go_on)
        return compared(plan, runs, folder)


@contextlib.contextmanager
def _apart() -> Iterator[Path]:
    """A folder for a while. Tasks that were cancelled may write a moment longer: it goes when they have."""
    folder = Path(tempfile.mkdtemp(prefix="coterie-"))
    try:
        yield folder
    finally:
        until = time.monotonic() + _ENDING
        while folder.exists() and time.monotonic() < until:
            shutil.rmtree(folder, ignore_errors=True)
            time.sleep(0.05 if folder.exists() else 0.0)


def _here(planned: Planned) -> Planned:
    """The same run, in this process."""
    return replace(planned, experiment=planned.experiment.executed(engine="local"))


def _run_there(experiment: Experiment, folder: Path, objects: Objects, observer: Watching) -> str | None:
    """A run of a comparison as a task of Ray."""
    try:
        dealt, given = Dealer(objects)(experiment)
        run_or_resume(dealt, folder, objects=given, observer=observer)
    except CoterieError as error:
        return str(error)
    return None


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
