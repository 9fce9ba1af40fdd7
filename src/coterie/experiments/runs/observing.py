"""Looking on while a run goes, and ending it: `coterie.Observer`.

A progress bar, early stopping and the pruning of a search are observers; so is a plain function of a round's
record and the history so far.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from coterie.errors import ConfigError
from coterie.experiments.runs.records import History
from coterie.experiments.setup.schema import Experiment
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
