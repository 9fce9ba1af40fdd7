"""FedALA: learned mixing weights beside torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import by_hand
import pytest
import torch

from coterie.algorithms.fedala import FedALA
from coterie.errors import ConfigError
from coterie.simulation import Simulation
from coterie.training import Training

Build = Callable[..., Simulation]
SIZES = (4, 7, 5)
STILL = Training(epochs=0, batch_size=1000)


@pytest.mark.parametrize("adaptive", ["head", "all"])
def test_two_steps_of_the_weights_by_hand(adaptive: Literal["head", "all"], small_simulation: Build) -> None:
    algorithm = FedALA(adaptive=adaptive, eta=2.0, first_epochs=2)
    run = small_simulation(algorithm, "full", sizes=SIZES, training=STILL, own_module=by_hand.own_network)
    models = [by_hand.of(run.personal(), peer) for peer in range(3)]
    run.step()
    mean = by_hand.mean(*models)
    top = by_hand.HEAD if adaptive == "head" else (*by_hand.BODY, *by_hand.HEAD)
    inside = 0
    for peer in range(3):
        d = {name: mean[name] - models[peer][name] for name in top}
        w = {name: torch.ones_like(value) for name, value in d.items()}
        for _ in range(2):
            between = {**mean, **{name: models[peer][name] + w[name] * d[name] for name in top}}
            model = by_hand.differentiable(between)
            step = by_hand.gradient(model, by_hand.loss(model, *by_hand.data_of(run, peer)))
            w = {name: (w[name] - 2.0 * step[name] * d[name]).clamp(0, 1) for name in top}
        for name in mean:
            expected = models[peer][name] + w[name] * d[name] if name in top else mean[name]
            torch.testing.assert_close(run.personal()[name][peer], expected)
        for name in top:
            torch.testing.assert_close(run.blocks[0].state.weights[name][peer], w[name])
            inside += int(((w[name] > 0) & (w[name] < 1)).sum())
    assert inside > 3  # not all of them at the ends


def test_weights_stay_from_round_to_round_and_train_goes_on_from_there(small_simulation: Build) -> None:
    run = small_simulation(FedALA(eta=2.0), "full", sizes=SIZES, own_module=by_hand.own_network)
    run.step()
    first = {name: value.clone() for name, value in run.blocks[0].state.weights.items()}
    start = run.blocks[0].node.shown["after_mixing"]
    for peer in range(3):  # one full-batch step of local training from where the weights led
        model = by_hand.differentiable(by_hand.of(start, peer))
        step = by_hand.gradient(model, by_hand.loss(model, *by_hand.data_of(run, peer)))
        for name, value in model.items():
            torch.testing.assert_close(run.personal()[name][peer], value.detach() - 0.1 * step[name])
    still = small_simulation(
        FedALA(mixing_epochs=0, first_epochs=0), "full", sizes=SIZES, own_module=by_hand.own_network
    )
    still.step()
    assert all(bool((value == 1).all()) for value in still.blocks[0].state.weights.values())
    assert any(bool((value != 1).any()) for value in first.values())


def test_alone_there_is_nothing_to_mix(small_simulation: Build) -> None:
    """Equal models: the mean is one's own, and weights stay as they are."""
    run = small_simulation(FedALA(), "full", sizes=SIZES, training=STILL)
    before = run.personal()
    run.step()
    for name, value in before.items():
        torch.testing.assert_close(run.personal()[name], value)
    assert all(bool((value == 1).all()) for value in run.blocks[0].state.weights.values())


@pytest.mark.parametrize("settings", [{"eta": 0.0}, {"mixing_epochs": -1}, {"first_epochs": -1}])
def test_settings_that_cannot_be(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        FedALA(**settings)
