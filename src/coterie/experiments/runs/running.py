"""Runs an experiment from its start, or resumes it from its last checkpoint, to its end."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from coterie.errors import ConfigError, DamagedRunError, RunFailedError
from coterie.experiments.cluster.connecting import WorkerLostError
from coterie.experiments.cluster.fleet import Fleet, fleet
from coterie.experiments.runs.folder import MOST_PEERS_IN_SHARES, RunFolder
from coterie.experiments.runs.observing import (
    EarlyStopping,
    Observer,
    Watching,
    may_stop,
    observers_of,
    reason_to_end,
    reason_to_stop,
)
from coterie.experiments.runs.records import History
from coterie.experiments.runs.run import Run
from coterie.experiments.setup.dealing import data_digest
from coterie.experiments.setup.hosting import hosting, ingredients
from coterie.experiments.setup.prepare import Objects, Prepared, prepare
from coterie.experiments.setup.room import with_room
from coterie.experiments.setup.schema import Experiment
from coterie.learning import ExecutorName, Workers, keep_freed_memory, pinned_threads
from coterie.metric import Metric
from coterie.protocol import Point
from coterie.simulation import (
    RoundRecord,
    Simulation,
    fastest_executor,
    load_checkpoint,
    save_checkpoint,
    saved_beside,
)

_log = logging.getLogger("coterie")
_MOST_LOSSES = 5  # workers that are lost one after another, without a checkpoint between


def run(
    experiment: Experiment,
    *,
    objects: Objects | None = None,
    run_dir: Path | None = None,
    observer: Watching = None,
) -> Run:
    """Run an experiment; with `run_dir`, leave records there and checkpoints to resume from."""
    return _Runner(prepare(experiment, objects), objects, observers_of(observer)).run(run_dir)


def resume(run_dir: Path, *, objects: Objects | None = None, observer: Watching = None) -> Run:
    """Continue an interrupted run from its last checkpoint; the result is as if it had never stopped."""
    folder = RunFolder(run_dir)
    experiment = folder.experiment()
    folder.require_same(experiment)  # the files that it names may be others now
    with folder.claim():
        prepared = prepare(experiment, objects, trains=folder.result() is None)
        return _Runner(prepared, objects, observers_of(observer)).resume(folder)


def run_or_resume(
    experiment: Experiment,
    run_dir: Path,
    *,
    objects: Objects | None = None,
    observer: Watching = None,
) -> Run:
    """Run an experiment in a new folder, or resume the run that the folder holds, if it is of this one."""
    folder = RunFolder(run_dir)
    folder.require_same(experiment)
    if folder.holds_run:
        return resume(run_dir, objects=objects, observer=observer)
    return run(experiment, objects=objects, run_dir=run_dir, observer=observer)


def at_checkpoint(folder: RunFolder, *, objects: Objects | None = None) -> Run:
    """The run as its last checkpoint has it; nothing is trained, and nothing is changed."""
    experiment = folder.stored_experiment()
    folder.require_same_files(experiment)
    return _Runner(prepare(experiment, objects, trains=False), objects, []).at_checkpoint(folder)


@dataclass
class _Runner:
    """One experiment, prepared."""

    prepared: Prepared
    objects: Objects | None
    observers: Sequence[Observer]

    @property
    def experiment(self) -> Experiment:
        return self.prepared.experiment

    def run(self, run_dir: Path | None) -> Run:
        with self._workers() as workers, pinned_threads(1):
            name = self._executor_name(workers)
            with fleet(self.prepared, self.objects, name) as hosts:
                if run_dir is None:
                    return self._to_end(self._simulation(name, workers, hosts), self._history(), None, hosts)
                return self._in_folder(run_dir, name, workers, hosts)

    def _in_folder(self, run_dir: Path, name: ExecutorName, workers: Workers, hosts: Fleet | None) -> Run:
        with RunFolder.create(run_dir, self.experiment, name, self._data_digest, self._measured) as folder:
            folder.records.list_peers(self.prepared.federation)
            try:
                return self._to_end(self._simulation(name, workers, hosts), self._history(), folder, hosts)
            except ConfigError:  # some mistakes show only when training starts
                folder.withdraw()
                raise

    @property
    def _measured(self) -> dict[str, Any]:
        """The main metric and the point of a round, as those who look on need them."""
        metric, point = self._decisive
        ways = {"higher_is_better": metric.higher_is_better, "percent": metric.percent}
        return {"metric": metric.name, **ways, "point": point, "hub": self.prepared.algorithm.facts.hub}

    @property
    def _data_digest(self) -> str | None:
        return data_digest(self.experiment, self.prepared.federation)

    def resume(self, folder: RunFolder) -> Run:
        folder.require_same_data(self.experiment, self._data_digest)
        folder.records.list_peers(self.prepared.federation)  # a crash may have come before
        with self._workers() as workers, pinned_threads(1):
            name = cast(ExecutorName, folder.executor())
            with fleet(self.prepared, self.objects, name) as hosts:
                simulation = self._simulation(name, workers, hosts)
                if folder.checkpoint.exists():
                    notes = load_checkpoint(folder.checkpoint, simulation)
                    if notes["executor"] != name:
                        raise DamagedRunError(
                            f"{folder.path}: the checkpoint was made by executor {notes['executor']!r}"
                        )
                history = folder.records.cut(simulation.round, self.prepared.federation.peers)
                history.keeps_all = self._history().keeps_all
                if simulation.round:
                    history.recall(saved_beside(folder.checkpoint))
                return self._to_end(simulation, history, folder, hosts)

    def at_checkpoint(self, folder: RunFolder) -> Run:
        with self._workers() as workers, pinned_threads(1):
            simulation = self._simulation(cast(ExecutorName, folder.executor()), workers, None)
            load_checkpoint(folder.checkpoint, simulation)
            history = folder.records.read(self.prepared.federation.peers)
            history.recall(saved_beside(folder.checkpoint))
            return self._run_of(simulation, history, folder, folder.stopped())

    def _history(self) -> History:
        """Empty. What is best of each peer can only be told from all of its scores."""
        return History(keeps_all=self.experiment.stopping.keep == "best")

    def _workers(self) -> Workers:
        keep_freed_memory()
        return Workers(self.experiment.execution.workers)

    def _executor_name(self, workers: Workers) -> ExecutorName:
        asked = self.experiment.execution.executor
        if asked != "auto":
            return asked
        p, networks = self.prepared, [other.module for other in self.prepared.other_networks.values()]
        fastest = {
            fastest_executor(
                network,
                p.federation,
                self.experiment.training,
                workers,
                self.experiment.execution.precision,
                p.task.loss,
            )
            for network in (p.module, *networks)
        }
        return fastest.pop() if len(fastest) == 1 else "looped"  # which can run all of them

    def _simulation(self, executor: ExecutorName, workers: Workers, hosts: Fleet | None) -> Simulation:
        made_of = hosting(self.prepared, executor, workers)
        if hosts is None:
            return Simulation(**ingredients(with_room(self.experiment, made_of)))
        return hosts.patiently(lambda: Simulation(**ingredients(made_of), hosts=hosts.blocks()))

    def _to_end(
        self, simulation: Simulation, history: History, folder: RunFolder | None, hosts: Fleet | None
    ) -> Run:
        """All rounds that are left, however many workers are lost on the way."""
        for observer in self._watching:
            observer.begin(self.experiment, history)
        saves = _Saves(simulation, history, folder, hosts, self.experiment.execution.checkpoint_seconds)
        stopped = (None if folder is None else folder.stopped()) or self._had_reason_to_stop(history)
        finished = None
        while finished is None:
            try:
                while simulation.round < self.experiment.rounds and stopped is None:
                    stopped = self._one_round(simulation, saves, folder)
                finished = self._finished(simulation, saves.history, folder, stopped)
            except WorkerLostError as lost:
                saves.go_back(lost)
        for observer in self._watching:
            observer.end(finished)
        return finished

    def _one_round(self, simulation: Simulation, saves: _Saves, folder: RunFolder | None) -> str | None:
        """A round and its records; the reason if an observer or the validation data end the run here."""
        record = self._step(simulation, saves.history)
        saves.history.add(record)
        if folder is not None:
            folder.records.append(record)
        saves.after_round(last=self._is_last(simulation))
        stopped = reason_to_end([one.round(record, saves.history) for one in self._watching])
        if stopped is not None:
            saves.save()
        return stopped

    def _step(self, simulation: Simulation, history: History) -> RoundRecord:
        """What is asked for in the last round is measured in every one that may turn out to be reported."""
        number, e, (metric, point) = simulation.round, self.experiment, self._decisive
        reported = e.stopping.keep == "best" or may_stop(history, e.stopping, metric, point, number + 1)
        globally = e.evaluates_globally(number) or (reported and e.evaluates_globally(e.rounds - 1))
        return simulation.step(evaluate=e.evaluates(number), evaluate_global=globally)

    @property
    def _decisive(self) -> tuple[Metric, Point]:
        """The metric and the point of a round whose validation scores decide."""
        return self.prepared.task.metrics[0], self.prepared.algorithm.facts.measured

    @property
    def _watching(self) -> list[Observer]:
        return [*self.observers, EarlyStopping(self.experiment.stopping, *self._decisive)]

    def _had_reason_to_stop(self, history: History) -> str | None:
        """Of a run that was killed just as it ended."""
        return reason_to_stop(history, self.experiment.stopping, *self._decisive)

    def _is_last(self, simulation: Simulation) -> bool:
        return simulation.round == self.experiment.rounds

    def _finished(
        self, simulation: Simulation, history: History, folder: RunFolder | None, stopped: str | None
    ) -> Run:
        finished = self._run_of(simulation, history, folder, stopped)
        if folder is not None:
            if finished.collaboration is not None and finished.peers <= MOST_PEERS_IN_SHARES:
                folder.keep_shares(finished.collaboration)
            folder.finish(finished.result())
        return finished

    def _run_of(
        self, simulation: Simulation, history: History, folder: RunFolder | None, stopped: str | None
    ) -> Run:
        return Run(
            experiment=self.experiment,
            history=history,
            totals=simulation.totals,
            point=self.prepared.algorithm.facts.measured,
            executor=simulation.executor.name,
            trained=[
                replace(models, params={name: value.cpu() for name, value in models.params.items()})
                for models in simulation.models()
            ],
            clusters=self.prepared.federation.clusters,
            collaboration=simulation.collaboration(),
            seen_in_clear=simulation.seen_in_clear(),
            metric=self.prepared.task.metrics[0],
            run_dir=None if folder is None else folder.path,
            stopped=stopped,
            names=self.prepared.federation.names,
        )


class _Saves:
    """What a run keeps of itself on the way: in its folder, or beside its workers until it has ended."""

    def __init__(
        self,
        simulation: Simulation,
        history: History,
        folder: RunFolder | None,
        hosts: Fleet | None,
        seconds: float,
    ) -> None:
        """seconds: between two checkpoints, at least."""
        self.history = history
        self._simulation, self._folder, self._hosts, self._seconds = simulation, folder, hosts, seconds
        self._before = history.copy()  # what was known at the last checkpoint
        self._saved, self._losses = time.monotonic(), 0

    def after_round(self, last: bool) -> None:
        """Save what is due; peers move to other workers where that pays."""
        if self._hosts is not None:
            self._hosts.note_round()
        due = time.monotonic() - self._saved >= self._seconds
        if last:
            if self._folder is not None:
                self.save()
            return
        uneven = self._hosts is not None and self._hosts.uneven
        if due or uneven:
            self.save()
            if uneven or (self._hosts is not None and self._hosts.has_room):
                self._move()

    def save(self) -> None:
        """Replace the checkpoint, of all blocks in the same round."""
        if self._folder is None and self._hosts is None:
            return
        if self._folder is not None:
            self._folder.records.flush()  # the records must not be behind the checkpoint
        notes = {"executor": self._simulation.executor.name}
        save_checkpoint(self._path, self._simulation, notes, self.history.whole())
        self._saved, self._losses, self._before = time.monotonic(), 0, self.history.copy()

    def go_back(self, lost: WorkerLostError) -> None:
        """To the last checkpoint, or to the start, with the workers that are left or that come."""
        assert self._hosts is not None
        self._losses += 1
        if self._losses > _MOST_LOSSES:
            raise RunFailedError(f"workers were lost {self._losses} times without progress; the last: {lost}")
        round = self._simulation.round
        try:
            self._hosts.drop_lost()
            self._move()
        except WorkerLostError as again:
            self.go_back(again)
            return
        self.history = self._before.copy()
        if self._folder is not None:
            self._folder.records.close()
            self._folder.records.cut(self._simulation.round, self._simulation.federation.peers)
        _log.warning(
            "%s; back from round %d to round %d, with %d workers",
            lost, round + 1, self._simulation.round + 1, self._hosts.count,
        )  # fmt: skip

    def _move(self) -> None:
        """Host all peers anew, in the state of the last checkpoint."""
        assert self._hosts is not None
        self._simulation.move(self._hosts.blocks())
        if self._path.exists():
            load_checkpoint(self._path, self._simulation)

    @property
    def _path(self) -> Path:
        if self._folder is not None:
            return self._folder.checkpoint
        assert self._hosts is not None
        return self._hosts.checkpoint
