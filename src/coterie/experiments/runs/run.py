"""A run: scores over time, the models, and who learned from whom."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from coterie.errors import ConfigError, RunFolderError
from coterie.experiments.runs import frames, personal
from coterie.experiments.runs.observing import best_measurements, reported
from coterie.experiments.runs.records import History
from coterie.experiments.runs.result import distribution, result_of
from coterie.experiments.setup.schema import Experiment
from coterie.metric import ACCURACY, GLOBAL, VALIDATION, Metric
from coterie.models import copy_of
from coterie.protocol import Params, Point
from coterie.registry import nearest
from coterie.sharing import inside_share, shares_of
from coterie.simulation import (
    POINTS,
    PeerModels,
    Totals,
)

_MOST_PEERS_IN_GRAPH = 5000  # a dense graph of more would fill the memory


@dataclass(frozen=True)
class Received:
    """Models, or shares, that arrived from one peer at another, for each such pair."""

    peers: int
    receivers: Tensor  # (pairs,) ascending
    senders: Tensor
    messages: Tensor
    bytes: Tensor

    def dense(self, of_pairs: Tensor) -> Tensor:
        """(peers, peers) the same, a row for each receiver."""
        table = torch.zeros(self.peers, self.peers, dtype=torch.long)
        table[self.receivers, self.senders] = of_pairs
        return table

    @property
    def shares(self) -> Tensor:
        """(pairs,) of all that its receiver received."""
        counts = self.messages.double()
        return counts / torch.zeros(self.peers).double().index_add_(0, self.receivers, counts)[self.receivers]

    def inside_share(self, clusters: Tensor) -> float | None:
        """What share came from the peer's own cluster, over all who received anything; None if nobody did."""
        inside = self.shares * (clusters[self.receivers] == clusters[self.senders])
        learners = len(self.receivers.unique())
        return float(inside.sum()) / learners if learners else None


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
    seen_in_clear: Tensor | None = None  # (peers,) models that each saw one by one, if they are counted
    metric: Metric = ACCURACY  # the task's main one
    run_dir: Path | None = None
    stopped: str | None = None  # why an observer ended it before its last round
    names: tuple[str, ...] = ()  # of the peers; empty: they have numbers only

    def __repr__(self) -> str:
        """What was run, how far, and how well, in a line."""
        e, done = self.experiment, len(self.history.seconds)
        rounds = (
            f"{done} round{'s' * (done != 1)}"
            if self.finished
            else f"interrupted after {done} of {e.rounds} rounds"
        )
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
        return self.received.dense(self.received.messages)

    @property
    def bytes_received(self) -> Tensor:
        """(peers, peers): how many bytes of these."""
        return self.received.dense(self.received.bytes)

    @property
    def received(self) -> Received:
        """The same without the pairs of whom one received nothing from the other."""
        nodes, totals = len(self.totals.bytes_sent), self.totals
        receivers, senders = totals.links // nodes, totals.links % nodes
        among = (receivers < self.peers) & (senders < self.peers)
        return Received(
            self.peers,
            receivers[among],
            senders[among],
            totals.link_messages[among],
            totals.link_bytes[among],
        )

    @property
    def shares(self) -> Tensor:
        """(peers, peers) how much each row's peer learned from each column's; rows sum to 1, or to 0.

        The collaboration weights that the algorithm learned, or else the models that arrived.
        """
        learned = self.collaboration
        counts = self.graph.double() if learned is None else learned.double()
        shares: Tensor = shares_of(counts)
        return shares

    def shares_of_links(self) -> Tensor:
        """(pairs,) the same for the pairs of `received`; of very many peers, by the models that arrived."""
        found = self.received
        too_many = self.peers > _MOST_PEERS_IN_GRAPH
        return found.shares if too_many else self.shares[found.receivers, found.senders]

    @property
    def own_cluster_share(self) -> float | None:
        """What share of it came from the peer's own true cluster, over all who learned from anyone."""
        if self.clusters is None:
            return None
        if self.peers > _MOST_PEERS_IN_GRAPH and self.collaboration is None:
            return self.received.inside_share(self.clusters)
        return inside_share(self.shares, self.clusters) if self.peers <= _MOST_PEERS_IN_GRAPH else None

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
            own_cluster_share=self.own_cluster_share,
            seen_in_clear=self.seen_in_clear,
            executor=self.executor,
            seconds=sum(self.history.seconds),
            run_dir=self.run_dir,
            stopped=self.stopped,
        )
