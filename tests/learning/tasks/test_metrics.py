"""Every metric of every task against scikit-learn, peer by peer, also where peers have unequal numbers."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn import metrics as sk
from torch import nn

import coterie
from coterie.errors import ConfigError
from coterie.experiments.runs.result import distribution
from coterie.learning import Executor
from coterie.metric import ACCURACY, Metric

Array = NDArray[Any]
SIZES, FEATURES = (40, 25, 60), 4  # test samples of the peers


def targets(task: str, x: Array, rng: np.random.Generator) -> Array:
    signal = x @ np.array([[1.0, -1, 0.5], [0.5, 1, -1], [0, 0.3, 1], [1, 1, 1]]) + rng.normal(
        size=(len(x), 3)
    )
    if task == "classification":
        return np.asarray(signal.argmax(1))
    if task == "binary":
        return (signal[:, 0] > 0).astype(int)
    return (signal > 0.3).astype(int) if task == "multi-label" else signal[:, :2]


def scored(task: str, *names: str, **more: Any) -> tuple[coterie.Run, list[tuple[Array, Array]]]:
    """A run that learns nothing, and each peer's test targets and the outputs of its model on them."""
    rng, peers = np.random.default_rng(3), []
    for size in SIZES:
        x, x_test = rng.normal(size=(30, FEATURES)), rng.normal(size=(size, FEATURES))
        peers.append((x, targets(task, x, rng), x_test, targets(task, x_test, rng)))
    run = coterie.simulate(
        "local",
        data=peers,
        task=task,
        metrics=list(names),
        model="mlp(8)",
        rounds=1,
        training={"lr": 0.3},
        **more,
    )
    pairs = []
    for peer, (_, _, x, y) in enumerate(peers):
        module = run.module
        state = torch.func.functional_call(module, run.model(peer), torch.from_numpy(x).float())
        pairs.append((y, state.detach().double().numpy()))
    return run, pairs


def softmax(z: Array) -> Array:
    e = np.exp(z - z.max(1, keepdims=True))
    return np.asarray(e / e.sum(1, keepdims=True))


def sigmoid(z: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-z)))


Expected = Callable[[Array, Array], float]
CLASSIFICATION: dict[str, Expected] = {
    "accuracy": lambda y, z: sk.accuracy_score(y, z.argmax(1)),
    "balanced-accuracy": lambda y, z: sk.balanced_accuracy_score(y, z.argmax(1)),
    "macro-f1": lambda y, z: sk.f1_score(y, z.argmax(1), average="macro"),
    "auc": lambda y, z: sk.roc_auc_score(y, softmax(z), multi_class="ovr"),
    "average-precision": lambda y, z: sk.average_precision_score(np.eye(3)[y], softmax(z)),
    "log-loss": lambda y, z: sk.log_loss(y, softmax(z), labels=[0, 1, 2]),
}
BINARY: dict[str, Expected] = {
    "accuracy": lambda y, z: sk.accuracy_score(y, z[:, 0] > 0),
    "balanced-accuracy": lambda y, z: sk.balanced_accuracy_score(y, z[:, 0] > 0),
    "macro-f1": lambda y, z: sk.f1_score(y, z[:, 0] > 0, average="macro"),
    "auc": lambda y, z: sk.roc_auc_score(y, z[:, 0]),
    "average-precision": lambda y, z: sk.average_precision_score(y, z[:, 0]),
    "log-loss": lambda y, z: sk.log_loss(y, sigmoid(z[:, 0])),
}
MULTI_LABEL: dict[str, Expected] = {
    "accuracy": lambda y, z: 1 - sk.hamming_loss(y, z > 0),
    "macro-f1": lambda y, z: sk.f1_score(y, z > 0, average="macro"),
    "auc": lambda y, z: sk.roc_auc_score(y, z, average="macro"),
    "average-precision": lambda y, z: sk.average_precision_score(y, z, average="macro"),
    "log-loss": lambda y, z: float(np.mean([sk.log_loss(y[:, k], sigmoid(z[:, k])) for k in range(3)])),
}
REGRESSION: dict[str, Expected] = {
    "rmse": lambda y, z: sk.mean_squared_error(y, z) ** 0.5,
    "mae": sk.mean_absolute_error,
    "r2": sk.r2_score,
}


