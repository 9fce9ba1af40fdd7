"""Runs an experiment from its start, or resumes it from its last checkpoint, to its end."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from coterie.errors import ConfigError, DamagedRunError, RunFolderError
from coterie.experiments.runs import frames, personal
from coterie.experiments.runs.folder import RunFolder
from coterie.experiments.runs.observing import Observer, Watching, observers_of, reason_to_end
from coterie.experiments.runs.records import History, distribution
from coterie.experiments.runs.result import result_of
from coterie.experiments.runs.stopping import best_measurements, may_stop, reason_to_stop, reported
from coterie.experiments.setup.dealing import data_digest
from coterie.experiments.setup.prepare import Objects, Prepared, prepare
from coterie.experiments.setup.schema import Experiment
from coterie.learning import Executor, ExecutorName, Workers, keep_freed_memory, pinned_threads
from coterie.metric import ACCURACY, GLOBAL, VALIDATION, Metric
from coterie.models import copy_of
from coterie.protocol import Params, Point
from coterie.registry import nearest
from coterie.simulation import (
    POINTS,
    HostedNetwork,
    PeerModels,
    RoundRecord,
    Simulation,
    Totals,
    fastest_executor,
    load_checkpoint,
    save_checkpoint,
)

_MOST_PEERS_IN_GRAPH = 5000  # a dense graph of more would fill the memory


@dataclass(repr=False)
class Run:
    """A finished run: scores over time, the models, who learned from whom."""

    experiment: Experiment
    history: History
    totals: Totals
    point: Point  # where the algorithm's paper measures
    executor: str
    trained: list[PeerModels] = field(repr=False)  # the personal models, stacked for each architecture
    clusters: Tensor | None = None
    collaboration: Tensor | None = None  # (peers, peers) the weights that the algorithm learned, if it does
    metric: Metric = ACCURACY  # the task's main one
    run_dir: Path | None = None
    stopped: str | None = None  # why an observer ended it before its last round
    names: tuple[str, ...] = ()  # of the peers; empty: they have numbers only

    def __repr__(self) -> str:
        """What was run, how far, and how well, in a line."""
        e, done = self.experiment, len(self.history.seconds)
        rounds = f"{done} rounds" if self.finished else f"interrupted after {done} of {e.rounds} rounds"
        parts = [f"{e.algorithm} on {e.data}", f"{e.peers} peers", rounds, f"seed {e.seed}", self._scored]
        parts += [f"ended early: {self.stopped}"] if self.stopped else []
        return f"<Run {', '.join(parts)}>" + (f" in {self.run_dir}" if self.run_dir else "")

    @property
    def _scored(self) -> str:
        spread = distribution(self.personal_scores, self.metric) if self.history.measurements else None
        if spread is None:
            return "nothing measured so far"
        mean, worst = (f"{spread[name]:.3f}" for name in ("mean", "worst_decile"))
        return f"{self.metric.title} {mean} {self.point.replace('_', ' ')} (worst tenth {worst})"

    @property
    def finished(self) -> bool:
        """Whether it came to its end; only a run that is read from its folder may not have."""
        return True

    @property
    def peers(self) -> int:
        return self.experiment.peers

    @property
    def personal_scores(self) -> Tensor:
        """(peers,) the main metric in the last round, or of each peer's best model, at its own point."""
        self.scores_over_time()  # says what is wrong if nothing was measured
        scores = self._reported(self.metric.name, self.point)
        assert scores is not None
        return scores

    def _reported(self, column: str, point: str) -> Tensor | None:
        """When last measured, or where each peer's best model was (`stopping.keep`)."""
        if self.experiment.stopping.keep == "last" or not self.history.measurements:
            return self.history.last(column, point)
        return reported(self.history, column, point, best_measurements(self.history, self.metric, self.point))

    def scores_over_time(self, metric: str | None = None, point: Point | None = None) -> Tensor:
        """(measured rounds, peers) of the main metric or another; the rounds are `history.rounds`."""
        if not self.history.measurements:
            raise RunFolderError(f"{self.run_dir} was interrupted before anything was measured")
        name, at = metric or self.metric.name, point or self.point
        known = {column for column, _ in self.history.measurements[0].values}
        if name not in known:
            raise ConfigError(f"this run did not measure {name!r}; {nearest(name, known)}")
        return self.history.scores(name, at)

    @property
    def personal_accuracy(self) -> Tensor:
        """(peers,) in the last round, or of each peer's best model, at the algorithm's own point."""
        self.accuracy_over_time()  # says what is wrong if there is none
        accuracy = self._reported("accuracy", self.point)
        assert accuracy is not None
        return accuracy

    def accuracy_over_time(self, point: Point | None = None) -> Tensor:
        """(measured rounds, peers); the rounds are `history.rounds`."""
        return self.scores_over_time("accuracy", point)

    @property
    def params(self) -> Params:
        """The personal models, stacked over peers; only where all have the same architecture."""
        return self._everyone.params

    @property
    def module(self) -> nn.Module:
        """The architecture, with its initial weights; only where all peers have the same."""
        return self._everyone.module

    @property
    def _everyone(self) -> PeerModels:
        if len(self.trained) > 1:
            raise ConfigError("peers have different models in this run; use run.model(peer) or run.trained")
        return self.trained[0]

    def number_of(self, peer: int | str) -> int:
        """A peer's number, from its name or its number."""
        if isinstance(peer, str):
            if peer not in self.names:
                known = nearest(peer, self.names) if self.names else "they have numbers only"
                raise ConfigError(f"there is no peer {peer!r}; {known}")
            return self.names.index(peer)
        if isinstance(peer, bool) or not isinstance(peer, int) or not 0 <= peer < self.peers:
            raise ConfigError(f"there is no peer {peer!r}; they have the numbers 0 to {self.peers - 1}")
        return peer

    def models_like(self, peer: int | str) -> PeerModels:
        """The models of all peers that have the same network as this one."""
        number = self.number_of(peer)
        return next(models for models in self.trained if bool((models.peers == number).any()))

    def model(self, peer: int | str) -> dict[str, Tensor]:
        """The personal model of a peer (its number or name) as a state dict that loads into its module."""
        alike, peer = self.models_like(peer), self.number_of(peer)
        row = int((alike.peers == peer).nonzero())
        module = copy_of(alike.module)
        for name, value in [*module.named_parameters(), *module.named_buffers()]:
            if name in alike.params:
                value.data = alike.params[name][row].clone()
        return {name: value.cpu() for name, value in module.state_dict().items()}

    @property
    def models(self) -> list[dict[str, Tensor]]:
        """Every peer's personal model, as `model`."""
        return [self.model(peer) for peer in range(self.peers)]

    def predict(self, peer: int | str, x: Any) -> Tensor:
        """What a peer's personal model says of samples: for classes, the probability of each.

        x: an array or tensor whose first axis counts samples, shaped as in the data of the run; a tuple or
            dict of them for a network that takes several.
        """
        return personal.predict(self, peer, x)

    def save(self, peer: int | str, path: str | Path) -> Path:
        """Write a peer's personal model in a new folder: model.safetensors, and what it is in model.json."""
        return personal.save(self, peer, path)

    def frame(self, kind: Literal["rounds", "peers", "links"], library: str | None = None) -> Any:
        """A data frame with a line for each round; each peer in each measured round; or each link.

        library: "pandas" or "polars"; default: the first of them that is installed. Rounds count from 1.
        """
        return frames.frame(frames.columns_of(self, kind), library)

    @property
    def graph(self) -> Tensor:
        """(peers, peers): how many models (or shares) each row's peer received from each column's."""
        nodes = len(self.totals.bytes_sent)
        dense = torch.zeros(nodes, nodes, dtype=torch.long)
        dense[self.totals.links // nodes, self.totals.links % nodes] = self.totals.link_messages
        return dense[: self.peers, : self.peers]

    @property
    def shares(self) -> Tensor:
        """(peers, peers) how much each row's peer learned from each column's; rows sum to 1, or to 0.

        The collaboration weights that the algorithm learned, or else the models that arrived.
        """
        learned = self.collaboration
        counts = self.graph.double() if learned is None else learned.double()
        return counts / counts.sum(1, keepdim=True).clamp(min=1e-12)

    @property
    def own_cluster_share(self) -> float | None:
        """What share of it came from the peer's own true cluster, over all who learned from anyone."""
        if self.clusters is None:
            return None
        inside = (self.shares * (self.clusters[:, None] == self.clusters)).sum(1)
        learners = self.shares.sum(1) > 0
        return float(inside[learners].mean()) if bool(learners.any()) else None

    def result(self) -> dict[str, Any]:
        """The run as plain data: what `--json` prints."""
        return result_of(
            self.experiment,
            names=self.names,
            rounds=len(self.history.seconds),
            point=self.point,
            metric=self.metric,
            scores={point: self._reported(self.metric.name, point) for point in POINTS},
            on_common=self._reported(f"{GLOBAL}{self.metric.name}", self.point),
            validation={p: self._reported(f"{VALIDATION}{self.metric.name}", p) for p in POINTS},
            bytes_sent=self.totals.bytes_sent,
            work=self.history.work,
            own_cluster_share=self.own_cluster_share if self.peers <= _MOST_PEERS_IN_GRAPH else None,
            executor=self.executor,
            seconds=sum(self.history.seconds),
            run_dir=self.run_dir,
            stopped=self.stopped,
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
        stopped = (None if folder is None else folder.stopped()) or self._impatience(history)
        for observer in self.observers:
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
            answers = [observer.round(record, history) for observer in self.observers]
            stopped = reason_to_end([*answers, self._impatience(history)])
            if stopped is not None and folder is not None:
                self._save(simulation, folder)
        finished = self._finished(simulation, history, folder, stopped)
        for observer in self.observers:
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

    def _impatience(self, history: History) -> str | None:
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
