"""What each task means: losses against torch, teachers and distances by hand, data that fit or do not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

import coterie
from coterie.data import from_arrays, from_peers, split
from coterie.errors import ConfigError, DataError
from coterie.learning.tasks import (
    CLASSIFICATION,
    Binary,
    MultiLabel,
    NextToken,
    Regression,
    Task,
    loss_of,
)
from coterie.protocol.node import Batch, Scores
from coterie.training import Training

ROWS, BATCH = 2, 5


def batch_of(y: Tensor, present: Tensor | None = None, **prepared: Tensor) -> Batch:
    index = torch.arange(BATCH).expand(ROWS, BATCH)
    return Batch(y, torch.arange(ROWS), index, present, torch.zeros(ROWS, BATCH, 1), prepared=prepared)


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_losses_are_those_of_torch_row_by_row() -> None:
    z, whole = numbers(ROWS, BATCH, 3), torch.arange(ROWS * BATCH).view(ROWS, BATCH) % 2
    hot, real = (numbers(ROWS, BATCH, 3, seed=1) > 0).float(), numbers(ROWS, BATCH, 3, seed=2)
    present = torch.tensor([[1.0] * 5, [1.0, 1, 1, 0, 0]])
    for task, outputs, y, torchs in (
        (CLASSIFICATION, z, whole, functional.cross_entropy),
        (
            Binary(),
            z[..., :1],
            whole,
            lambda o, t: functional.binary_cross_entropy_with_logits(o[:, 0], t.float()),
        ),
        (MultiLabel(), z, hot, functional.binary_cross_entropy_with_logits),
        (Regression(), z, real, functional.mse_loss),
    ):
        found = task.loss(outputs, batch_of(y, present))
        for row, size in enumerate((5, 3)):
            assert float(found[row]) == pytest.approx(
                float(torchs(outputs[row, :size], y[row, :size])), rel=1e-5
            )


def test_the_loss_of_sequences_is_the_mean_over_tokens_without_padding() -> None:
    z, y = numbers(ROWS, BATCH, 3, 4), torch.arange(ROWS * BATCH * 3).view(ROWS, BATCH, 3) % 4
    y[0, ::2, 2], y[1, 1] = -100, -100
    task = NextToken()
    counted = task.counted(y, torch.ones(ROWS, BATCH))
    found = task.loss(z, batch_of(y, counted))
    weights = torch.tensor([1.0, 2.0, 0.5, 0.0])
    weighted = loss_of(task, Training(class_weights=tuple(weights.tolist()), label_smoothing=0.1), tokens())
    for row in range(ROWS):
        flat, truth = z[row].flatten(0, 1), y[row].flatten()
        assert float(found[row]) == pytest.approx(float(functional.cross_entropy(flat, truth)), rel=1e-5)
        expected = functional.cross_entropy(flat, truth, weight=weights, label_smoothing=0.1)
        assert float(weighted(z, batch_of(y, counted))[row]) == pytest.approx(float(expected), rel=1e-5)


def tokens() -> coterie.Federation:
    x = np.arange(12).reshape(4, 3) % 4
    return from_peers([(x, x), (x, x)], task="next-token")


def test_class_weights_of_yes_and_no_are_those_of_two_classes() -> None:
    z, y = numbers(ROWS, BATCH, 1), torch.arange(ROWS * BATCH).view(ROWS, BATCH) % 3 % 2
    training = Training(class_weights=(0.5, 3.0), label_smoothing=0.2)
    found = loss_of(Binary(), training, two_classes())(z, batch_of(y))
    two = torch.cat((torch.zeros_like(z), z), -1)
    for row in range(ROWS):
        weight = torch.tensor([0.5, 3.0])
        expected = functional.cross_entropy(two[row], y[row], weight=weight, label_smoothing=0.2)
        assert float(found[row]) == pytest.approx(float(expected), rel=1e-5)


def two_classes() -> coterie.Federation:
    x = np.arange(12.0).reshape(6, 2)  # equal samples would all be on one side of the split
    return from_peers([(x, np.arange(6) % 2), (x, np.arange(6) % 2)])


def test_class_weights_of_labels_are_weights_of_their_positives() -> None:
    y = np.array([[1, 0], [1, 0], [1, 1], [0, 0], [0, 0], [0, 0]])
    data = from_peers(
        [{"train": (np.zeros((6, 2)), y), "test": (np.zeros((6, 2)), y)}] * ROWS, task="multi-label"
    )
    z, truth = numbers(ROWS, BATCH, 2), torch.from_numpy(y[:5]).float().expand(ROWS, 5, 2)
    for weights, positive in (("balanced", [1.0, 5.0]), ((2.0, 4.0), [2.0, 4.0])):
        found = loss_of(MultiLabel(), Training(class_weights=weights), data)(z, batch_of(truth))  # type: ignore[arg-type]
        for row in range(ROWS):
            expected = functional.binary_cross_entropy_with_logits(
                z[row], truth[row], pos_weight=torch.tensor(positive)
            )
            assert float(found[row]) == pytest.approx(float(expected), rel=1e-5)


def test_teachers_mean_what_the_task_says() -> None:
    teacher, student = numbers(ROWS, BATCH, 2, seed=4), numbers(ROWS, BATCH, 2, seed=5)
    p, q = (teacher / 2).sigmoid(), (student / 2).sigmoid()
    bernoulli = p * (p / q).log() + (1 - p) * ((1 - p) / (1 - q)).log()
    for task in (MultiLabel(), Binary()):
        found = task.divergence(task.softened(teacher, 2.0), task.softened(student, 2.0))
        torch.testing.assert_close(found, bernoulli.mean(-1))
    task = Regression()
    squared = 4 * task.divergence(task.softened(teacher, 2.0), task.softened(student, 2.0))
    torch.testing.assert_close(squared, (teacher - student).square().mean(-1))
    for task in (MultiLabel(), Regression()):
        said = [task.linear(task.softened(z)) for z in (teacher, student)]
        assert torch.equal(task.linear(task.softened(teacher)), said[0])
        torch.testing.assert_close(task.linear(task.from_linear(said[0])), said[0])
    torch.testing.assert_close(said[0] + said[1], teacher + student)


def test_two_models_are_as_far_apart_as_their_answers() -> None:
    a, b = numbers(1, 1, 1, seed=6), numbers(1, 1, 1, seed=7)
    two = [torch.cat((torch.zeros_like(z), z), -1) for z in (a, b)]
    as_classes = (CLASSIFICATION.answers(two[0]) - CLASSIFICATION.answers(two[1])).square().sum()
    as_binary = (Binary().answers(a) - Binary().answers(b)).square().sum()
    assert float(as_binary) == pytest.approx(float(as_classes), rel=1e-5)
    a, b = numbers(1, 1, 4, seed=6), numbers(1, 1, 4, seed=7)
    distance = (Regression().answers(a) - Regression().answers(b)).square().sum()
    assert float(distance) == pytest.approx(float((a - b).square().mean()), rel=1e-5)


@pytest.mark.parametrize("task", [CLASSIFICATION, Binary(), MultiLabel(), Regression()])
def test_guided_is_the_loss_and_the_divergence_together(task: Task) -> None:
    """Classification computes both in one pass."""
    wide = 1 if task.name == "binary" else 3
    z, teacher = numbers(ROWS, BATCH, wide).double(), numbers(ROWS, BATCH, wide, seed=1).double()
    y: Tensor = torch.arange(ROWS * BATCH).view(ROWS, BATCH) % 2
    if task.targets != "classes":
        y = (numbers(ROWS, BATCH, wide, seed=2) > 0).double()
    own, taught = numbers(ROWS, BATCH, seed=3).abs().double(), numbers(ROWS, BATCH, seed=8).abs().double()
    said = task.softened(teacher, 3.0)
    found = task.guided(z, batch_of(y, **task.guidance(y, own, said, taught)), 3.0)
    expected = own * task.losses(z, y) + taught * task.divergence(said, task.softened(z, 3.0))
    torch.testing.assert_close(found, expected)


def test_rewards_are_shares() -> None:
    loss = torch.tensor([0.0, 1.0, 3.0])
    assert Regression().reward(Scores({"rmse": loss.sqrt()}, loss)).tolist() == [1.0, 0.5, 0.25]
    perplexity = NextToken().reward(Scores({"perplexity": loss.exp()}, loss))
    torch.testing.assert_close(perplexity, (-loss).exp())
    accuracy = torch.tensor([0.2, float("nan"), 0.9])  # NaN: by the loss
    assert CLASSIFICATION.reward(Scores({"accuracy": accuracy}, loss)).tolist() == pytest.approx(
        [0.2, 0.5, 0.9]
    )


def test_numbers_are_dealt_out_by_bins_of_equal_size() -> None:
    y = np.random.default_rng(0).exponential(size=500)
    source = from_arrays(np.zeros((500, 2)), y, task="regression")
    counts = np.bincount(source.group_train, minlength=10)
    assert source.groups.count == 10 == len(source.group_names)
    assert counts.sum() == 400
    assert counts.max() - counts.min() <= 1
    edges = np.quantile(source.y_train[:, 0].double().numpy(), np.arange(1, 10) / 10)
    np.testing.assert_array_equal(
        source.group_test, np.searchsorted(edges, source.y_test[:, 0].numpy(), "right")
    )
    skewed = split(source, "dirichlet(0.1)", peers=5, seed=0).label_histogram().double()
    even = split(source, "iid", peers=5, seed=0).label_histogram().double()
    assert float((skewed / skewed.sum(1, keepdim=True)).std(0).mean()) > 2 * float(
        (even / even.sum(1, keepdim=True)).std(0).mean()
    )
    assert split(source, "pathological(2)", peers=5, seed=0).peers == 5


def test_labels_and_sequences_can_be_dealt_out() -> None:
    hot = np.array([[0, 1, 1], [1, 0, 0], [0, 0, 0], [0, 0, 1]] * 10)
    source = from_arrays(np.zeros((40, 2)), hot, task="multi-label")
    assert set(source.group_train.tolist()) == {0, 1, 2, 3}, "the first label, or none"
    assert split(source, "dirichlet(1)", peers=3, seed=0).targets == "labels"
    sequences = [[1, 2], [3], [2, 2, 2], [0]] * 5
    pieces = from_arrays(np.zeros((20, 2)), sequences, task="next-token")
    assert pieces.y_train.shape[1] == 3
    assert pieces.n_classes == 4
    assert split(pieces, "iid", peers=2, seed=0).y.min() == -100


@pytest.mark.parametrize(
    ("task", "y", "words"),
    [
        (
            "regression",
            [1.0, float("nan"), 2.0],
            "1 samples have a missing, NaN or infinite value, first sample 1",
        ),
        ("regression", ["a", "b", "c"], "must be one number per sample"),
        ("multi-label", [[0, 1], [2, 0], [1, 1]], "neither 0 nor 1, first sample 1"),
        ("multi-label", [0, 1, 1], "must be one row per sample"),
        ("next-token", [[1, -2], [0, 1], [1, 1]], "below 0 that is not -100"),
        ("next-token", [[1, 2], [-100, -100], [1, 1]], "no target at any position, first sample 1"),
        ("next-token", [[0.5, 1.0]] * 3, "must be one row of whole numbers per sample"),
        ("classification", [0.5, 1.5, 2.5], 'say task="regression"'),
    ],
)
def test_targets_that_do_not_fit_get_a_sentence(task: str, y: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        from_peers([(np.zeros((3, 2)), np.array(y) if task != "next-token" else y)], task=task)


def test_data_of_another_task_are_refused() -> None:
    x = np.arange(40.0).reshape(20, 2)
    with pytest.raises(
        DataError, match="task 'regression' is learned from numbers, and the data has classes"
    ):
        coterie.simulate("local", data=from_peers([(x, np.arange(20) % 2)] * 2), task="regression")
    with pytest.raises(ConfigError, match="task 'binary' needs labels 0 and 1, and the data has 3 classes"):
        coterie.simulate("local", data=[(x, np.arange(20) % 3)] * 2, task="binary")
    with pytest.raises(ConfigError, match="task 'regression' has none"):
        coterie.simulate(
            "local", data=[(x, x[:, 0])] * 2, task="regression", training={"label_smoothing": 0.1}
        )
    with pytest.raises(ConfigError, match="unknown task 'regresion'; did you mean regression"):
        coterie.simulate("local", task="regresion")
    with pytest.raises(
        DataError, match="peer 1, train has 2 numbers for each sample, but peer 0, train has 1"
    ):
        from_peers([(x, x[:, 0]), (x, x)], task="regression")


def test_a_task_of_ones_own(tmp_path: Any) -> None:
    file = tmp_path / "own.py"
    file.write_text(
        "from coterie.learning.tasks import Regression\n"
        "class Absolute(Regression):\n"
        "    name = 'absolute'\n"
        "    def losses(self, outputs, y):\n"
        "        return (outputs - y).abs().mean(-1)\n"
        "def no_task(): pass\n"
    )
    rng = np.random.default_rng(0)
    x = rng.normal(size=(30, 3))
    peers = [(x, x.sum(1), x, x.sum(1))] * 2
    run = coterie.simulate("d-psgd", data=peers, task=f"{file}:Absolute", metrics=["mae"], rounds=3)
    torch.testing.assert_close(run.scores_over_time("mae"), run.scores_over_time("loss"))
    assert not run.metric.higher_is_better
    with pytest.raises(ConfigError, match="is no task: make it a subclass"):
        coterie.simulate("local", data=peers, task=f"{file}:no_task")


def test_executors_agree_on_sequences_of_vectors() -> None:
    """A Sequential of linear layers sees every position alone."""
    from torch import nn

    rng = np.random.default_rng(2)
    x, y = rng.normal(size=(14, 3, 4)), rng.integers(3, size=(14, 3))
    y[::3, 2] = -100
    scores = []
    for executor in ("stacked", "looped"):
        net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
        for seed, parameter in enumerate(net.parameters()):
            parameter.data = 0.3 * numbers(*parameter.shape, seed=seed)
        run = coterie.simulate(
            "d-psgd",
            data=[(x, y, x, y)] * 2,
            model=net,
            task="next-token",
            rounds=3,
            execution={"executor": executor},
        )
        scores.append(run.scores_over_time())
    torch.testing.assert_close(*scores, rtol=1e-4, atol=1e-5)
