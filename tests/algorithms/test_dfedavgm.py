"""DFedAvgM-P: the body mixes, the head stays; that it equals DFedPGP on regular graphs is tested there.

DFedAvgM itself is in test_baselines.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from coterie.algorithms.dfedavgm import DFedAvgM, DFedAvgMP
from coterie.algorithms.local import Local
from coterie.errors import ConfigError
from coterie.simulation import Simulation
from coterie.training import Training

Build = Callable[..., Simulation]
BODY, HEAD = ("0.weight", "0.bias"), ("2.weight", "2.bias")


def shown_after_local(simulation: Simulation) -> dict[str, torch.Tensor]:
    return simulation.blocks[0].node.shown["after_local"]


@pytest.mark.parametrize("mixing", ["uniform", "metropolis"])
def test_only_the_body_is_mixed(small_simulation: Build, mixing: str) -> None:
    """A star-shaped graph given as pairs: node 0 has two neighbours, the others one, peer 3 none."""
    simulation = small_simulation(DFedAvgMP(mixing=mixing), [(0, 1), (0, 2)], sizes=(4, 5, 6, 3))
    third = 1 / 3
    w = {
        "uniform": np.array([[third, third, third, 0], [0.5, 0.5, 0, 0], [0.5, 0, 0.5, 0], [0, 0, 0, 1]]),
        "metropolis": np.array(
            [[third, third, third, 0], [third, 2 * third, 0, 0], [third, 0, 2 * third, 0], [0, 0, 0, 1]]
        ),
    }[mixing]
    for _ in range(3):
        simulation.step()
        trained, mixed = shown_after_local(simulation), simulation.personal()
        for name in BODY:
            expected = np.einsum("ij,j...->i...", w, trained[name].numpy())
            np.testing.assert_allclose(mixed[name], expected, rtol=1e-6, atol=1e-7)
        for name in HEAD:
            assert torch.equal(mixed[name], trained[name])


def test_alternating_epochs_with_momentum_by_hand(small_simulation: Build) -> None:
    """Full batches: K_v = 2 head steps, then 3 body steps, each phase with its own fresh momentum."""
    training = Training(epochs=3, batch_size=100, lr=0.1, clip=0.0, weight_decay=0.01)
    simulation = small_simulation(DFedAvgMP(head_epochs=2, head_lr=0.05), "ring", training=training)
    x = simulation.federation.x[simulation.federation.train.of(2)]
    y = simulation.federation.y[simulation.federation.train.of(2)]
    weights = {name: value[2].clone().requires_grad_() for name, value in simulation.personal().items()}
    for names, lr, steps in ((HEAD, 0.05, 2), (BODY, 0.1, 3)):
        optimiser = torch.optim.SGD([weights[n] for n in names], lr=lr, momentum=0.9, weight_decay=0.01)
        for _ in range(steps):
            hidden = torch.tanh(x @ weights["0.weight"].T + weights["0.bias"])
            logits = hidden @ weights["2.weight"].T + weights["2.bias"]
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(logits, y).backward()
            optimiser.step()
    simulation.step()
    for name, value in weights.items():
        torch.testing.assert_close(shown_after_local(simulation)[name][2], value.detach())


def test_without_body_epochs_and_head_epochs_nothing_but_mixing(small_simulation: Build) -> None:
    simulation = small_simulation(DFedAvgMP(head_epochs=0), "ring", training=Training(epochs=0))
    before = simulation.personal()
    simulation.step()
    for name, value in before.items():
        torch.testing.assert_close(simulation.personal()[name], value)  # equal models are a fixed point


def test_heads_become_different_where_bodies_become_equal(small_simulation: Build) -> None:
    simulation = small_simulation(DFedAvgMP(), "full", sizes=(4, 5, 6))
    simulation.step()
    models = simulation.personal()
    for one, other in ((0, 1), (0, 2), (1, 2)):
        for name in HEAD:
            assert not torch.allclose(models[name][one], models[name][other])
        for name in BODY:
            torch.testing.assert_close(models[name][one], models[name][other])


def test_isolated_peers_train_alone(small_simulation: Build) -> None:
    """Local moves body and head at once from the same point: the same first step of the body."""
    ours = small_simulation(DFedAvgMP(momentum=0.0, head_epochs=0), np.zeros((3, 3)), sizes=(4, 5, 6))
    alone = small_simulation(Local(), "full", sizes=(4, 5, 6))
    start = ours.personal()
    ours.step(), alone.step()
    for name in BODY:
        torch.testing.assert_close(ours.personal()[name], alone.personal()[name])
    for name in HEAD:  # no epochs, no mixing
        assert torch.equal(ours.personal()[name], start[name])


def test_settings_that_cannot_be() -> None:
    with pytest.raises(ConfigError, match="head_epochs"):
        DFedAvgMP(head_epochs=-1)


@pytest.mark.parametrize("algorithm", [DFedAvgM, DFedAvgMP])
def test_adam_has_no_use_for_their_momentum(
    small_simulation: Build, algorithm: Callable[..., DFedAvgM]
) -> None:
    adam = Training(batch_size=3, optimizer="adam")
    with pytest.raises(ConfigError, match=r"momentum of its own, 0\.9.*'adam'"):
        small_simulation(algorithm(), "ring", training=adam).step()
    small_simulation(algorithm(momentum=0.0), "ring", training=adam).step()
