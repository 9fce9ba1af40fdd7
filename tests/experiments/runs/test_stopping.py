"""Early stopping by validation data: of a whole run, and of each peer's model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peers_in_memory import SMALL, World, simulated
from typer.testing import CliRunner

import coterie
from coterie.cli import app
from coterie.errors import ConfigError
from coterie.experiments.runs.observing import best_measurements, may_stop, reason_to_stop, reported
from coterie.experiments.runs.records import History, Measurement
from coterie.experiments.runs.running import resume
from coterie.experiments.setup.schema import Stopping
from coterie.metric import ACCURACY, Metric
from coterie.testing import run_virtually
from coterie.training import Training

TABLE: dict[str, Any] = {
    "data": "digits",
    "model": "mlr",
    "peers": 5,
    "topology": "ring",
    "partition": "dirichlet(0.3)",
    "splitting": {"validation": 0.3},
    "evaluation": {"every": 1},
    "training": {"lr": 0.5},
    "execution": {"executor": "stacked", "checkpoint_seconds": 0.0},
}
PATIENT = {**TABLE, "rounds": 40, "stopping": {"patience": 3}}
BEST = {**TABLE, "rounds": 8, "stopping": {"keep": "best"}}


def history_of(scores: list[list[float]], rounds: list[int] | None = None, name: str = "accuracy") -> History:
    """scores: of each measured round, a number for each peer; rounds: counted from 0."""
    values = [{(f"validation_{name}", "after_mixing"): torch.tensor(one)} for one in scores]
    places = rounds or list(range(len(scores)))
    return History([Measurement(r, v) for r, v in zip(places, values, strict=True)])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("means", "patience", "least", "ends"),
    [
        ([0.5, 0.6, 0.59, 0.6, 0.58], 2, 0.0, 4),  # round 4 only equals the best, of round 2
        ([0.5, 0.6, 0.59, 0.61, 0.58], 2, 0.0, None),
        ([0.5, 0.6, 0.59, 0.61, 0.6], 2, 0.05, 4),  # 0.61 is no improvement on 0.6
        ([0.5, 0.4], 1, 0.0, 2),
        ([0.5], 1, 0.0, None),
    ],
)
def test_the_rule_by_hand(means: list[float], patience: int, least: float, ends: int | None) -> None:
    stopping = Stopping(patience=patience, min_improvement=least)
    found = None
    for number in range(1, len(means) + 1):
        history = history_of([[mean - 0.1, mean + 0.1, float("nan")] for mean in means[:number]])
        if found is None and reason_to_stop(history, stopping, ACCURACY, "after_mixing"):
            found = number
        expected = found == number + 1 or (number + 1 <= len(means) and ends == number + 1)
        if expected:  # what may be the last round is known before it is played
            assert may_stop(history, stopping, ACCURACY, "after_mixing", number + 1)
    assert found == ends


def test_less_may_be_better_and_rounds_may_be_left_out() -> None:
    error, stopping = Metric("mae", higher_is_better=False), Stopping(patience=10)
    history = history_of([[3.0], [2.0], [2.5]], rounds=[0, 9, 18], name="mae")
    assert reason_to_stop(history, stopping, error, "after_mixing") is None  # nine rounds after the best
    history = history_of([[3.0], [2.0], [2.5], [2.0]], rounds=[0, 9, 18, 19], name="mae")
    reason = reason_to_stop(history, stopping, error, "after_mixing")
    assert reason == "the mean validation mae has not improved for 10 rounds (best: 2 in round 10)"


def test_each_peers_best_measurement_by_hand() -> None:
    nan = float("nan")
    history = history_of([[0.1, 0.9, nan, 0.4], [0.3, 0.2, nan, 0.4], [0.3, 0.5, nan, 0.2]])
    best = best_measurements(history, ACCURACY, "after_mixing")
    assert best.tolist() == [1, 0, 2, 0]  # the first of equals; the last where there are no such data
    found = reported(history, "validation_accuracy", "after_mixing", best)
    assert found is not None
    np.testing.assert_allclose(found.numpy(), [0.3, 0.9, nan, 0.4], rtol=1e-6)
    assert reported(history, "accuracy", "after_mixing", best) is None


class Interrupted(Exception):
    pass


def interrupt(record: Any, history: Any) -> None:
    if record.round == 1:
        raise Interrupted


def test_a_run_ends_when_validation_data_say_so(tmp_path: Path) -> None:
    """Where the rule says, from the records of a run that goes on; up to there both have the same bits."""
    whole = coterie.simulate("d-psgd", **{**PATIENT, "stopping": {}})
    run = coterie.simulate("d-psgd", run_dir=tmp_path / "r", **PATIENT)
    means = whole.scores_over_time("validation_accuracy").mean(1).tolist()
    best = [means.index(max(means[: n + 1])) for n in range(len(means))]
    ends = next(n + 1 for n in range(len(means)) if n - best[n] >= 3)
    result = run.result()
    assert result["rounds"] == len(run.history.seconds) == ends < 40
    assert torch.equal(run.scores_over_time(), whole.scores_over_time()[:ends])
    assert f"has not improved for 3 rounds (best: {100 * max(means[:ends]):.1f}" in result["stopped"]
    assert result["global_accuracy"] is not None  # as in a run's last round
    again = resume(tmp_path / "r").result()  # nothing is run; times in records are rounded
    assert {k: v for k, v in again.items() if "seconds" not in k} == {
        k: v for k, v in result.items() if "seconds" not in k
    }
    with pytest.raises(Interrupted):
        coterie.simulate("d-psgd", run_dir=tmp_path / "again", observer=interrupt, **PATIENT)
    resumed = resume(tmp_path / "again")
    assert resumed.stopped == run.stopped
    assert all(torch.equal(resumed.params[name], value) for name, value in run.params.items())


def test_a_run_that_was_killed_as_it_ended_does_not_go_on(tmp_path: Path) -> None:
    """After its last checkpoint, before its result was written."""
    run = coterie.simulate("d-psgd", run_dir=tmp_path / "r", **PATIENT)
    (tmp_path / "r" / "result.json").unlink()
    assert resume(tmp_path / "r").result()["rounds"] == run.result()["rounds"]


@pytest.mark.parametrize("algorithm", ["local", "d-psgd"])
def test_each_peer_keeps_its_best_model(algorithm: str, tmp_path: Path) -> None:
    plain = coterie.simulate(algorithm, **{**BEST, "stopping": {}})
    run = coterie.simulate(algorithm, run_dir=tmp_path / "r", **BEST)
    scores = run.scores_over_time("validation_accuracy")
    assert torch.equal(scores, plain.scores_over_time("validation_accuracy"))  # training is not touched
    best = scores.double().numpy().argmax(0)  # the first of equals
    assert len(set(best)) > 1, "peers are to differ, or nothing is tested"
    expected = run.scores_over_time()[best, torch.arange(5)]
    assert torch.equal(run.personal_accuracy, expected)
    result = run.result()
    assert result["reported"] == "best"
    assert result["personal_accuracy"]["per_peer"] == pytest.approx(expected.tolist())
    assert result["validation_accuracy"]["per_peer"] == pytest.approx(scores.max(0).values.tolist())
    assert result["global_accuracy"] is not None
    federation = coterie.split(
        coterie.load("digits", peers=5, seed=0), "dirichlet(0.3)", peers=5, seed=0, validation=0.3
    )
    for peer in range(5):  # the models themselves, by plain PyTorch
        run.module.load_state_dict(run.model(peer))
        test = federation.test.of(peer)
        with torch.no_grad():
            right = run.module(federation.x[test]).argmax(1) == federation.y[test]
        assert float(right.double().mean()) == pytest.approx(float(expected[peer]), abs=1e-6)
    stored = coterie.open(tmp_path / "r")
    assert torch.equal(stored.personal_accuracy, expected)
    assert all(torch.equal(stored.params[name], value) for name, value in run.params.items())


def test_best_models_survive_an_interruption(tmp_path: Path) -> None:
    whole = coterie.simulate("d-psgd", **BEST)
    with pytest.raises(Interrupted):
        coterie.simulate("d-psgd", run_dir=tmp_path / "r", observer=interrupt, **BEST)
    resumed = resume(tmp_path / "r")
    assert all(torch.equal(resumed.params[name], value) for name, value in whole.params.items())
    assert torch.equal(resumed.personal_scores, whole.personal_scores)


@pytest.mark.parametrize("name", ["local", "d-psgd", "fedper"])
def test_real_peers_keep_the_models_of_the_simulator(name: str, tmp_path: Path) -> None:
    training = Training(epochs=2, batch_size=5, lr=0.5)
    world = World(name, tmp_path, SMALL, training=training, keep_best=True)
    run_virtually(world.play())
    expected, _, _ = simulated(world)
    for number in range(world.peers):
        own = world.peers_by_number[number]
        assert own.node.best is not None
        kept = own.journal.remembered()
        for leaf, value in own.node.best.params.items():
            torch.testing.assert_close(value[0], expected[leaf][number], rtol=1e-4, atol=1e-5)
            assert torch.equal(kept[f"best model/params/{leaf}"], value)


def test_a_swarm_reports_what_the_simulator_reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    options = [
        *("--algorithm", "local", "--data", "digits", "--model", "mlr", "--peers", "2", "--rounds", "6"),
        *("--lr", "2.0", "--set", "splitting.validation=0.3", "--set", "stopping.keep=best", "--json"),
    ]
    found = []
    for command in ("run", "swarm"):
        done = CliRunner().invoke(app, [command, *options, *(["--no-plots"] if command == "run" else [])])
        assert done.exit_code == 0, done.stderr
        found.append(json.loads(done.stdout))
    for key in ("personal_accuracy", "validation_accuracy", "reported"):
        ours, theirs = (one[key] if key == "reported" else one[key]["per_peer"] for one in found)
        assert theirs == (ours if key == "reported" else pytest.approx(ours, abs=1e-6))


def test_the_table_says_which_models_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    options = ["--model", "mlr", "--peers", "3", "--rounds", "2", "--set", "splitting.validation=0.3"]
    for keep, said in (("last", False), ("best", True)):
        done = CliRunner().invoke(app, ["run", *options, "--set", f"stopping.keep={keep}", "--no-plots"])
        assert ("did best on its validation data" in " ".join(done.stdout.split())) is said


@pytest.mark.parametrize("stopping", [{"patience": 2}, {"keep": "best"}])
def test_it_needs_validation_data(stopping: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"no peer has any; set some aside with splitting.validation"):
        coterie.simulate("local", **{**TABLE, "splitting": {}, "rounds": 2, "stopping": stopping})


def test_no_real_peer_knows_the_mean_of_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    options = ["--peers", "2", "--rounds", "2", "--set", "splitting.validation=0.2"]
    done = CliRunner().invoke(app, ["swarm", *options, "--set", "stopping.patience=2"])
    assert done.exit_code != 0
    assert "stopping.patience needs the mean validation score of all peers" in done.stderr