@pytest.mark.parametrize(
    ("task", "expected"),
    [
        ("classification", CLASSIFICATION),
        ("binary", BINARY),
        ("multi-label", MULTI_LABEL),
        ("regression", REGRESSION),
    ],
)
def test_metrics_equal_those_of_scikit_learn(task: str, expected: dict[str, Expected]) -> None:
    run, pairs = scored(task, *expected)
    assert run.metric.name == next(iter(expected)).replace("-", "_")
    for name, function in expected.items():
        found = run.scores_over_time(name.replace("-", "_"), "after_mixing")[-1]
        for peer, (y, z) in enumerate(pairs):
            assert float(found[peer]) == pytest.approx(function(y, z), rel=1e-4), (name, peer)


def test_perplexity_and_accuracy_leave_padding_out() -> None:
    rng = np.random.default_rng(5)
    x, y = rng.integers(4, size=(2, 20, 3)), rng.integers(4, size=(2, 20, 3))
    y[:, ::2, 2], y[:, ::4, 1] = -100, -100

    class Tagger(nn.Module):
        def __init__(self, shape: tuple[int, ...], n_classes: int) -> None:
            super().__init__()
            self.table = nn.Embedding(4, n_classes)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.table(x)

    run = coterie.simulate(
        "local",
        data=[(a, b, a, b) for a, b in zip(x, y, strict=True)],
        task="next-token",
        metrics=["perplexity", "accuracy", "log-loss"],
        model=Tagger,
        rounds=2,
    )
    for peer in range(2):
        logits = run.model(peer)["table.weight"].double().numpy()[x[peer]]
        real = y[peer] != -100
        z, truth = logits[real], y[peer][real]
        expected = sk.log_loss(truth, softmax(z), labels=range(4))
        found = {
            name: float(run.scores_over_time(name)[-1][peer])
            for name in ("perplexity", "log_loss", "accuracy")
        }
        assert found["log_loss"] == pytest.approx(expected, rel=1e-5)
        assert found["perplexity"] == pytest.approx(np.exp(expected), rel=1e-5)
        assert found["accuracy"] == pytest.approx(sk.accuracy_score(truth, z.argmax(1)))


def test_a_peer_whose_test_data_have_one_class_has_no_auc() -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(12, 2))
    mixed, alone = np.arange(12) % 2, np.ones(12, dtype=int)
    run = coterie.simulate(
        "local", data=[(x, mixed, x, mixed), (x, mixed, x, alone)], task="binary", metrics=["auc"], rounds=1
    )
    known = run.personal_scores.isnan().tolist()
    assert known == [False, True]
    assert run.result()["personal_auc"]["per_peer"][1] is None


def test_of_classes_only_those_that_occur_count() -> None:
    from coterie.learning.tasks.metrics import metric_named
    from coterie.learning.tasks.task import CLASSIFICATION as task

    y, p = (
        np.array([0, 0, 1, 1]),
        np.array([[0.6, 0.3, 0.1], [0.3, 0.4, 0.3], [0.2, 0.5, 0.3], [0.5, 0.1, 0.4]]),
    )
    found = metric_named("auc", task).of_all(y, p)  # type: ignore[attr-defined]
    assert found == pytest.approx((sk.roc_auc_score(y == 0, p[:, 0]) + sk.roc_auc_score(y == 1, p[:, 1])) / 2)
    assert metric_named("Balanced-Accuracy", task).of_all(y, p) == pytest.approx(0.5)  # type: ignore[attr-defined]


OWN = """
def within(y, predictions, bound: float):
    return float((abs(y - predictions) < bound).mean())
within.percent = True

class Quantile:
    higher_is_better = False

    def __init__(self, share: float = 0.5):
        self.share = share

    def __call__(self, y, predictions):
        return sorted(abs(y - predictions).flatten())[int(self.share * y.size)]

class Mute:
    pass

def within_one(y, predictions):
    return float((abs(y - predictions) < 1).mean())
within_one.percent = True

def worst_error(y, predictions):
    return abs(y - predictions).max()
worst_error.higher_is_better = False

def fails(y, predictions):
    raise KeyError("no such")

def no_number(y, predictions):
    return 1.0, 2.0

def two_numbers(y, predictions):
    return (y - predictions)[:2, 0]
"""


