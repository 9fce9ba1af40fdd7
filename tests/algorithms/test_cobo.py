"""CoBo: weights and pulls beside torch, and random pairs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import by_hand
import pytest
import torch

from coterie.algorithms.cobo import CoBo
from coterie.algorithms.parts.selection import random_pairs
from coterie.errors import ConfigError
from coterie.simulation import Simulation
from coterie.training import Training

Build = Callable[..., Simulation]


def midpoint_product(run: Simulation, models: list[Any], i: int, j: int) -> float:
    """<grad F_i, grad F_j> half way between two models."""
    gradients = []
    for peer in (i, j):
        middle = by_hand.differentiable(by_hand.mean(models[i], models[j]))
        gradients.append(by_hand.gradient(middle, by_hand.loss(middle, *by_hand.data_of(run, peer))))
    return float(sum((gradients[0][name] * gradients[1][name]).sum() for name in gradients[0]))


def test_weights_follow_gradients_half_way(small_simulation: Build) -> None:
    gamma = 0.7
    run = small_simulation(
        CoBo(gamma=gamma, rho=0.0), "full", training=Training(epochs=0), own_module=by_hand.own_network
    )
    models = [by_hand.of(run.personal(), peer) for peer in range(6)]
    run.step()
    node, learned = run.blocks[0].node, run.blocks[0].state.collaboration
    partner = random_pairs(node).tolist()
    moved = 0
    for i in range(6):
        for j in range(6):
            product = midpoint_product(run, models, i, j) if partner[i] == j else 0.0
            expected = 0.0 if i == j else min(1.0, max(0.0, 1.0 + gamma * product))
            assert float(learned[i, j]) == pytest.approx(expected, abs=1e-6)
            moved += expected not in (0.0, 1.0)
    assert moved >= 2  # some gradients disagree, so that signs matter


def test_a_step_is_pulled_towards_partners(small_simulation: Build) -> None:
    """theta - lr (grad F + rho sum_j w_ij (theta - theta_j)), one full-batch step."""
    run = small_simulation(CoBo(gamma=0.5, rho=0.3), "full", sizes=(4, 7, 5), own_module=by_hand.own_network)
    models = [by_hand.of(run.personal(), peer) for peer in range(3)]
    run.step()
    w = run.blocks[0].state.collaboration.double()
    for i in range(3):
        model = by_hand.differentiable(models[i])
        step = by_hand.gradient(model, by_hand.loss(model, *by_hand.data_of(run, i)))
        for name, value in models[i].items():
            pull = sum(w[i, j] * (value - models[j][name]) for j in range(3))
            torch.testing.assert_close(run.personal()[name][i], value - 0.1 * (step[name] + 0.3 * pull))


@pytest.mark.parametrize("topology", ["full", "ring", "random-regular(3)"])
def test_pairs_are_a_maximal_matching_of_the_links(topology: str, small_simulation: Build) -> None:
    run = small_simulation(CoBo(), topology, sizes=(4,) * 8)
    node, drawn = run.blocks[0].node, set()
    for number in range(20):
        graph = run.topology.graph(number)
        node.begin(number, graph, torch.ones(8, dtype=torch.bool))
        partner, reach = random_pairs(node), graph.adjacency()
        for a in range(8):
            b = int(partner[a])
            if b >= 0:
                assert int(partner[b]) == a
                assert bool(reach[a, b])
        free = (partner < 0).nonzero().flatten()
        assert not bool(reach[free][:, free].any())  # nobody who is left could have met
        drawn.add(tuple(partner.tolist()))
    assert len(drawn) > 5


@pytest.mark.parametrize("settings", [{"gamma": -0.1}, {"rho": -1.0}])
def test_settings_that_cannot_be(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        CoBo(**settings)
