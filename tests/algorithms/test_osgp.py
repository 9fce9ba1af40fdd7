"""OSGP: push-sum on the whole model, with and without delay, against NumPy."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from coterie.algorithms.osgp import OSGP
from coterie.errors import ConfigError
from coterie.simulation import Simulation
from coterie.topology import Churn, MessageLoss, make
from coterie.training import Training

Build = Callable[..., Simulation]
STILL = Training(epochs=1, lr=0.0)


def state_of(simulation: Simulation) -> Any:
    return simulation.blocks[0].state


def spread(simulation: Simulation) -> None:
    """Give every peer another model, so that mixing has something to do."""
    state, noise = state_of(simulation), torch.Generator().manual_seed(0)
    params = {
        name: value + torch.randn(value.shape, generator=noise).to(value.dtype)
        for name, value in state.params.items()
    }
    simulation.blocks[0].state = dataclasses.replace(state, params=params)


@pytest.mark.parametrize("tau", [0, 1])
def test_mixing_equals_numpy(small_simulation: Build, tau: int) -> None:
    simulation = small_simulation(OSGP(tau=tau), "directed(2)", training=STILL)
    spread(simulation)
    name = "0.weight"
    z, mass = state_of(simulation).params[name].numpy().reshape(6, -1), np.ones(6)
    flying, flying_mass = np.zeros_like(z), np.zeros(6)
    for number in range(6):
        adjacency = simulation.topology.graph(number).adjacency().numpy().astype(float)
        share = 1 / (adjacency.sum(0) + 1)
        u = z * mass[:, None]
        arrived, arrived_mass = adjacency @ (share[:, None] * u), adjacency @ (share * mass)
        if tau:
            arrived, flying = flying, arrived
            arrived_mass, flying_mass = flying_mass, arrived_mass
        mass = share * mass + arrived_mass
        z = (share[:, None] * u + arrived) / mass[:, None]
        simulation.step(evaluate=False)
        state = state_of(simulation)
        np.testing.assert_allclose(state.mass, mass, rtol=1e-12)
        np.testing.assert_allclose(state.params[name].reshape(6, -1), z, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(state.mass_in_flight, flying_mass, rtol=1e-12, atol=1e-15)
        if tau:
            np.testing.assert_allclose(state.in_flight[name].reshape(6, -1), flying, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("tau", [0, 1])
@pytest.mark.parametrize(("churn", "loss"), [(0.0, 0.0), (0.3, 0.3)])
def test_mass_in_nodes_and_in_flight_is_conserved(
    small_simulation: Build, tau: int, churn: float, loss: float
) -> None:
    topology = MessageLoss(Churn(make("directed(2)", peers=6, seed=2), churn, 5), loss, 5)
    simulation = small_simulation(OSGP(tau=tau), topology, training=STILL)
    spread(simulation)
    before = {name: value.sum(0) for name, value in state_of(simulation).params.items()}
    for _ in range(10):
        record = simulation.step(evaluate=False)
        state = state_of(simulation)
        assert float((state.mass + state.mass_in_flight).sum()) == pytest.approx(6, abs=1e-12)
        assert bool((state.mass > 0).all())
        for name, total in before.items():
            now = torch.einsum("r,r...->...", state.mass, state.params[name])
            if tau:
                now = now + state.in_flight[name].sum(0)
            torch.testing.assert_close(now, total, rtol=1e-10, atol=1e-10)
        assert {"mass", "mass_in_flight"} <= record.diagnostics.keys()
        assert (float(state.mass_in_flight.sum()) > 0) is bool(tau)


@pytest.mark.parametrize("tau", [0, 1])
def test_without_learning_models_tend_to_the_mean(small_simulation: Build, tau: int) -> None:
    simulation = small_simulation(OSGP(tau=tau), "directed(10)", sizes=(3,) * 100, training=STILL)
    spread(simulation)
    before = state_of(simulation).params
    for _ in range(12 if tau == 0 else 40):
        simulation.step(evaluate=False)
    for name, value in state_of(simulation).params.items():
        assert float((value - before[name].mean(0)).abs().max()) < 1e-5


def test_an_isolated_peer_trains_on(small_simulation: Build) -> None:
    for tau in (0, 1):
        simulation = small_simulation(OSGP(tau=tau), np.zeros((3, 3)), sizes=(4, 4, 4))
        alone = small_simulation(OSGP(tau=tau), "full", sizes=(4,))
        for _ in range(3):
            simulation.step(), alone.step()
        assert float(state_of(simulation).mass[0]) == 1.0
        for name, value in alone.personal().items():
            torch.testing.assert_close(simulation.personal()[name][:1], value)


@pytest.mark.parametrize("settings", [{"tau": 2}, {"tau": -1}])
def test_settings_that_cannot_be(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        OSGP(**settings)
