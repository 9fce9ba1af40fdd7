"""Star FedAvg and FedAvg+ against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from coterie.algorithms.fedavg_plus import FedAvgPlus
from coterie.algorithms.star_fedavg import StarFedAvg
from coterie.errors import ConfigError


@pytest.mark.parametrize(
    "algorithm",
    [
        StarFedAvg(exchange_every=4),
        FedAvgPlus(exchange_every=4, switch_at=3, interpolation=0.25),
        FedAvgPlus(exchange_every=4, switch_at=0),
    ],
    ids=["star-fedavg", "fedavg-plus", "fedavg-plus from the start"],
)
def test_rounds_follow_the_equations(algorithm: StarFedAvg, world: Any) -> None:
    simulation = world.simulation(algorithm)
    models = world.models(simulation)
    for t in range(8):
        star, lr = world.star(t), world.lr
        near = world.near[star]
        if isinstance(algorithm, FedAvgPlus) and t >= algorithm.switch_at:
            lr /= 10
            if near:
                models[star] += algorithm.interpolation * (models[near].mean(0) - models[star])
        else:
            models[star] = models[[star, *near]].mean(0)
        models[near] = models[star]
        models = np.stack([world.trained(model, peer, 2, lr) for peer, model in enumerate(models)])
        simulation.step()
        np.testing.assert_allclose(world.models(simulation), models, rtol=1e-9, atol=1e-12)


def test_fedavg_plus_is_star_fedavg_before_the_switch(world: Any) -> None:
    plain, plus = (world.simulation(a) for a in (StarFedAvg(), FedAvgPlus(switch_at=4)))
    for t in range(6):
        plain.step()
        plus.step()
        assert np.array_equal(world.models(plain), world.models(plus)) is (t < 4)


def test_only_the_neighbours_of_the_star_communicate(world: Any) -> None:
    simulation = world.simulation(StarFedAvg(exchange_every=2))
    for t in range(6):
        star = world.star(t)
        there, back = simulation.step().traffic
        assert (there.senders.tolist(), back.receivers.tolist()) == (world.near[star], world.near[star])
        assert {*there.receivers.tolist(), *back.senders.tolist()} <= {star}


def test_every_node_gets_its_turn(world: Any) -> None:
    assert {world.star(t) for t in range(60)} == set(range(5))


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="exchange_every"):
        StarFedAvg(exchange_every=1)
    with pytest.raises(ConfigError, match="interpolation"):
        FedAvgPlus(interpolation=0.0)
    with pytest.raises(ConfigError, match="switch_at"):
        FedAvgPlus(switch_at=-1)
