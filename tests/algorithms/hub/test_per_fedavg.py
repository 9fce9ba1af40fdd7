"""Per-FedAvg against NumPy: the gradient is taken ahead, on another batch, and applied where one was."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from coterie.catalogue import algorithms
from coterie.errors import ConfigError
from coterie.learning.local_steps import draw_batches
from coterie.randomness import stream

Check = Callable[..., None]
MakeWorld = Callable[..., Any]


def meta_step(small: Any, w: Any, client: int, a: float, b: float) -> Any:
    ahead = small.step(w, small.gradient(w, client), a)
    return small.step(w, small.gradient(ahead, client), b)


@pytest.mark.parametrize("executor", ["stacked", "looped"])
def test_two_rounds_equal_numpy(world: MakeWorld, assert_close: Check, executor: str) -> None:
    """training.steps counts steps of the algorithm, each of two (here full) batches."""
    small, a, b = world(), 0.4, 0.3
    simulation = small.simulation("per-fedavg", {"adaptation_lr": a}, lr=b, steps=3, executor=executor)
    w = small.initial()
    for _ in range(2):
        simulation.step()
        trained = []
        for client in range(3):
            mine = w
            for _ in range(3):
                mine = meta_step(small, mine, client, a, b)
            trained.append(mine)
        w = small.by_samples(trained)
        assert_close(small.weights(simulation.blocks[0].state.params, small.hub), w)


def test_the_two_gradients_come_from_different_batches(world: MakeWorld, assert_close: Check) -> None:
    """One client, batches of one sample: the first is looked ahead on, the second is learned from."""
    small, a, b = world((6,)), 0.4, 0.3
    simulation = small.simulation("per-fedavg", {"adaptation_lr": a}, lr=b, batch_size=1)
    simulation.step()
    draws = stream(0, "batches", 0, torch.tensor([0]))
    first, second = draw_batches(draws, torch.tensor([6]), torch.tensor([2]), 1).index[0, :, 0].tolist()
    assert first != second

    def gradient(model: Any, sample: int) -> Any:
        x, y = small.samples(0)
        delta = small.probabilities(model, 0)[sample] - y[sample]
        return np.outer(delta, x[sample]), delta

    w = small.initial()
    ahead = small.step(w, gradient(w, first), a)
    expected = small.step(w, gradient(ahead, second), b)
    assert_close(small.weights(simulation.blocks[0].state.params, small.hub), expected)


def test_without_looking_ahead_it_takes_fedsgd_steps(world: MakeWorld, assert_close: Check) -> None:
    """a = 0: plain steps with rate b, and the model that is measured is w itself."""
    small, b = world(), 0.3
    simulation = small.simulation("per-fedavg", {"adaptation_lr": 0.0}, lr=b)
    record = simulation.step()
    w = small.initial()
    w = small.by_samples([small.step(w, small.gradient(w, client), b) for client in range(3)])
    assert_close(small.weights(simulation.blocks[0].state.params, small.hub), w)
    scores = simulation.blocks[0].node.evaluate(simulation.personal())
    torch.testing.assert_close(record.evaluations["after_mixing"].loss, scores.loss[:3])


def test_each_client_is_measured_after_one_step_on_its_training_data(
    world: MakeWorld, assert_close: Check
) -> None:
    """The step has rate a whatever the decay is; the federation and the training loss do not notice it."""
    small, a = world(), 0.7
    simulation = small.simulation("per-fedavg", {"adaptation_lr": a}, lr_decay=0.5, momentum=0.9)
    unmeasured = small.simulation("per-fedavg", {"adaptation_lr": a}, lr_decay=0.5, momentum=0.9)
    for _ in range(2):
        record, other = simulation.step(), unmeasured.step(evaluate=False)
        assert torch.equal(record.train_loss, other.train_loss)
    w = small.weights(simulation.blocks[0].state.params, small.hub)
    assert_close(w, small.weights(unmeasured.blocks[0].state.params, small.hub), 0)
    shown = simulation.blocks[0].node.shown["after_mixing"]
    for client in range(3):
        assert_close(small.weights(shown, client), small.step(w, small.gradient(w, client), a))


def test_client_with_one_sample_learns(world: MakeWorld, assert_close: Check) -> None:
    """Both batches of a step are then that sample."""
    small, a, b = world((1,)), 0.4, 0.3
    simulation = small.simulation("per-fedavg", {"adaptation_lr": a}, lr=b, steps=None, epochs=1)
    simulation.step()
    expected = meta_step(small, small.initial(), 0, a, b)
    assert_close(small.weights(simulation.blocks[0].state.params, 1), expected)


@pytest.mark.parametrize("settings", [{"adaptation_lr": -0.1}, {"participation": 0.0}])
def test_impossible_settings_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(settings))):
        algorithms["per-fedavg"](**settings)
