"""Searches by Optuna: ranges, the objective, pruning through the observer, going on, wrong inputs."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import optuna
import pytest
import torch

import coterie
from coterie.errors import ConfigError
from coterie.results import search as searching
from coterie.results.search import Range, objective, parse_space
from coterie.results.sweep import Sweep

SMALL: dict[str, Any] = {
    "model": "mlr",
    "partition": "dirichlet(0.5)",
    "topology": "ring",
    "peers": 3,
    "rounds": 3,
    "splitting": {"samples_per_peer": 20, "test_samples_per_peer": 10},
    "execution": {"executor": "stacked", "workers": 1},
}
OVER = {"training.lr": "log(0.001,1)", "algorithm": ["local", "d-psgd"]}


def study_in(folder: Path) -> optuna.Study:
    storage = optuna.storages.JournalStorage(
        optuna.storages.journal.JournalFileBackend(str(folder / "study.journal"))
    )
    return optuna.load_study(study_name="coterie", storage=storage)


@pytest.fixture(scope="module", name="folder")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("searches") / "s"


@pytest.fixture(scope="module", name="done")
def _done(folder: Path) -> Sweep:
    return coterie.sweep(OVER, **SMALL, seeds=2, optuna=4, out=folder)


def test_the_study_has_every_trial_with_the_mean_over_seeds(done: Sweep, folder: Path) -> None:
    study = study_in(folder)
    finished = [trial for trial in study.trials if trial.state.name == "COMPLETE"]
    assert len(study.trials) == 4
    by_values: dict[Any, list[float]] = {}
    for line in done.results():
        by_values.setdefault((line["algorithm"], line["training.lr"]), []).append(line["personal_accuracy"])
    for trial in finished:
        assert 0.001 <= trial.params["training.lr"] <= 1
        scores = by_values[trial.params["algorithm"], repr(trial.params["training.lr"])]
        assert len(scores) == 2
        assert trial.value == pytest.approx(sum(scores) / 2)
    best = max(finished, key=lambda trial: trial.value)
    assert done.best == {
        "algorithm": best.params["algorithm"],
        "training.lr": repr(best.params["training.lr"]),
    }


def test_its_trials_stand_in_a_file_and_it_is_opened_as_a_sweep(done: Sweep, folder: Path) -> None:
    with open(folder / "trials.csv", newline="") as file:
        lines = list(csv.DictReader(file))
    assert [line["trial"] for line in lines] == ["1", "2", "3", "4"]
    assert {line["objective"] for line in lines if line["state"] == "complete"} == {"test"}
    opened = coterie.open(folder)
    assert isinstance(opened, Sweep)
    assert opened.results() == done.results()


def test_the_same_search_is_done_and_a_larger_one_goes_on(done: Sweep, folder: Path, tmp_path: Path) -> None:
    before = study_in(folder).trials
    again = coterie.sweep(OVER, **SMALL, seeds=2, optuna=4, out=folder)
    assert again.results() == done.results()
    coterie.sweep(OVER, **SMALL, seeds=2, optuna=6, out=folder)
    after = study_in(folder).trials
    assert len(after) == 6
    assert [trial.params for trial in after[:4]] == [trial.params for trial in before]
    assert len({trial.params["training.lr"] for trial in after}) == 6  # nothing was drawn twice


def test_an_interrupted_trial_is_tried_again_with_its_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*args: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(searching._Pruning, "round", interrupt)
        with pytest.raises(KeyboardInterrupt):
            coterie.sweep({"training.lr": "log(0.01,1)"}, **SMALL, optuna=2, out=tmp_path)
    (cut,) = study_in(tmp_path).trials
    assert cut.state.name == "RUNNING"
    coterie.sweep({"training.lr": "log(0.01,1)"}, **SMALL, optuna=2, out=tmp_path)
    trials = study_in(tmp_path).trials
    assert [trial.state.name for trial in trials] == ["FAIL", "COMPLETE", "COMPLETE"]
    assert trials[1].params == cut.params


class _Trial:
    """Remembers what was reported, and is pruned at one step."""

    def __init__(self, last: int) -> None:
        self.reports: list[tuple[float, int]] = []
        self.last = last

    def report(self, value: float, step: int) -> None:
        self.reports.append((value, step))

    def should_prune(self) -> bool:
        return self.reports[-1][1] == self.last


def test_pruning_reports_rounds_and_ends_the_run_through_the_observer() -> None:
    experiment = coterie.Experiment(algorithm="d-psgd", rounds=3)
    trial, whole = _Trial(last=4), coterie.simulate("d-psgd", **SMALL)
    watching = searching._Pruning(trial, experiment, whole.metric, place=1)
    cut = coterie.simulate("d-psgd", **SMALL, observer=watching)
    means = whole.accuracy_over_time().mean(1).tolist()
    assert [step for _, step in trial.reports] == [3, 4]  # the second seed's rounds follow the first's
    assert [value for value, _ in trial.reports] == pytest.approx(means[:2])
    assert cut.stopped == "pruned"
    assert len(cut.history.seconds) == 2


def test_a_pruned_trial_leaves_no_run_and_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching._Pruning, "round", lambda self, record, history: "pruned")
    done = coterie.sweep({"training.lr": "log(0.01,1)"}, **SMALL, optuna=2, out=tmp_path)
    assert [trial.state.name for trial in study_in(tmp_path).trials] == ["PRUNED", "PRUNED"]
    assert done.results() == []
    assert not [path for path in (tmp_path / "cells").iterdir() if path.name != ".locks"]


def test_validation_data_choose_where_there_are_any() -> None:
    result = {"personal_accuracy": {"mean": 0.9}, "validation_accuracy": {"mean": 0.7}}
    assert objective(result) == (0.7, "validation")
    assert objective({**result, "validation_accuracy": None}) == (0.9, "test")
    lower = {"metric": "rmse", "higher_is_better": False, "personal_rmse": {"mean": 2.0}}
    assert objective(lower) == (2.0, "test")


def test_ranges_are_read() -> None:
    assert parse_space("training.lr = log(1e-3, 1)") == Range("training.lr", "log", 0.001, 1.0)
    assert parse_space("settings.mu=uniform(0,1)") == Range("settings.mu", "uniform", 0.0, 1.0)
    assert parse_space("training.epochs=int(1,5)").ends == ("1", "5")  # type: ignore[union-attr]
    assert parse_space("algorithm=local,random-gossip(3)").values == ("local", "random-gossip(3)")  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("over", "trials", "message"),
    [
        ({"training.lr": "log(1,0.1)"}, 2, r"the first end must be below the second; write log\(0.1,1\)"),
        ({"training.lr": "log(0,1)"}, 2, "above 0"),
        ({"training.lr": "uniform(a,1)"}, 2, "the ends of a range are numbers"),
        ({"training.epochs": "int(1,2.5)"}, 2, "whole numbers"),
        ({"training.lr": "log(0.1,1)"}, 0, "at least one trial, not 0"),
        ({"training.lr": "log(0.1,1)"}, None, "say how many of them to try"),
        ({"training.rl": "log(0.1,1)"}, 2, "unknown key"),
        ({"training.batch_size": "int(-3,8)"}, 2, "batch_size"),
        ({"algorithm": ["local", "d-psdg"]}, 2, "did you mean d-psgd"),
        ({}, 2, "what to search"),
        (["training.lr=log(0.1,1)", "training.lr=0.1,0.2"], 2, "given twice"),
    ],
)
def test_wrong_searches_get_a_sentence(over: Any, trials: int | None, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        coterie.sweep(over, **SMALL, optuna=trials, out=tmp_path / "s")
    assert not (tmp_path / "s" / "study.journal").exists()


def test_without_optuna_there_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'coterie\[optuna\]'"):
        coterie.sweep({"training.lr": "log(0.1,1)"}, **SMALL, optuna=1)


def test_objects_of_ones_own_are_searched() -> None:
    generator = torch.Generator().manual_seed(0)
    data = [(torch.randn(30, 4, generator=generator), torch.arange(30) % 3) for _ in range(2)]
    done = coterie.sweep(
        {"training.lr": "log(0.1,1)"}, data=data, model=torch.nn.Linear(4, 3), rounds=2, optuna=1
    )
    assert len(done.results()) == 1
