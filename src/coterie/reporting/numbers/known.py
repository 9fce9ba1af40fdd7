"""What pictures need to know of a run: in memory (`OfRun`), or as its folder has it (`folders.OfFolder`)."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from coterie.metric import Metric
from coterie.spreads import Spread

if TYPE_CHECKING:
    from coterie.experiments.runs.run import Run

Array: TypeAlias = NDArray[np.float64]
Whole: TypeAlias = NDArray[np.int64]
Point: TypeAlias = Literal["after_local", "after_mixing"]
POINTS: tuple[Point, Point] = ("after_local", "after_mixing")
POINT_NAMES: dict[str, str] = {"after_local": "after local training", "after_mixing": "after mixing"}


class Known:
    """One run. Every number of every picture follows from these."""

    algorithm: str
    metric: Metric  # the main one
    point: Point  # where the algorithm's paper measures
    peers: int
    seed: int
    names: Sequence[str]  # of the peers; empty: they have numbers only
    rounds: list[int]  # that were measured, counted from 1

    @property
    def other_point(self) -> Point:
        return POINTS[1] if self.point == POINTS[0] else POINTS[0]

    def scores(self, point: Point) -> Array:
        """(measured rounds, peers) the main metric; NaN where it was not measured."""
        raise NotImplementedError

    def spreads(self, point: Point) -> list[Spread | None]:
        """By measured round: the main metric over all peers, of whom `scores` may have a sample."""
        raise NotImplementedError

    @property
    def reported(self) -> Array:
        """(peers,) the main metric in the last round, or of each peer's best model, at the own point."""
        raise NotImplementedError

    @property
    def mean(self) -> float:
        """Of what is reported, over all peers."""
        return float(mean_over(self.reported, 0))

    @property
    def worst(self) -> float:
        """The mean of the worst tenth of all peers, at least one; NaN if nobody was measured."""
        return worst_tenth(self.reported, self.metric)

    @property
    def clusters(self) -> Whole | None:
        """(peers,) the true ones, where there are any."""
        raise NotImplementedError

    @property
    def received(self) -> bool:
        """Whether any peer received a model of another."""
        raise NotImplementedError

    @property
    def shares(self) -> Array:
        """(receivers, senders) how much each learned from each; rows add up to 1, or to 0."""
        raise NotImplementedError

    @property
    def own_cluster_share(self) -> float | None:
        raise NotImplementedError

    def name_of(self, peer: int) -> str:
        return self.names[peer] if self.names else str(peer)


class OfRun(Known):
    """A run in memory."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self.algorithm, self.seed = run.experiment.algorithm, run.experiment.seed
        self.metric, self.point, self.peers = run.metric, run.point, run.peers
        self.names, self.rounds = run.names, run.history.rounds

    def scores(self, point: Point) -> Array:
        return _array(self._run.scores_over_time(point=point))

    def spreads(self, point: Point) -> list[Spread | None]:
        name, measured = f"{self.metric.name}_{point}", self._run.history.measurements
        return [one.spreads.get(name) or Spread.of(one.get(self.metric.name, point)) for one in measured]

    @functools.cached_property
    def reported(self) -> Array:
        return _array(self._run.personal_scores)

    @property
    def clusters(self) -> Whole | None:
        found = self._run.clusters
        return None if found is None else np.asarray(found.numpy(), dtype=np.int64)

    @property
    def received(self) -> bool:
        return bool(self._run.graph.any())

    @functools.cached_property
    def shares(self) -> Array:
        return _array(self._run.shares)

    @property
    def own_cluster_share(self) -> float | None:
        return self._run.own_cluster_share


def known(runs: Sequence[Run | Known]) -> list[Known]:
    """Runs in any form as what pictures need to know."""
    return [run if isinstance(run, Known) else OfRun(run) for run in runs]


def mean_over(values: Array, axis: int) -> Array:
    """Of what was measured; NaN where nothing was."""
    there = ~np.isnan(values)
    counts = there.sum(axis)
    sums = np.where(there, values, 0.0).sum(axis)
    return np.asarray(np.where(counts > 0, sums / np.maximum(counts, 1), np.nan))


def worst_tenth(values: Array, metric: Metric) -> float:
    """The mean of the worst tenth of the peers, at least one; NaN if nobody was measured."""
    there = np.sort(values[~np.isnan(values)])
    there = there if metric.higher_is_better else there[::-1]
    return float(np.mean(there[: math.ceil(len(there) / 10)])) if len(there) else math.nan


def _array(values: Any) -> Array:
    return np.asarray(values.double().numpy())
