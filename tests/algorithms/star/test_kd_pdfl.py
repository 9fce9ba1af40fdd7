"""KD-PDFL against a NumPy version of its equations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from coterie.algorithms import kd_pdfl
from coterie.algorithms.kd_pdfl import KDPDFL
from coterie.algorithms.parts.received import Met
from coterie.errors import ConfigError, ContractError
from coterie.topology import MessageLoss, make

UNIFORM = (1 - torch.eye(5)) / 5


class Reference:
    """Algorithm 1 of the paper, peer by peer, with the readings of ALGORITHMS.md 3.1."""

    def __init__(self, algorithm: KDPDFL, world: Any, models: np.ndarray) -> None:
        self.a, self.world, self.models = algorithm, world, list(models)
        self.w = UNIFORM.double().numpy()
        self.cache: list[dict[int, np.ndarray]] = [{} for _ in models]

    def round(self, i: int) -> None:
        near, sent, n = self.world.near[i], list(self.models), self.world.sizes[i]
        if near:
            outputs = {j: self.world.probabilities(sent[j], i) for j in [i, *near]}
            d = np.array([((outputs[j] - outputs[i]) ** 2).sum() / n for j in near])
            self.w[i, near] = np.maximum(0, self.w[i, near] - self.step(i, near, d))
            self.cache[i] |= {j: sent[j] for j in near}
            pool = self.cache[i] if self.a.use_cache else {j: sent[j] for j in near}
            total = sum(self.w[i, j] for j in pool)
            c = min(n / self.a.c_base, 1 / (len(near) + 1))
            if total > 0:
                others = sum(self.w[i, j] / total * model for j, model in pool.items())
                self.models[i] = c * sent[i] + (1 - c) * others
        for j in near if self.a.broadcast != "none" else ():
            self.cache[j][i] = self.models[i]
            if self.a.broadcast == "overwrite":
                self.models[j] = self.models[i]
        steps, lr = self.a.exchange_every - 2, self.world.lr
        self.models = [self.world.trained(model, k, steps, lr) for k, model in enumerate(self.models)]

    def step(self, i: int, near: list[int], d: np.ndarray) -> np.ndarray:
        g = 2 * self.a.lambda_g * self.w[i, near] - 1 / (self.w[i].sum() + self.a.delta)
        h = self.a.mu1 * d + self.a.mu2 * g
        if self.a.step_rule == "norm":
            return h / np.sqrt((h**2).sum())
        if self.a.step_rule == "elementwise":
            return np.sign(h)
        return self.a.step_size * np.clip(h, -1, 1)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"broadcast": "overwrite", "c_base": 8.0},
        {"step_rule": "elementwise", "broadcast": "none", "mu2": 0.5},
        {"step_rule": "const", "c_base": 8.0, "lambda_g": 0.3},
        {"use_cache": True, "mu2": 0.4, "c_base": 8.0},
    ],
    ids=str,
)
def test_rounds_follow_the_equations(settings: dict[str, Any], world: Any) -> None:
    algorithm = KDPDFL(exchange_every=4, **settings)
    simulation = world.simulation(algorithm)
    reference = Reference(algorithm, world, world.models(simulation))
    stars = [world.star(t) for t in range(8)]
    assert len(set(stars)) > 2
    for star in stars:
        reference.round(star)
        record = simulation.step()
        np.testing.assert_allclose(world.models(simulation), np.stack(reference.models), atol=1e-6)
        np.testing.assert_allclose(record.diagnostics["collaboration"], reference.w, atol=1e-6)
        assert float(record.diagnostics["collaboration"].min()) >= 0
        assert torch.equal(simulation.collaboration(), record.diagnostics["collaboration"])


def test_of_many_nodes_only_pairs_that_met_are_remembered(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same rounds, with the weights of a matrix and with those of pairs that met."""
    algorithm = KDPDFL(exchange_every=4, mu2=0.5)
    dense = world.simulation(algorithm)
    monkeypatch.setattr(kd_pdfl, "MOST_IN_MATRIX", 4)
    sparse = world.simulation(algorithm)
    met: set[tuple[int, int]] = set()
    for t in range(8):
        star = world.star(t)
        met |= {(star, sender) for sender in world.near[star]}
        matrix = dense.step().diagnostics["collaboration"]
        assert "collaboration" not in sparse.step().diagnostics
        np.testing.assert_allclose(world.models(sparse), world.models(dense), atol=1e-6)
        weights = sparse.blocks[0].state.collaboration
        rows, slots = (weights.ids >= 0).nonzero(as_tuple=True)
        assert set(zip(rows.tolist(), weights.ids[rows, slots].tolist(), strict=True)) == met
        rows, senders = torch.tensor([(i, j) for i in range(5) for j in range(5) if i != j]).T
        np.testing.assert_allclose(weights.of(rows, senders), matrix[rows, senders], atol=1e-6)
        totals = weights.total(torch.arange(5), 5)
        np.testing.assert_allclose(totals, matrix.double().sum(1), atol=1e-6)
    assert sparse.collaboration() is None


