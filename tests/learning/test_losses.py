"""Class weights and label smoothing against torch's cross_entropy; balanced ones by their formula."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from training_lab import CLASSES, Lab, assert_equal_models, batches_of, dense, peers, seeded

from coterie import simulate
from coterie.errors import ConfigError
from coterie.learning import ExecutorName, Workers
from coterie.learning.tasks import CLASSIFICATION, loss_of
from coterie.training import Training

GIVEN = (0.5, 2.0, 1.0)
SETTINGS: dict[str, dict[str, Any]] = {
    "given": {"class_weights": GIVEN},
    "balanced": {"class_weights": "balanced"},
    "smoothed": {"label_smoothing": 0.2},
    "given-smoothed": {"class_weights": GIVEN, "label_smoothing": 0.2},
    "balanced-smoothed": {"class_weights": "balanced", "label_smoothing": 0.3},
}


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with Workers(2) as workers:
        yield Lab(workers)


def weights(settings: dict[str, Any], y: Tensor) -> Tensor | None:
    """Of one peer with these labels. Balanced: samples / (classes that are there * samples of the class)."""
    asked = settings.get("class_weights")
    if asked != "balanced":
        return None if asked is None else torch.tensor(asked, dtype=torch.double)
    there, counts = np.unique(y.numpy(), return_counts=True)
    found = torch.zeros(CLASSES, dtype=torch.double)
    found[there] = torch.tensor(len(y) / (len(there) * counts))
    return found


@pytest.mark.parametrize("executor", ["stacked", "looped"])
@pytest.mark.parametrize("name", SETTINGS)
def test_training_equals_torch(name: str, executor: ExecutorName, lab: Lab) -> None:
    """Peers of unlike sizes, so that some batches are padded; the peer with one sample lacks classes."""
    settings = SETTINGS[name]
    module, data = seeded(dense), peers()
    training = Training(epochs=3, batch_size=4, lr=0.1, clip=0.0, **settings)
    params, _ = lab.coterie(module, executor, data, training, loss=loss_of(CLASSIFICATION, training, data))
    for peer in range(data.peers):
        net = seeded(dense)
        optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
        own = weights(settings, data.y[data.train.of(peer)])
        for x, y in batches_of(data, peer, training):
            optimiser.zero_grad()
            smoothing = settings.get("label_smoothing", 0.0)
            cross_entropy(net(x), y, weight=own, label_smoothing=smoothing).backward()
            optimiser.step()
        assert_equal_models(params, peer, net)


def test_a_batch_without_weight_teaches_nothing(lab: Lab) -> None:
    module, data = seeded(dense), peers((4,))
    only_last = replace(data, y=torch.zeros_like(data.y))
    training = Training(class_weights=(0.0, 1.0, 1.0))
    params, losses = lab.coterie(
        module, "stacked", only_last, training, loss=loss_of(CLASSIFICATION, training, only_last)
    )
    assert_equal_models(params, 0, module)
    assert losses.tolist() == [0.0]


def test_a_run_uses_them() -> None:
    runs = [
        simulate(
            algorithm=algorithm, peers=3, rounds=1, partition="dirichlet(0.3)", training={"epochs": 1, **more}
        )
        for algorithm in ("local", "pfedkd-wcl")
        for more in ({}, {"class_weights": "balanced", "label_smoothing": 0.1})
    ]
    for plain, weighted in (runs[:2], runs[2:]):
        assert any(not torch.equal(value, weighted.params[name]) for name, value in plain.params.items())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"class_weights": [1.0, 2.0]}, "has 2 numbers, and the data 10 classes"),
        ({"class_weights": [-1.0] * 10}, "0 or more"),
        ({"class_weights": [0.0] * 10}, "not all 0"),
        ({"class_weights": "rare"}, "training.class_weights"),
        ({"label_smoothing": 1.5}, "label_smoothing must be from 0 to 1"),
    ],
)
def test_what_cannot_be_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        simulate(peers=2, rounds=1, training=settings)


def test_nothing_asked_for_is_the_plain_loss() -> None:
    from coterie.learning import cross_entropy as plain

    assert loss_of(CLASSIFICATION, Training(), peers()) == plain
