"""Push-sum's mass is checked in every round: its total by the simulator, its range by each node."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Generator, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from coterie.algorithms.dfedpgp import DFedPGP
from coterie.algorithms.osgp import OSGP
from coterie.algorithms.parts.push_sum import Pushed, check_total, push
from coterie.data import from_peers
from coterie.errors import ContractError
from coterie.learning import Executor, Workers
from coterie.protocol import Algorithm, Exchange, Inbox
from coterie.protocol.trees import map_tree
from coterie.randomness import numpy_generator
from coterie.simulation import Simulation
from coterie.topology import Attendance, Churn, MessageLoss, Topology, make
from coterie.training import Training

PEERS = 6
Build = Callable[..., Simulation]
ALGORITHMS = pytest.mark.parametrize(
    "algorithm", [DFedPGP(), OSGP(), OSGP(tau=1)], ids=["dfedpgp", "osgp", "osgp-delayed"]
)
SHARDS = pytest.mark.parametrize("cut", [None, (0, 3), (5, 1, 2)], ids=["whole", "halves", "mixed"])


@pytest.fixture(scope="module")
def build() -> Iterator[Build]:
    rng = numpy_generator(0, "mass")
    federation = from_peers(
        [(rng.normal(size=(4, 3)), rng.integers(0, 2, 4)) for _ in range(PEERS)], n_classes=2
    )
    with Workers(1) as workers:

        def make_one(algorithm: Algorithm[Any], topology: Topology, cut: Any = None) -> Simulation:
            module = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
            return Simulation(
                algorithm=algorithm,
                federation=federation,
                module=module,
                topology=topology,
                training=Training(batch_size=4),
                executor=Executor("stacked", module, workers),
                seed=0,
                rounds=8,
                shards=None if cut is None else shards(topology.nodes, cut),
            )

        yield make_one


def shards(nodes: int, first: tuple[int, ...]) -> list[torch.Tensor]:
    chosen = torch.tensor(first)
    rest = torch.arange(nodes)
    return [chosen, rest[~torch.isin(rest, chosen)]]


@ALGORITHMS
@SHARDS
@pytest.mark.parametrize("graph", ["directed(2)", "star"])
def test_absent_peers_lost_messages_and_a_hub_change_no_total(
    build: Build, algorithm: Algorithm[Any], cut: Any, graph: str
) -> None:
    topology = MessageLoss(Churn(make(graph, peers=PEERS, seed=1), 0.3, 5), 0.3, 5)
    simulation = build(algorithm, topology, cut)
    for _ in range(8):
        simulation.step(evaluate=False)  # it would raise
    totals = [
        float((block.state.mass + getattr(block.state, "mass_in_flight", 0)).sum())
        for block in simulation.blocks
    ]
    assert sum(totals) == pytest.approx(PEERS + (graph == "star"), rel=1e-12)


@ALGORITHMS
@SHARDS
def test_who_leaves_hands_all_of_its_mass_over(build: Build, algorithm: Algorithm[Any], cut: Any) -> None:
    topology = Attendance(make("directed(2)", peers=PEERS, seed=1), joins={5: 2}, leaves={1: 4})
    run = build(algorithm, topology, cut)
    for _ in range(4):
        run.step(evaluate=False)  # which checks the total
    mass = run._gather([algorithm.mass(block.state) for block in run.blocks])  # type: ignore[misc]
    assert float(mass[1]) == 0.0
    assert float(mass.sum()) == pytest.approx(PEERS, rel=1e-12)
    gone = {name: value[1].clone() for name, value in run.personal().items()}
    assert all(bool(value.isfinite().all()) for value in gone.values())
    run.step(evaluate=False)
    assert all(torch.equal(run.personal()[name][1], value) for name, value in gone.items())


def leaking(z: Any, mass: Any, node: Any, waiting: Any = None) -> Generator[Exchange, Inbox, Pushed]:
    pushed = yield from push(z, mass, node, waiting)
    return dataclasses.replace(pushed, received={})


def doubling(z: Any, mass: Any, node: Any, waiting: Any = None) -> Generator[Exchange, Inbox, Pushed]:
    pushed = yield from push(z, mass, node, waiting)
    twice: Any = map_tree(lambda share: 2 * share, pushed.received)
    return dataclasses.replace(pushed, received=twice)


# Each of 6 peers sends a third of its mass to two others: 4 are under way, 2 stay.
@pytest.mark.parametrize(("wrong", "total"), [(leaking, 2), (doubling, 10)])
@ALGORITHMS
@SHARDS
def test_a_push_that_changes_the_total_is_an_error(
    build: Build, monkeypatch: pytest.MonkeyPatch, algorithm: Algorithm[Any], cut: Any, wrong: Any, total: int
) -> None:
    simulation = build(algorithm, make("directed(2)", peers=PEERS, seed=1), cut)
    simulation.step(evaluate=False)
    monkeypatch.setattr(f"{type(algorithm).__module__}.push", wrong)
    fresh = build(algorithm, make("directed(2)", peers=PEERS, seed=1), cut)
    with pytest.raises(ContractError, match=r"^round 0: the push-sum mass of all nodes is") as error:
        fresh.step(evaluate=False)
    assert float(str(error.value).split(" is ")[1].split(",")[0]) == pytest.approx(total, rel=1e-12)
    with pytest.raises(ContractError, match=r"^round 1: the push-sum mass of all nodes is"):
        simulation.step(evaluate=False)


@ALGORITHMS
def test_a_state_with_impossible_mass_is_refused(build: Build, algorithm: Algorithm[Any]) -> None:
    """The total is right, so that only the node itself can see it."""
    simulation = build(algorithm, make(np.zeros((PEERS, PEERS)), peers=PEERS, seed=0))
    (block,) = simulation.blocks
    mass = torch.tensor([1.0, 1.0, -0.5, 1.0, 2.5, 1.0], dtype=torch.float64)
    block.state = dataclasses.replace(block.state, mass=mass)
    with pytest.raises(ContractError, match=r"mass of peer 2 is -0\.5"):
        simulation.step(evaluate=False)


def test_a_total_within_rounding_is_right() -> None:
    def masses(*mass: float) -> list[torch.Tensor]:
        return [torch.tensor([value], dtype=torch.float64) for value in mass]

    check_total(masses(0.5, 1.5 + 1e-9), 2, 0)
    for wrong in (1.50001, float("nan")):
        with pytest.raises(ContractError):
            check_total(masses(0.5, wrong), 2, 0)