def test_a_row_that_meets_more_than_there_is_room_for_is_an_error() -> None:
    met = Met.nobody(2, 2, 0.1)
    pairs = torch.tensor([1, 0, 1]), torch.tensor([5, 6, 7])
    met = met.changed(*pairs, torch.tensor([0.5, 0.6, 0.7]))
    np.testing.assert_allclose(met.of(*pairs), [0.5, 0.6, 0.7])
    assert met.ids.tolist() == [[6, -1], [5, 7]]
    with pytest.raises(ContractError, match="more than 2 nodes"):
        met.changed(torch.tensor([1]), torch.tensor([8]), torch.tensor([0.0]))


@pytest.mark.parametrize("broadcast", ["cache", "overwrite", "none"])
def test_cached_models_of_absent_neighbours_count(broadcast: Any, world: Any) -> None:
    """On fading links a star hears from some, and mixes what it last had of the others, too."""
    algorithm = KDPDFL(exchange_every=4, use_cache=True, broadcast=broadcast, mu2=0.4, c_base=8.0)
    topology = make("fading(2)", peers=5, seed=0)
    simulation = world.simulation(algorithm, topology=topology)
    reference, stale = Reference(algorithm, world, world.models(simulation)), 0
    for t in range(20):
        reach, star = topology.graph(t).adjacency(), world.star(t)
        world.near = {i: reach[i].nonzero().flatten().tolist() for i in range(5)}
        known = set(reference.cache[star])
        reference.round(star)
        stale += bool(world.near[star] and known - set(world.near[star]))
        simulation.step()
        np.testing.assert_allclose(world.models(simulation), np.stack(reference.models), atol=1e-6)
    assert stale > 5


def test_without_mu_it_is_the_uniform_average(world: Any) -> None:
    simulation = world.simulation(KDPDFL(mu1=0.0, mu2=0.0, c_base=1.0, exchange_every=2, broadcast="none"))
    for t in range(6):
        expected, star = world.models(simulation), world.star(t)
        expected[star] = expected[[star, *world.near[star]]].mean(0)
        simulation.step()
        np.testing.assert_allclose(world.models(simulation), expected, rtol=1e-12)
    assert torch.equal(simulation.collaboration(), UNIFORM)


def test_identical_models_select_nobody(world: Any) -> None:
    """All distances are 0, so that without the regulariser no weight moves, and mixing changes nothing."""
    simulation = world.simulation(KDPDFL(mu2=0.0, exchange_every=2), same=True)
    before = world.models(simulation)
    for _ in range(6):
        simulation.step()
    np.testing.assert_allclose(world.models(simulation), before, rtol=1e-12)
    assert torch.equal(simulation.collaboration(), UNIFORM)


def test_a_star_without_neighbours_does_nothing(world: Any) -> None:
    simulation = world.simulation(KDPDFL(exchange_every=2), world.seed_with_stars(4))
    before = world.models(simulation)
    record = simulation.step()
    assert np.array_equal(world.models(simulation), before)
    assert torch.equal(record.diagnostics["collaboration"], UNIFORM)
    assert sum(int(traffic.bytes.sum()) for traffic in record.traffic) == 0


def test_without_regulariser_cooperation_ends(world: Any) -> None:
    """A unit step takes the one weight to 0; the star then keeps its own model."""
    simulation = world.simulation(KDPDFL(mu2=0.0, exchange_every=2), world.seed_with_stars(3))
    before = world.models(simulation)
    simulation.step()
    assert float(simulation.blocks[0].state.collaboration[3, 2]) == 0
    assert np.array_equal(world.models(simulation), before)


def test_the_regulariser_brings_back_who_trusts_nobody(world: Any) -> None:
    """At degree 0 the log's gradient is -1/delta, but the step has length 1."""
    simulation = world.simulation(KDPDFL(exchange_every=2), world.seed_with_stars(3))
    simulation.blocks[0].state.collaboration[3] = 0
    simulation.step()
    assert simulation.blocks[0].state.collaboration[3].tolist() == [0, 0, 1, 0, 0]
    assert bool(np.isfinite(world.models(simulation)).all())


def test_lost_packets_are_missing_neighbours(world: Any) -> None:
    senders = torch.tensor(world.near[2])
    lossy = (MessageLoss(world.links(), 0.5, seed) for seed in range(100))
    topology = next(
        t
        for t in lossy
        if t.delivers(0, 0, senders, torch.full_like(senders, 2)).tolist() == [False, True, True]
    )
    algorithm = KDPDFL(mu1=0.0, mu2=0.0, c_base=1.0, exchange_every=2)
    simulation = world.simulation(algorithm, world.seed_with_stars(2), topology)
    before = world.models(simulation)
    record = simulation.step()
    np.testing.assert_allclose(world.models(simulation)[2], before[[1, 2, 3]].mean(0))
    assert record.traffic[1].receivers.tolist() == [1, 3]


def test_similar_neighbours_gain_weight(world: Any) -> None:
    simulation = world.simulation(KDPDFL(exchange_every=2), world.seed_with_stars(0))
    for value in simulation.blocks[0].state.params.values():
        value[1] = value[0] + 0.01  # peer 1 is like peer 0, peer 2 is not
    simulation.step()
    collaboration = simulation.blocks[0].state.collaboration[0]
    assert float(collaboration[1]) > 0.3 > 0.2 >= float(collaboration[2])


@pytest.mark.parametrize(
    "wrong", [{"mu1": -1.0}, {"delta": 0.0}, {"c_base": 0.0}, {"exchange_every": 1}], ids=str
)
def test_impossible_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        KDPDFL(**wrong)
