"""DFedSalt: head and body in turns beside torch, and its limit DFedAvgM-P without momentum."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import by_hand
import pytest
import torch

from coterie.algorithms.dfedavgm import DFedAvgMP
from coterie.algorithms.dfedsalt import DFedSalt
from coterie.errors import ConfigError
from coterie.simulation import Simulation
from coterie.training import Training

Build = Callable[..., Simulation]
SIZES = (4, 7, 5)


def test_a_round_by_hand(small_simulation: Build) -> None:
    rho, lr, head_lr = 0.3, 0.1, 0.2
    algorithm = DFedSalt(rho=rho, head_lr=head_lr)
    run = small_simulation(algorithm, "full", sizes=SIZES, own_module=by_hand.own_network)
    models = [by_hand.of(run.personal(), peer) for peer in range(3)]
    run.step()
    bodies = []
    for peer, start in enumerate(models):
        data = by_hand.data_of(run, peer)
        model = by_hand.differentiable(start)
        step = by_hand.gradient(model, by_hand.loss(model, *data))
        now = {**start, **{name: start[name] - head_lr * step[name] for name in by_hand.HEAD}}
        model = by_hand.differentiable(now)
        step = by_hand.gradient(model, by_hand.loss(model, *data))
        length = torch.stack([step[name].square().sum() for name in by_hand.BODY]).sum().sqrt()
        climbed = {**now, **{name: now[name] + rho * step[name] / length for name in by_hand.BODY}}
        model = by_hand.differentiable(climbed)
        step = by_hand.gradient(model, by_hand.loss(model, *data))
        bodies.append({name: now[name] - lr * step[name] for name in by_hand.BODY})
        for name in by_hand.HEAD:
            torch.testing.assert_close(run.personal()[name][peer], now[name])
    for name, value in by_hand.mean(*bodies).items():
        for peer in range(3):
            torch.testing.assert_close(run.personal()[name][peer], value)


def test_without_sharpness_it_is_dfedavgm_p_without_momentum(small_simulation: Build) -> None:
    training = Training(epochs=2, batch_size=3, lr=0.1)
    ours = small_simulation(DFedSalt(rho=0.0), "ring", training=training)
    theirs = small_simulation(DFedAvgMP(momentum=0.0), "ring", training=training)
    for _ in range(3):
        ours.step(), theirs.step()
    for name, value in theirs.personal().items():
        assert torch.equal(ours.personal()[name], value)


@pytest.mark.parametrize("settings", [{"rho": -0.1}, {"head_epochs": -1}, {"head_lr": -0.1}])
def test_settings_that_cannot_be(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        DFedSalt(**settings)
