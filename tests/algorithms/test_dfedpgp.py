"""DFedPGP against a round worked out in NumPy, and its limiting cases."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import by_hand
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from coterie.algorithms.dfedavgm import DFedAvgMP
from coterie.algorithms.dfedpgp import DFedPGP
from coterie.algorithms.osgp import OSGP
from coterie.algorithms.parts.push_sum import check_mass
from coterie.errors import ConfigError, ContractError
from coterie.protocol import Exchange
from coterie.protocol.trees import leaves
from coterie.simulation import Simulation
from coterie.topology import Churn, MessageLoss, make
from coterie.training import Training

Build = Callable[..., Simulation]
STILL = Training(epochs=1, lr=0.0)
BODY, HEAD = ("0.weight", "0.bias"), ("2.weight", "2.bias")


def state_of(simulation: Simulation) -> Any:
    return simulation.blocks[0].state


def spread(simulation: Simulation, seed: int = 0) -> None:
    """Give every peer another model, so that mixing has something to do."""
    state = state_of(simulation)
    noise = torch.Generator().manual_seed(seed)
    params = {
        name: value + torch.randn(value.shape, generator=noise).to(value.dtype)
        for name, value in state.params.items()
    }
    simulation.blocks[0].state = dataclasses.replace(state, params=params)


def totals(simulation: Simulation) -> tuple[float, dict[str, Tensor]]:
    """The sums over all peers of mu and of u = mu z (body only)."""
    state = state_of(simulation)
    sums = {name: torch.einsum("r,r...->...", state.mass, state.params[name]) for name in BODY}
    return float(state.mass.sum()), sums


def numpy_gradients(w: dict[str, np.ndarray], x: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
    """Mean cross-entropy of tanh(x W0 + b0) W2 + b2, differentiated by hand."""
    hidden = np.tanh(x @ w["0.weight"].T + w["0.bias"])
    logits = hidden @ w["2.weight"].T + w["2.bias"]
    p = np.exp(logits - logits.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    p[np.arange(len(y)), y] -= 1
    p /= len(y)
    back = (p @ w["2.weight"]) * (1 - hidden**2)
    return {
        "2.weight": p.T @ hidden,
        "2.bias": p.sum(0),
        "0.weight": back.T @ x,
        "0.bias": back.sum(0),
    }


def numpy_round(
    simulation: Simulation, lr: float, literal: bool
) -> tuple[list[dict[str, np.ndarray]], np.ndarray]:
    """Algorithm 1 of the paper, one head and one body step, from the simulation's state and graph."""
    state, data = state_of(simulation), simulation.federation
    mass = state.mass.numpy()
    models = [{name: value[i].numpy() for name, value in state.params.items()} for i in range(len(mass))]
    for i, w in enumerate(models):
        x, y = data.x[data.train.of(i)].numpy(), data.y[data.train.of(i)].numpy()
        g = numpy_gradients(w, x, y)
        w |= {name: w[name] - lr * g[name] for name in HEAD}
        g = numpy_gradients(w, x, y)
        rate = lr / mass[i] if literal else lr
        w |= {name: w[name] - rate * g[name] for name in BODY}
    graph = simulation.topology.graph(simulation.round)
    shares = np.eye(len(mass)) + graph.adjacency().numpy()  # [receiver, sender]
    shares = shares / shares.sum(0)
    new_mass = shares @ mass
    for name in BODY:
        u = np.stack([mass[i] * w[name] for i, w in enumerate(models)])
        mixed = np.einsum("ij,j...->i...", shares, u)
        for i, w in enumerate(models):
            w[name] = mixed[i] / new_mass[i]
    return models, new_mass


@pytest.mark.parametrize("literal", [False, True])
def test_rounds_equal_numpy(small_simulation: Build, literal: bool) -> None:
    simulation = small_simulation(DFedPGP(literal=literal), "directed(2)")
    spread(simulation)
    for _ in range(4):  # mass differs from 1 from the second round on
        expected, mass = numpy_round(simulation, 0.1, literal)
        simulation.step()
        state = state_of(simulation)
        np.testing.assert_allclose(state.mass, mass, rtol=1e-12)
        for i, w in enumerate(expected):
            for name, value in w.items():
                np.testing.assert_allclose(state.params[name][i], value, rtol=1e-9, atol=1e-12)
    assert float(state_of(simulation).mass.min()) < 0.9


def test_mass_and_values_are_conserved(small_simulation: Build) -> None:
    simulation = small_simulation(DFedPGP(head_epochs=0), "directed(2)", training=STILL)
    spread(simulation)
    _, before = totals(simulation)
    for _ in range(8):
        simulation.step(evaluate=False)
        mass, after = totals(simulation)
        assert mass == pytest.approx(6, abs=1e-12)
        for name in BODY:
            torch.testing.assert_close(after[name], before[name], rtol=1e-10, atol=1e-10)
    assert bool((state_of(simulation).mass > 0).all())


