"""A search by Optuna over the keys of an experiment: it proposes values, runs try them, bad ones end early.

    <folder>/study.journal   the study, which `optuna.load_study` opens under the name "coterie"
    <folder>/sweep.json      the trials that were finished, as a sweep
    <folder>/trials.csv      a line for each trial: its values, its state and its score

The same search in the same folder goes on where it was interrupted. Validation data choose where there are
any.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import json
import shutil
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coterie.catalogue import algorithms
from coterie.errors import ConfigError
from coterie.experiments.cells.cell import Cell
from coterie.experiments.cells.comparing import Say
from coterie.experiments.cells.sweeping import RANGE, Axis, parse_axis
from coterie.experiments.cells.working_off import CellRunner, work_off
from coterie.experiments.runs import naming
from coterie.experiments.runs.folder import RunFolder
from coterie.experiments.runs.observing import Observer
from coterie.experiments.runs.records import History
from coterie.experiments.setup.dealing import Dealer
from coterie.experiments.setup.prepare import Objects, task_of
from coterie.experiments.setup.schema import Experiment
from coterie.metric import Metric
from coterie.reporting.comparison import Lines, write_csv
from coterie.results.sweep import Sweep, write_plan
from coterie.simulation import RoundRecord

STUDY, TRIALS, NAME = "study.journal", "trials.csv", "coterie"
_PRUNED = "pruned"
_ENDED_BEFORE = "interrupted"  # trials that are tried again, in the study's attributes

PlanTrial = Callable[[list[Axis]], list[Cell]]


@dataclass(frozen=True)
class Range:
    """A key and the numbers that it may take: log(0.001,1), uniform(0,1) or int(1,10)."""

    key: str
    kind: str
    low: float
    high: float

    @property
    def ends(self) -> tuple[str, ...]:
        return tuple(_text(int(end) if self.kind == "int" else end) for end in (self.low, self.high))

    def suggest(self, trial: Any) -> str:
        if self.kind == "int":
            return _text(trial.suggest_int(self.key, int(self.low), int(self.high)))
        return _text(trial.suggest_float(self.key, self.low, self.high, log=self.kind == "log"))


def parse_space(text: str) -> Axis | Range:
    """`training.lr=log(0.001,1)`, or a list of values as for a sweep."""
    key, _, value = text.partition("=")
    match = RANGE.match(value)
    if match is None:
        return parse_axis(text)
    kind = match[1]
    try:
        low, high = float(match[2]), float(match[3])
    except ValueError:
        raise ConfigError(f"--over {text!r}: the ends of a range are numbers") from None
    if not low < high:
        advice = f"; write {kind}({high:g},{low:g})" if high < low else ""
        raise ConfigError(f"--over {text!r}: the first end must be below the second{advice}")
    if kind == "log" and low <= 0:
        raise ConfigError(f"--over {text!r}: a logarithmic range is above 0")
    if kind == "int" and not (low.is_integer() and high.is_integer()):
        raise ConfigError(f"--over {text!r}: the ends of an int range are whole numbers")
    return Range(key.strip(), kind, low, high)


def search(
    space: Sequence[Axis | Range],
    plan: PlanTrial,
    folder: Path | None,
    *,
    trials: int,
    given: Objects | None = None,
    say: Say = lambda message: None,
) -> Sweep:
    """Try so many combinations of values, each on all seeds, counting those that the folder holds.

    plan: the runs of one combination. folder: None: one whose name follows from what is searched.
    """
    if isinstance(trials, bool) or not isinstance(trials, int) or trials < 1:
        raise ConfigError(f"a search needs at least one trial, not {trials!r}")
    if not space:
        raise ConfigError('what to search? Write --over "training.lr=log(0.001,1)"')
    keys = [one.key for one in space]
    if len(set(keys)) < len(keys):
        raise ConfigError(f"--over {next(key for key in keys if keys.count(key) > 1)} is given twice")
    optuna = _optuna()
    corners = _corners(space, plan)
    folder = folder or _default_folder(space, corners[0])
    with CellRunner(folder / naming.CELLS, 1, given) as runner:
        runner.check(corners)
    return _Search(optuna, space, plan, folder, trials, Dealer(given), say).run(corners[0].experiment)


def _optuna() -> Any:
    if importlib.util.find_spec("optuna") is None:
        raise ConfigError("--optuna needs Optuna, which is not installed: pip install 'coterie[optuna]'")
    optuna = importlib.import_module("optuna")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _corners(space: Sequence[Axis | Range], plan: PlanTrial) -> list[Cell]:
    """Runs in which each value of a list, and each end of a range, comes up: what is wrong shows in them."""
    values = [one.values if isinstance(one, Axis) else one.ends for one in space]
    first = [some[0] for some in values]
    combinations = [first] + [
        [*first[:place], other, *first[place + 1 :]]
        for place, some in enumerate(values)
        for other in some[1:]
    ]
    keys = [one.key for one in space]
    return [
        cell
        for chosen in combinations
        for cell in plan([Axis(key, (value,)) for key, value in zip(keys, chosen, strict=True)])
    ]


def _default_folder(space: Sequence[Axis | Range], first: Cell) -> Path:
    text = json.dumps([repr(space), first.name])
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return naming.RUNS / f"search-{naming.slug(first.experiment.data)}-{digest}"


@dataclass
class _Search:
    optuna: Any
    space: Sequence[Axis | Range]
    plan: PlanTrial
    folder: Path
    wanted: int
    dealer: Dealer
    say: Say

    def run(self, first: Experiment) -> Sweep:
        self.metric = task_of(first).metrics[0]
        self.folder.mkdir(parents=True, exist_ok=True)
        self.study = self._study(first.seed)
        self._try_interrupted_again()
        while self._tried() < self.wanted:
            self._try_one()
        self._write()
        return Sweep(self._finished_cells(), self.folder)

    def _study(self, seed: int) -> Any:
        storages = importlib.import_module("optuna.storages")
        journal = importlib.import_module("optuna.storages.journal")
        backend = journal.JournalFileBackend(str(self.folder / STUDY))
        study = self.optuna.create_study(
            study_name=NAME,
            storage=storages.JournalStorage(backend),
            direction="maximize" if self.metric.higher_is_better else "minimize",
            pruner=self.optuna.pruners.MedianPruner(n_startup_trials=4),
            load_if_exists=True,
        )
        # A search that goes on must not draw again what it drew before.
        study.sampler = self.optuna.samplers.TPESampler(seed=seed + len(study.get_trials(deepcopy=False)))
        return study

    def _try_interrupted_again(self) -> None:
        """Their runs go on from their checkpoints."""
        state = self.optuna.trial.TrialState
        before = list(self.study.user_attrs.get(_ENDED_BEFORE, []))
        for trial in self.study.get_trials(states=[state.RUNNING]):
            self.study.tell(trial.number, state=state.FAIL)
            if trial.params:
                self.study.enqueue_trial(trial.params)
            before.append(trial.number)
        self.study.set_user_attr(_ENDED_BEFORE, before)

    def _tried(self) -> int:
        again = self.study.user_attrs[_ENDED_BEFORE]
        ended = [one for one in self.study.get_trials(deepcopy=False) if one.state.is_finished()]
        return sum(one.number not in again for one in ended)

    def _try_one(self) -> None:
        trial, state = self.study.ask(), self.optuna.trial.TrialState
        chosen = {one.key: _suggested(one, trial) for one in self.space}
        cells = self.plan([Axis(key, (value,)) for key, value in chosen.items()])
        trial.set_user_attr("cells", [cell.name for cell in cells])
        trial.set_user_attr("values", chosen)
        scores = []
        for place, cell in enumerate(cells):
            found = self._score(cell, _Pruning(trial, cell.experiment, self.metric, place))
            if not isinstance(found, tuple):
                self.study.tell(trial, state=state.PRUNED if found == _PRUNED else state.FAIL)
                self._told(trial.number, chosen, found)
                return
            scores.append(found)
        mean, by = statistics.fmean(score for score, _ in scores), scores[0][1]
        trial.set_user_attr("objective", by)
        self.study.tell(trial, mean)
        self._write()
        self._told(trial.number, chosen, f"{by} {self.metric.title} {mean:.4f}")

    def _score(self, cell: Cell, watching: Observer) -> tuple[float, str] | str:
        """The run's score and the data that it is of; or why there is none."""
        where = self.folder / naming.CELLS
        message = work_off(cell, where, watching, self.dealer)
        if message is not None:
            return message
        result = RunFolder(where / cell.name).result() or {}
        if result.get("stopped") == _PRUNED:  # whoever asks for this run wants a whole one
            shutil.rmtree(where / cell.name)
            return _PRUNED
        return objective(result)

    def _told(self, number: int, chosen: Mapping[str, str], outcome: str) -> None:
        values = ", ".join(f"{key} {_short(value)}" for key, value in chosen.items())
        self.say(f"trial {number + 1}: {values}: {outcome}")

    def _finished_cells(self) -> list[Cell]:
        state = self.optuna.trial.TrialState
        done = self.study.get_trials(deepcopy=False, states=[state.COMPLETE])
        plans = {json.dumps(one.user_attrs["values"]): one.user_attrs["values"] for one in done}
        return [
            cell
            for values in plans.values()
            for cell in self.plan([Axis(key, (value,)) for key, value in values.items()])
        ]

    def _write(self) -> None:
        write_plan(self._finished_cells(), self.folder)
        write_csv(trials_in(self.study), self.folder / TRIALS)


