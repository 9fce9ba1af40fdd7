"""Looking on while a run goes, and ending it: `coterie.Observer`.

A progress bar, early stopping and the pruning of a search are observers; so is a plain function of a round's
record and the history so far. Early stopping is here: when a run ends by validation data, and which model of
each peer is reported. Both follow from the history alone, so that a resumed run decides as one that was never
interrupted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

from coterie.errors import ConfigError
from coterie.experiments.runs.records import History
from coterie.experiments.setup.schema import Experiment, Stopping
from coterie.metric import VALIDATION, Metric
from coterie.protocol import Point
from coterie.simulation import RoundRecord

if TYPE_CHECKING:
    from coterie.experiments.runs.run import Run

_NO_REASON = "an observer ended the run"


class Observer:
    """Looks on while a run goes; a class of your own overrides what it needs."""

    def begin(self, experiment: Experiment, history: History) -> None:
        """Before the first round; where a run goes on, `history` has the rounds before."""

    def round(self, record: RoundRecord, history: History) -> str | bool | None:
        """After every round, whose records are written; a reason, or True, ends the run here."""

    def end(self, run: Run) -> None:
        """After the last round, with what came of the run; not after an error."""


Function: TypeAlias = Callable[[RoundRecord, History], Any]
Watching: TypeAlias = Observer | Function | Sequence[Observer | Function] | None


class _Called(Observer):
    """A function as an observer."""

    def __init__(self, function: Function) -> None:
        self._function = function

    def round(self, record: RoundRecord, history: History) -> str | bool | None:
        answer = self._function(record, history)
        return answer if isinstance(answer, str | bool) else None


def observers_of(watching: Watching) -> list[Observer]:
    """Everyone who looks on at a run."""
    several = watching if isinstance(watching, list | tuple) else [watching]
    return [_observer(one) for one in several if one is not None]


def reason_to_end(answers: Iterable[str | bool | None]) -> str | None:
    """Why a run ends, from what its observers said of a round; None: it goes on."""
    reasons = [answer if isinstance(answer, str) else _NO_REASON for answer in answers if answer]
    return "; ".join(dict.fromkeys(reasons)) or None


def _observer(given: Any) -> Observer:
    if isinstance(given, Observer):
        return given
    if isinstance(given, type) or not callable(given):
        advice = (
            f"pass an instance: {given.__name__}()" if isinstance(given, type) else "see coterie.Observer"
        )
        raise ConfigError(f"an observer is a coterie.Observer or a function, not {given!r}; {advice}")
    return _Called(given)


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
    scores = history.scores(VALIDATION + metric.name, point).double()
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
        mean = measurement.mean(VALIDATION + metric.name, point)
        if mean is not None and (best is None or metric.gain(mean, best[1]) > stopping.min_improvement):
            best = measurement.round + 1, mean
    return best