@pytest.mark.parametrize(("churn", "loss"), [(0.0, 0.4), (0.4, 0.0), (0.3, 0.3)])
def test_nothing_is_lost_with_messages_and_absent_peers(
    small_simulation: Build, churn: float, loss: float
) -> None:
    topology = MessageLoss(Churn(make("directed(3)", peers=6, seed=2), churn, 5), loss, 5)
    simulation = small_simulation(DFedPGP(head_epochs=0), topology, training=STILL)
    spread(simulation)
    _, before = totals(simulation)
    lost = 0
    for _ in range(10):
        record = simulation.step(evaluate=False)
        lost += sum(int((~traffic.delivered).sum()) for traffic in record.traffic)
        mass, after = totals(simulation)
        assert mass == pytest.approx(6, abs=1e-12)
        for name in BODY:
            torch.testing.assert_close(after[name], before[name], rtol=1e-10, atol=1e-10)
    assert lost > 10


def test_without_learning_bodies_tend_to_the_mean(small_simulation: Build) -> None:
    simulation = small_simulation(DFedPGP(), "directed(10)", sizes=(3,) * 100, training=STILL)
    spread(simulation)
    before = state_of(simulation).params
    for _ in range(12):
        simulation.step(evaluate=False)
    after = state_of(simulation).params
    for name in BODY:
        assert float((after[name] - before[name].mean(0)).abs().max()) < 1e-5
    for name in HEAD:
        assert torch.equal(after[name], before[name])


@pytest.mark.parametrize("topology", ["exponential", "exponential(one)", "ring"])
def test_regular_graphs_keep_mass_one(small_simulation: Build, topology: str) -> None:
    simulation = small_simulation(DFedPGP(), topology)
    for _ in range(6):
        record = simulation.step(evaluate=False)
        torch.testing.assert_close(record.diagnostics["mass"], torch.ones(6).double(), rtol=0, atol=1e-12)


def test_equals_dfedavgm_p_on_a_regular_undirected_graph(small_simulation: Build) -> None:
    training = Training(epochs=2, batch_size=3, lr=0.1, momentum=0.9, weight_decay=1e-3)
    directed = small_simulation(DFedPGP(), "ring", training=training)
    undirected = small_simulation(DFedAvgMP(momentum=0.9), "ring", training=training)
    for _ in range(4):
        ours, theirs = directed.step(), undirected.step()
        for name, value in undirected.personal().items():
            torch.testing.assert_close(directed.personal()[name], value, rtol=1e-10, atol=1e-12)
        for point, evaluation in theirs.evaluations.items():
            torch.testing.assert_close(ours.evaluations[point].loss, evaluation.loss)


def test_empty_head_is_osgp(small_simulation: Build) -> None:
    training = Training(epochs=2, batch_size=3, lr=0.1, momentum=0.5)
    partial = small_simulation(DFedPGP(), "directed(2)", training=training)
    node = partial.blocks[0].node
    node.body, node.head = (*node.body, *node.head), ()
    full = small_simulation(OSGP(tau=0), "directed(2)", training=training)
    for _ in range(4):
        partial.step(), full.step()
        assert torch.equal(state_of(partial).mass, state_of(full).mass)
        for name, value in full.personal().items():
            assert torch.equal(partial.personal()[name], value), name


def test_without_body_epochs_the_body_only_mixes(small_simulation: Build) -> None:
    training = Training(epochs=0, batch_size=3, lr=0.1)
    trains_head = small_simulation(DFedPGP(head_epochs=2), "directed(2)", training=training)
    never = small_simulation(DFedPGP(head_epochs=0), "directed(2)", training=training)
    spread(trains_head), spread(never)
    start = state_of(never).params
    for _ in range(3):
        trains_head.step(), never.step()
    for name in BODY:
        assert torch.equal(state_of(trains_head).params[name], state_of(never).params[name])
        assert not torch.equal(start[name], state_of(never).params[name])
    for name in HEAD:
        assert not torch.equal(start[name], state_of(trains_head).params[name])
        assert torch.equal(start[name], state_of(never).params[name])


def test_the_head_is_in_no_payload(small_simulation: Build) -> None:
    simulation = small_simulation(DFedPGP(), "directed(2)")
    state, node = state_of(simulation), simulation.blocks[0].node
    node.begin(0, simulation.topology.graph(0), torch.ones(6, dtype=torch.bool))
    exchange = next(simulation.algorithm.round(state, node))
    assert isinstance(exchange, Exchange)
    assert {place for place, _ in leaves(exchange.payload)} == {"values/0.weight", "values/0.bias", "mass/mu"}


def test_body_statistics_travel_and_stay_frozen_in_head_epochs(small_simulation: Build) -> None:
    """BatchNorm's statistics belong to the body: averaged with it, and untouched by the head's epochs."""
    network = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2)).double()
    frozen = small_simulation(
        DFedPGP(head_epochs=3), "directed(2)", training=Training(epochs=0, batch_size=2), network=network
    )
    frozen.step()
    assert bool((state_of(frozen).params["1.running_mean"] == 0).all())
    moving = small_simulation(DFedPGP(), "directed(2)", training=Training(batch_size=2), network=network)
    for _ in range(3):
        moving.step()
    assert bool((state_of(moving).params["1.running_var"] > 0).all())
    assert bool((state_of(moving).params["1.running_mean"] != 0).any())


