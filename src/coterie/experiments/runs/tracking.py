"""Runs in TensorBoard, MLflow and Weights & Biases: observers that write to a folder, and ask nobody.

Each is optional, and imported when it is asked for. A tracker of your own is a `Tracker` with three methods.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from coterie.errors import ConfigError
from coterie.experiments.runs.observing import Observer
from coterie.experiments.runs.records import TRAFFIC, History
from coterie.experiments.setup.schema import Experiment
from coterie.registry import nearest
from coterie.simulation import RoundRecord

if TYPE_CHECKING:
    from coterie.experiments.runs.run import Run

_LONGEST = 500  # characters of a setting that MLflow takes
_NO_CALLS_HOME = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "WANDB_ERROR_REPORTING": "false",
}


class Tracker(Observer):
    """An observer that hands a run's settings and the numbers of each round to somebody else.

    The numbers are those of `run.frame("rounds")`. A run that goes on is handed over from its first round.
    """

    called = ""  # the run's name; empty: its algorithm, data and seed

    def open(self, name: str, settings: dict[str, Any]) -> None:
        """A run begins."""

    def log(self, round: int, numbers: dict[str, float]) -> None:
        """After a round, counted from 1."""

    def close(self, finished: bool = False) -> None:
        """The run is over; it was interrupted, or failed, unless it is finished. May come twice."""

    def begin(self, experiment: Experiment, history: History) -> None:
        self.close()
        self.open(self.called or name_of(experiment), settings_of(experiment))
        for place in range(len(history.seconds)):
            self.log(place + 1, numbers_of(history, place))

    def round(self, record: RoundRecord, history: History) -> None:
        self.log(record.round + 1, numbers_of(history, record.round))

    def end(self, run: Run) -> None:
        self.close(finished=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def name_of(experiment: Experiment) -> str:
    return f"{experiment.algorithm}-{experiment.data}-s{experiment.seed}".replace("/", "-")


def settings_of(experiment: Experiment) -> dict[str, Any]:
    """`{"training.lr": 0.1, ...}`: all keys with their values."""
    found: dict[str, Any] = {}

    def add(table: Mapping[str, Any], prefix: str) -> None:
        for key, value in table.items():
            if isinstance(value, Mapping) and value:
                add(value, f"{prefix}{key}.")
            else:
                found[f"{prefix}{key}"] = value

    add(experiment.model_dump(mode="json"), "")
    return found


def numbers_of(history: History, place: int) -> dict[str, float]:
    """What is known of a round, counted from 0: means over peers where it was measured."""
    found: dict[str, float] = {"seconds": history.seconds[place]}
    found |= {name: float(value) for name, value in zip(TRAFFIC, history.traffic[place], strict=True)}
    for one in reversed(history.measurements):
        if one.round == place:
            means = {
                f"{column}_{point}": float(values.nanmean()) for (column, point), values in one.values.items()
            }
            found |= {name: mean for name, mean in means.items() if mean == mean}
        if one.round <= place:
            break
    return found


class TensorBoard(Tracker):
    """Event files, a folder for each run: tensorboard --logdir FOLDER."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._writer = folder, None  # type: tuple[Path, Any]
        _require("tensorboard", "tensorboard")

    def open(self, name: str, settings: dict[str, Any]) -> None:
        module = importlib.import_module("torch.utils.tensorboard")
        self._writer = module.SummaryWriter(str(self._folder / name), purge_step=1)
        lines = "\n".join(f"    {key} = {value}" for key, value in settings.items())
        self._writer.add_text("settings", lines)

    def log(self, round: int, numbers: dict[str, float]) -> None:
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, round)

    def close(self, finished: bool = False) -> None:
        if self._writer is not None:
            self._writer.close()
        self._writer = None


class MLflow(Tracker):
    """A database: mlflow ui --backend-store-uri sqlite:///FOLDER/mlflow.db."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._run, self._client = folder, None, None  # type: tuple[Path, Any, Any]
        _require("mlflow", "mlflow")
        _require("sqlalchemy", "mlflow")

    def open(self, name: str, settings: dict[str, Any]) -> None:
        self._mlflow = importlib.import_module("mlflow")
        logging.getLogger("mlflow").setLevel(logging.WARNING)  # it tells how it makes its tables
        if self._client is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._client = self._mlflow.MlflowClient(
                tracking_uri=f"sqlite:///{self._folder.resolve()}/mlflow.db"
            )
        found = self._client.get_experiment_by_name("coterie")
        experiment = found.experiment_id if found else self._client.create_experiment("coterie")
        self._run = self._client.create_run(experiment, run_name=name).info.run_id
        entities = self._mlflow.entities
        params = [entities.Param(key, str(value)[:_LONGEST]) for key, value in settings.items()]
        for first in range(0, len(params), 100):  # the most that it takes at once
            self._client.log_batch(self._run, params=params[first : first + 100])

    def log(self, round: int, numbers: dict[str, float]) -> None:
        now, make = int(time.time() * 1000), self._mlflow.entities.Metric
        self._client.log_batch(self._run, [make(name, value, now, round) for name, value in numbers.items()])

    def close(self, finished: bool = False) -> None:
        if self._run is not None:
            self._client.set_terminated(self._run, "FINISHED" if finished else "KILLED")
        self._run = None


class Wandb(Tracker):
    """Weights & Biases, offline: `wandb sync` uploads what is in the folder, if and when you want it."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._run = folder, None  # type: tuple[Path, Any]
        _require("wandb", "wandb")

    def open(self, name: str, settings: dict[str, Any]) -> None:
        wandb = importlib.import_module("wandb")
        self._folder.mkdir(parents=True, exist_ok=True)
        quiet = {"silent": True, "console": "off", "disable_git": True, "save_code": False}
        how = wandb.Settings(**quiet, x_disable_stats=True, x_disable_meta=True, x_disable_machine_info=True)
        where = {"dir": str(self._folder), "project": "coterie", "mode": "offline"}
        self._run = wandb.init(**where, name=name, config=settings, settings=how, reinit="create_new")

    def log(self, round: int, numbers: dict[str, float]) -> None:
        self._run.log(numbers, step=round)

    def close(self, finished: bool = False) -> None:
        if self._run is not None:
            self._run.finish(exit_code=0 if finished else 1)
        self._run = None


TRACKERS: dict[str, type[Tracker]] = {"tensorboard": TensorBoard, "mlflow": MLflow, "wandb": Wandb}


def track(name: str, folder: str | os.PathLike[str], called: str = "") -> Tracker:
    """An observer that writes runs for TensorBoard, MLflow or Weights & Biases to this folder.

    name: "tensorboard", "mlflow" or "wandb"; its extra has that name. Nothing leaves the machine.
    called: the name of the run; default: its algorithm, data and seed.
    """
    if name not in TRACKERS:
        raise ConfigError(f"there is no tracker {name!r}; {nearest(name, TRACKERS)}")
    for key, value in _NO_CALLS_HOME.items():
        os.environ.setdefault(key, value)
    tracker = TRACKERS[name](Path(folder))  # type: ignore[call-arg]
    tracker.called = called
    return tracker


def _require(module: str, extra: str) -> None:
    if importlib.util.find_spec(module) is None:
        raise ConfigError(f"this needs {module}, which is not installed: pip install 'coterie[{extra}]'")
