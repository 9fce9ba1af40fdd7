"""Early stopping by validation data: when a run ends, and which model of each peer is reported.

Both follow from the history alone, so that a resumed run decides as one that was never interrupted.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.experiments.runs.observing import Observer
from coterie.experiments.runs.records import History
from coterie.experiments.setup.schema import Stopping
from coterie.metric import VALIDATION, Metric
from coterie.protocol import Point
from coterie.simulation import RoundRecord


@dataclass(frozen=True)
class EarlyStopping(Observer):
    """Ends a run as `[stopping]` says. metric, point: of the validation scores that decide."""

    stopping: Stopping
    metric: Metric
    point: Point

    def round(self, record: RoundRecord, history: History) -> str | None:
        return reason_to_stop(history, self.stopping, self.metric, self.point)


def reason_to_stop(history: History, stopping: Stopping, metric: Metric, point: Point) -> str | None:
    """Why a run ends after the last round of its history; None: it goes on."""
    if stopping.patience is None or not history.measurements:
        return None
    best = _best_mean(history, stopping, metric, point)
    if best is None or history.rounds[-1] - best[0] < stopping.patience:
        return None
    return (
        f"the mean validation {metric.title} has not improved for {stopping.patience} "
        f"round{'s' if stopping.patience > 1 else ''} (best: {metric.text(best[1])} in round {best[0]})"
    )


def may_stop(history: History, stopping: Stopping, metric: Metric, point: Point, round: int) -> bool:
    """Whether this round, counted from 1, is the last one unless it brings an improvement."""
    if stopping.patience is None or not history.measurements:
        return False
    best = _best_mean(history, stopping, metric, point)
    return best is not None and round - best[0] >= stopping.patience


def best_measurements(history: History, metric: Metric, point: Point) -> Tensor:
    """(peers,) which of the measurements has each peer's best model; the last for one without such data.

    As its node remembers it: the first of equals.
    """
    scores = torch.stack([m.values[VALIDATION + metric.name, point] for m in history.measurements]).double()
    unknown = scores.isnan()
    worth = (scores if metric.higher_is_better else -scores).masked_fill(unknown, -torch.inf)
    first = (worth == worth.max(0).values).double().argmax(0)  # argmax of a maximum that occurs twice is any
    return first.where(~unknown.all(0), len(scores) - 1)


def reported(history: History, column: str, point: str, best: Tensor) -> Tensor | None:
    """(peers,) a column at each peer's best measurement; None if it was not measured in all of them."""
    found = [measurement.get(column, point) for measurement in history.measurements]
    known = [values for values in found if values is not None]
    if len(known) < len(found):
        return None
    return torch.stack(known)[best, torch.arange(len(best))]


def _best_mean(
    history: History, stopping: Stopping, metric: Metric, point: Point
) -> tuple[int, float] | None:
    """The last round, counted from 1, whose mean over peers improved on the ones before by enough."""
    best: tuple[int, float] | None = None
    for measurement in history.measurements:
        scores = measurement.get(VALIDATION + metric.name, point)
        if scores is not None and not bool(scores.isnan().all()):
            mean = float(scores.nanmean())
            if best is None or metric.gain(mean, best[1]) > stopping.min_improvement:
                best = measurement.round + 1, mean
    return best
