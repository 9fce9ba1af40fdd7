"""Every peer against Local, which is training alone: who was helped, and who was hurt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from coterie.metric import Metric
from coterie.reporting.numbers.known import Array, Known, Whole, mean_over, worst_tenth
from coterie.spreads import MOST_LISTED


@dataclass(frozen=True)
class Gains:
    """The peers of all seeds, in their order; a gain is positive where the peer is better off."""

    mine: Array
    local: Array
    metric: Metric

    @property
    def gain(self) -> Array:
        return np.asarray(self.metric.gain(self.mine, self.local))

    @property
    def helped(self) -> int:
        return int((self.gain > 0).sum())

    @property
    def hurt(self) -> int:
        return int((self.gain < 0).sum())

    @property
    def mean(self) -> float:
        """By how much the mean over peers is better."""
        mine, local = (float(mean_over(values, 0)) for values in (self.mine, self.local))
        return float(self.metric.gain(mine, local))

    @property
    def by_local(self) -> Whole:
        """The peers, the lowest score of Local first."""
        return np.argsort(self.local, kind="stable")

    @property
    def by_gain(self) -> Whole:
        """The peers, the largest gain first; who was not measured comes last."""
        return np.argsort(-self.gain, kind="stable")


def gains_of(group: Sequence[Known], local: Sequence[Known]) -> Gains:
    """group: an algorithm's runs, one for each seed; local: those of Local on the same data and seeds."""
    return Gains(scores_of(group), scores_of(local), group[0].metric)


def mean_of(group: Sequence[Known]) -> float:
    """Of all peers of all seeds."""
    if any(run.peers > MOST_LISTED for run in group):
        return float(np.mean([run.mean for run in group]))
    return float(mean_over(scores_of(group), 0))


def worst_of(group: Sequence[Known]) -> float:
    """Of the worst tenth of the peers of all seeds; of very many peers, the mean of the seeds' own."""
    if any(run.peers > MOST_LISTED for run in group):
        return float(np.mean([run.worst for run in group]))
    return worst_tenth(scores_of(group), group[0].metric)


def scores_of(group: Sequence[Known]) -> Array:
    """What is reported of the peers of all seeds."""
    return np.concatenate([run.reported for run in group])