def test_ones_own_functions(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(OWN)
    run, pairs = scored("regression", f"{file}:worst_error", f"{file}:within_one", "rmse")
    assert run.metric == Metric("worst_error", higher_is_better=False) or run.metric.name == "worst_error"
    assert not run.metric.higher_is_better
    for peer, (y, z) in enumerate(pairs):
        assert float(run.personal_scores[peer]) == pytest.approx(abs(y - z).max(), rel=1e-4)
        share = run.scores_over_time("within_one")[-1][peer]
        assert float(share) == pytest.approx((abs(y - z) < 1).mean(), abs=0.02)
    spread = run.result()["personal_worst_error"]
    assert spread["worst_decile"] == pytest.approx(max(spread["per_peer"]))


def test_ones_own_functions_and_classes_take_arguments(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(OWN)
    names = ["within(0.5)", "within(bound=2)", "Quantile(0.9)", "Quantile"]
    run, pairs = scored("regression", *(f"{file}:{name}" for name in names))
    assert [run.metric.name, run.metric.percent] == ["within_0_5", True]
    for peer, (y, z) in enumerate(pairs):
        wrong = np.sort(abs(y - z), axis=None)
        expected = {"within_0_5": (wrong < 0.5).mean(), "within_bound_2": (wrong < 2).mean()}
        expected |= {"Quantile_0_9": wrong[int(0.9 * y.size)], "Quantile": wrong[y.size // 2]}
        for name, value in expected.items():
            found = float(run.scores_over_time(name)[-1][peer])
            assert found == pytest.approx(value, rel=1e-4, abs=0.02), name
    assert not scored("regression", f"{file}:Quantile(0.9)")[0].metric.higher_is_better


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("within", r"within' raised TypeError: .*missing 1 required positional argument: 'bound'"),
        ("within(wide)", "bound must be float, not 'wide'"),
        ("within(bond=1)", "has no argument 'bond'; did you mean bound"),
        ("within(1,2)", "too many positional arguments"),
        ("within(y=1)", "y is given by Coterie"),
        ("Quantile(half)", "share must be float, not 'half'"),
        ("Mute", r"give the class a method __call__\(self, y, predictions\)"),
    ],
)
def test_arguments_of_metrics_that_cannot_be(name: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(OWN)
    with pytest.raises(ConfigError, match=words):
        scored("regression", f"{file}:{name}")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("fails", r"fails' raised KeyError: 'no such'; it was given \(40, 2\) float32 targets y and"),
        ("no_number", "no_number' must return a number, not tuple"),
        ("two_numbers", "two_numbers' must return a number, not ndarray"),
    ],
)
def test_ones_own_functions_are_tried_before_anything_trains(
    name: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "own.py"
    file.write_text(OWN)
    monkeypatch.setattr(Executor, "train", lambda *_, **__: pytest.fail("something trained"))
    with pytest.raises(ConfigError, match=words):
        scored("regression", "rmse", f"{file}:{name}")


@pytest.mark.parametrize(
    ("task", "names", "words"),
    [
        ("regression", ["auc"], "task 'regression' has no metric 'auc'"),
        ("classification", ["acuracy"], "did you mean accuracy"),
        ("binary", ["auc", "AUC"], "'auc' is named twice"),
        ("next-token", ["macro-f1"], "task 'next-token' has no metric"),
    ],
)
def test_mistakes_get_a_sentence(task: str, names: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        scored(task, *names)


def test_a_missing_scikit_learn_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.metrics", None)
    with pytest.raises(ConfigError, match=r"pip install 'coterie\[metrics\]'"):
        scored("binary", "auc")


def test_the_worst_decile_is_the_highest_where_lower_is_better() -> None:
    values = torch.arange(20.0)
    for metric, worst in ((ACCURACY, 0.5), (Metric("rmse", False), 18.5)):
        found = distribution(values, metric)
        assert found is not None
        assert found["worst_decile"] == worst
        assert np.mean(metric.worst(values.tolist())) == worst
