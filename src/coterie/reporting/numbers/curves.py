"""Learning curves: means over peers and seeds by round, with their spread, and when a target is reached."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from coterie.metric import Metric
from coterie.reporting.numbers.known import Array, Known, Point, mean_over
from coterie.spreads import MOST_LISTED


@dataclass(frozen=True)
class Curve:
    """The main metric by round, of runs that differ only in their seed."""

    rounds: list[int]  # that all runs have measured, counted from 1
    of_seeds: Array  # (seeds, rounds) the mean over peers, at the algorithm's own point
    other: Array  # (rounds,) the mean at the other point
    worst: Array  # (rounds,) the mean of the lowest tenth of the peers, at the own point
    best: Array  # (rounds,) of the highest tenth

    @property
    def mean(self) -> Array:
        return np.asarray(self.of_seeds.mean(0))

    @property
    def low(self) -> Array:
        """The lowest seed's mean."""
        return np.asarray(self.of_seeds.min(0))

    @property
    def high(self) -> Array:
        return np.asarray(self.of_seeds.max(0))


def learning_curve(group: Sequence[Known]) -> Curve:
    """group: the runs of one algorithm, one for each seed."""
    rounds = common_rounds([run.rounds for run in group])
    if any(run.peers > MOST_LISTED for run in group):
        return _curve_of_many(group, rounds)
    own = _scores(group, rounds, group[0].point)
    other = _scores(group, rounds, group[0].other_point)
    lowest, highest = tenths(np.concatenate(own, axis=1))  # the peers of all seeds
    means = np.stack([mean_over(scores, 1) for scores in own])
    return Curve(rounds, means, mean_over(np.concatenate(other, axis=1), 1), lowest, highest)


def _curve_of_many(group: Sequence[Known], rounds: list[int]) -> Curve:
    """Of very many peers: exact for each seed; the tenths are means of the seeds' own."""
    own, other = (_rows(group, rounds, point) for point in (group[0].point, group[0].other_point))
    lowest, highest = own[:, 1].mean(0), own[:, 2].mean(0)
    return Curve(rounds, own[:, 0], np.asarray(other[:, 0].mean(0)), lowest, highest)


def _rows(group: Sequence[Known], rounds: Sequence[int], point: Point) -> Array:
    """(seeds, 3, rounds) mean over peers, and means of their lowest and of their highest tenth."""
    found = np.full((len(group), 3, len(rounds)), np.nan)
    for seed, run in enumerate(group):
        spreads = run.spreads(point)
        for place, number in enumerate(rounds):
            one = spreads[run.rounds.index(number)]
            if one is not None:
                found[seed, :, place] = one.mean, one.lowest_tenth, one.highest_tenth
    return found


def common_rounds(rounds: Sequence[Sequence[int]]) -> list[int]:
    """Those that all runs have measured: one of them may have ended early."""
    return sorted(set.intersection(*map(set, rounds))) if rounds else []


def band(values: Array) -> tuple[Array, Array, Array]:
    """Of (seeds, rounds) values: the mean, the lowest and the highest seed."""
    return np.asarray(values.mean(0)), np.asarray(values.min(0)), np.asarray(values.max(0))


def tenths(values: Array) -> tuple[Array, Array]:
    """Means of the lowest and of the highest tenth of the peers, at least one, for each round.

    values: (rounds, peers), NaN where a peer was absent; each round has its own tenth.
    """
    ordered = np.sort(values, 1)  # NaN last
    lowest, highest = np.full(len(ordered), np.nan), np.full(len(ordered), np.nan)
    for number, row in enumerate(ordered):
        measured = row[: int((~np.isnan(row)).sum())]
        if len(measured):
            tenth = math.ceil(len(measured) / 10)
            lowest[number], highest[number] = measured[:tenth].mean(), measured[-tenth:].mean()
    return lowest, highest


def reached(rounds: Sequence[int], means: Array, target: float, metric: Metric) -> int | None:
    """The first round whose mean is as good as the target; None: never."""
    found = np.flatnonzero(metric.gain(means, target) >= 0)
    return rounds[int(found[0])] if len(found) else None


def _scores(group: Sequence[Known], rounds: Sequence[int], point: Point) -> list[Array]:
    places = [[run.rounds.index(number) for number in rounds] for run in group]
    return [run.scores(point)[place] for run, place in zip(group, places, strict=True)]
