"""Runs an experiment from its start, or resumes it from its last checkpoint, to its end."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import torch

from coterie.errors import ConfigError, DamagedRunError
from coterie.experiments.runs.folder import RunFolder
from coterie.experiments.runs.observing import Observer, Watching, observers_of, reason_to_end
from coterie.experiments.runs.records import History
from coterie.experiments.runs.run import Run
from coterie.experiments.runs.stopping import EarlyStopping, may_stop, reason_to_stop
from coterie.experiments.setup.dealing import data_digest
from coterie.experiments.setup.prepare import Objects, Prepared, prepare
from coterie.experiments.setup.schema import Experiment
from coterie.learning import Executor, ExecutorName, Workers, keep_freed_memory, pinned_threads
from coterie.metric import Metric
from coterie.protocol import Point
from coterie.simulation import (
    HostedNetwork,
    RoundRecord,
    Simulation,
    fastest_executor,
    load_checkpoint,
    save_checkpoint,
)


def run(
    experiment: Experiment,
    *,
    objects: Objects | None = None,
    run_dir: Path | None = None,
    observer: Watching = None,
) -> Run:
    """Run an experiment; with `run_dir`, leave records there and checkpoints to resume from."""
    return _Runner(prepare(experiment, objects), observers_of(observer)).run(run_dir)


def resume(run_dir: Path, *, objects: Objects | None = None, observer: Watching = None) -> Run:
    """Continue an interrupted run from its last checkpoint; the result is as if it had never stopped."""
    folder = RunFolder(run_dir)
    experiment = folder.experiment()
    folder.require_same(experiment)  # the files that it names may be others now
    with folder.claim():
        return _Runner(prepare(experiment, objects), observers_of(observer)).resume(folder)


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
    return _Runner(prepare(experiment, objects), []).at_checkpoint(folder)


@dataclass
class _Runner:
    """One experiment, prepared."""

    prepared: Prepared
    observers: Sequence[Observer]

    @property
    def experiment(self) -> Experiment:
        return self.prepared.experiment

    def run(self, run_dir: Path | None) -> Run:
        with self._workers() as workers, pinned_threads(1):
            name = self._executor_name(workers)
            if run_dir is None:
                return self._step_to_end(self._simulation(name, workers), History(), None)
            with RunFolder.create(run_dir, self.experiment, name, self._data_digest) as folder:
                folder.records.list_peers(self.prepared.federation)
                try:
                    return self._step_to_end(self._simulation(name, workers), History(), folder)
                except ConfigError:  # some mistakes show only when training starts
                    folder.withdraw()
                    raise

    @property
    def _data_digest(self) -> str | None:
        return data_digest(self.experiment, self.prepared.federation)

    def resume(self, folder: RunFolder) -> Run:
        folder.require_same_data(self.experiment, self._data_digest)
        folder.records.list_peers(self.prepared.federation)  # a crash may have come before
        with self._workers() as workers, pinned_threads(1):
            name = cast(ExecutorName, folder.executor())
            simulation = self._simulation(name, workers)
            if folder.checkpoint.exists():
                notes = load_checkpoint(folder.checkpoint, simulation)
                if notes["executor"] != name:
                    raise DamagedRunError(
                        f"{folder.path}: the checkpoint was made by executor {notes['executor']!r}"
                    )
            history = folder.records.cut(simulation.round, self.prepared.federation.peers)
            return self._step_to_end(simulation, history, folder)

    def at_checkpoint(self, folder: RunFolder) -> Run:
        with self._workers() as workers, pinned_threads(1):
            simulation = self._simulation(cast(ExecutorName, folder.executor()), workers)
            load_checkpoint(folder.checkpoint, simulation)
            history = folder.records.read(self.prepared.federation.peers)
            return self._run_of(simulation, history, folder, folder.stopped())

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

    def _simulation(self, executor: ExecutorName, workers: Workers) -> Simulation:
        e, p = self.experiment, self.prepared
        return Simulation(
            algorithm=p.algorithm,
            federation=p.federation,
            module=p.module,
            topology=p.topology,
            training=e.training,
            executor=Executor(executor, p.module, workers, e.execution.precision),
            seed=e.seed,
            rounds=e.rounds,
            own_module=p.own_module,
            task=p.task,
            local_buffers=e.batchnorm == "local",
            shared=e.shared,
            sealing=e.execution.sealing,
            keep_best=e.stopping.keep == "best",
            architectures=[
                HostedNetwork(
                    torch.tensor(other.peers),
                    Executor(executor, other.module, workers, e.execution.precision),
                )
                for other in p.other_networks.values()
            ],
        )

    def _step_to_end(self, simulation: Simulation, history: History, folder: RunFolder | None) -> Run:
        """All rounds that are left, unless an observer or the validation data end the run before."""
        stopped = (None if folder is None else folder.stopped()) or self._had_reason_to_stop(history)
        for observer in self._watching:
            observer.begin(self.experiment, history)
        saved = time.monotonic()
        while simulation.round < self.experiment.rounds and stopped is None:
            record = self._step(simulation, history)
            history.add(record)
            if folder is not None:
                folder.records.append(record)
                if self._is_last(simulation) or time.monotonic() - saved >= self._seconds_between_saves:
                    self._save(simulation, folder)
                    saved = time.monotonic()
            stopped = reason_to_end([observer.round(record, history) for observer in self._watching])
            if stopped is not None and folder is not None:
                self._save(simulation, folder)
        finished = self._finished(simulation, history, folder, stopped)
        for observer in self._watching:
            observer.end(finished)
        return finished

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

    @property
    def _seconds_between_saves(self) -> float:
        return self.experiment.execution.checkpoint_seconds

    def _save(self, simulation: Simulation, folder: RunFolder) -> None:
        folder.records.flush()  # the records must not be behind the checkpoint
        save_checkpoint(folder.checkpoint, simulation, {"executor": simulation.executor.name})

    def _finished(
        self, simulation: Simulation, history: History, folder: RunFolder | None, stopped: str | None
    ) -> Run:
        finished = self._run_of(simulation, history, folder, stopped)
        if folder is not None:
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
            metric=self.prepared.task.metrics[0],
            run_dir=None if folder is None else folder.path,
            stopped=stopped,
            names=self.prepared.federation.names,
        )