def trials_in(study: Any) -> Lines:
    """A line for each trial: its values, its state and its score."""
    return [
        {
            "trial": one.number + 1,
            **one.user_attrs.get("values", {}),
            "state": one.state.name.lower(),
            "score": one.value,
            "objective": one.user_attrs.get("objective"),
            "reports": len(one.intermediate_values),
        }
        for one in study.get_trials(deepcopy=False)
    ]


def objective(result: Mapping[str, Any]) -> tuple[float, str]:
    """The mean over peers of the main metric, on validation data where there are any, else on test data."""
    name = Metric.of(result).name
    found = result.get(f"validation_{name}")
    if found is not None:
        return float(found["mean"]), "validation"
    return float(result[f"personal_{name}"]["mean"]), "test"


def said_of_best(done: Sweep) -> str:
    """The best values, and which data chose them."""
    found = [objective(one.record.result) for one in done.swept if one.record is not None]
    if not found:
        return "no trial was finished"
    values = ", ".join(f"{key} {_short(str(value))}" for key, value in done.best.items())
    if all(by == "validation" for _, by in found):
        return f"best by validation data: {values}"
    return (
        f"best by TEST data, which makes its number too good (splitting.validation=0.2 avoids it): {values}"
    )


class _Pruning(Observer):
    """Reports every measured round to a trial, and ends the run if it is worse than the others were there."""

    def __init__(self, trial: Any, experiment: Experiment, metric: Metric, place: int) -> None:
        self._trial, self._metric, self._first = trial, metric, place * experiment.rounds
        self._point = algorithms[experiment.algorithm].facts.measured  # type: ignore[attr-defined]
        self._last = experiment.rounds - 1

    def round(self, record: RoundRecord, history: History) -> str | None:
        scores = history.last(f"validation_{self._metric.name}", self._point)
        scores = history.last(self._metric.name, self._point) if scores is None else scores
        if not record.evaluations or scores is None or record.round == self._last:
            return None
        self._trial.report(float(scores.nanmean()), self._first + record.round)
        return _PRUNED if self._trial.should_prune() else None


def _suggested(one: Axis | Range, trial: Any) -> str:
    if isinstance(one, Range):
        return one.suggest(trial)
    return str(trial.suggest_categorical(one.key, one.values))


def _text(value: float) -> str:
    return repr(value)


def _short(text: str) -> str:
    try:
        return f"{float(text):.4g}"
    except ValueError:
        return text