@pytest.mark.parametrize("algorithm", [DFedPGP(), OSGP(), OSGP(tau=1)], ids=["dfedpgp", "osgp", "osgp-1"])
def test_statistics_kept_at_home_keep_their_scale(small_simulation: Build, algorithm: Any) -> None:
    network = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2)).double()
    simulation = small_simulation(
        algorithm, "directed(2)", training=STILL, network=network, local_buffers=True
    )
    node = simulation.blocks[0].node
    node.begin(0, simulation.topology.graph(0), torch.ones(6, dtype=torch.bool))
    alone = node.initial()
    for number in range(2):
        node.begin(number, simulation.topology.graph(number), torch.ones(6, dtype=torch.bool))
        alone = node.train(alone, only=node.body if isinstance(algorithm, DFedPGP) else None)
        simulation.step()
    for name in ("1.running_mean", "1.running_var"):
        torch.testing.assert_close(state_of(simulation).params[name], alone[name])


def test_uneven_compute(small_simulation: Build) -> None:
    """With 5 groups, peer i does 1 + i mod 5 body epochs, each one full-batch step."""
    uneven = Training(epoch_groups=5, batch_size=1000, lr=0.1, clip=0.0)
    simulation = small_simulation(DFedPGP(head_epochs=0), "directed(1)", training=uneven)
    node = simulation.blocks[0].node
    node.begin(0, simulation.topology.graph(0), torch.ones(6, dtype=torch.bool), evaluating=True)
    generator = simulation.algorithm.round(state_of(simulation), node)
    next(generator)
    after = node.shown["after_local"]
    data = simulation.federation
    for i, epochs in enumerate((1, 2, 3, 4, 5, 1)):
        w = {name: value[i].numpy() for name, value in state_of(simulation).params.items()}
        x, y = data.x[data.train.of(i)].numpy(), data.y[data.train.of(i)].numpy()
        for _ in range(epochs):
            g = numpy_gradients(w, x, y)
            w = {name: w[name] - 0.1 * g[name] if name in BODY else w[name] for name in w}
        for name in w:
            np.testing.assert_allclose(after[name][i], w[name], rtol=1e-9, atol=1e-12)


def test_a_peer_that_nobody_sends_to_keeps_its_model(small_simulation: Build) -> None:
    """Its mass falls by half each round and would reach zero; its model must not."""
    links = np.zeros((3, 3))
    links[1, 0] = links[2, 1] = links[1, 2] = 1  # [receiver, sender]: 0 only sends
    simulation = small_simulation(DFedPGP(), links, sizes=(4, 4, 4), training=STILL)
    spread(simulation)
    before = state_of(simulation).params["0.weight"][0]
    for _ in range(60):
        simulation.step(evaluate=False)
    torch.testing.assert_close(state_of(simulation).params["0.weight"][0], before)
    assert 0 < float(state_of(simulation).mass[0]) <= 1e-8
    assert totals(simulation)[0] == pytest.approx(3, abs=1e-12)


def test_mixing_as_in_the_authors_code(small_simulation: Build) -> None:
    """An even mean of the bodies that arrive and one's own, on links that no mu makes up for; heads stay."""
    algorithm = DFedPGP(mixing="uniform", head_epochs=0)
    run = small_simulation(
        algorithm, "directed(2)", training=Training(epochs=0), own_module=by_hand.own_network
    )
    models = [by_hand.of(run.personal(), peer) for peer in range(6)]
    graph = run.topology.graph(0)
    run.step()
    assert len(set(graph.in_degree.tolist())) > 1  # else push-sum would do the same
    for peer in range(6):
        heard = [models[int(j)] for j in graph.in_neighbours(peer)]
        expected = by_hand.mean(models[peer], *heard)
        for name in by_hand.BODY:
            torch.testing.assert_close(run.personal()[name][peer], expected[name])
        for name in by_hand.HEAD:
            assert torch.equal(run.personal()[name][peer], models[peer][name])
    assert run.blocks[0].state.mass.tolist() == [1.0] * 6


def test_separate_head_rate(small_simulation: Build) -> None:
    simulation = small_simulation(DFedPGP(head_lr=0.0), "directed(2)")
    start = state_of(simulation).params
    simulation.step()
    assert all(torch.equal(start[name], state_of(simulation).params[name]) for name in HEAD)


def test_wrong_mass_is_an_error(small_simulation: Build) -> None:
    node = small_simulation(DFedPGP(), "directed(2)").blocks[0].node
    before = torch.ones(6).double()
    check_mass(before, torch.ones(6).double(), node)
    for wrong in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ContractError, match="peer 2"):
            check_mass(before, torch.tensor([1, 1, wrong, 1, 1, 1]).double(), node)


@pytest.mark.parametrize("settings", [{"head_epochs": -1}, {"head_lr": -0.1}])
def test_settings_that_cannot_be(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        DFedPGP(**settings)
