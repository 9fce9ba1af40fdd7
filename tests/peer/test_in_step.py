"""Peers in memory give the simulator's numbers, also where an experiment asks for more than the usual.

`tests/contract/test_everywhere.py` asks every algorithm of the catalogue for the usual.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from peers_in_memory import SMALL, World, assert_as_simulated, simulated

from coterie.catalogue import algorithms
from coterie.testing import run_virtually, topology_for
from coterie.topology import Attendance, Churn, MessageLoss
from coterie.training import Training


def check(world: World) -> None:
    run_virtually(world.play())
    assert_as_simulated(world, simulated(world))


@pytest.mark.parametrize("name", ["random-gossip", "kd-pdfl", "dfedpgp", "ditto", "per-fedavg"])
def test_also_with_equal_local_work(name: str, tmp_path: Path) -> None:
    check(World(name, tmp_path, SMALL, training=Training(epochs=2, batch_size=5, lr=0.1, work="equal")))


@pytest.mark.parametrize("name", ["local", "d-psgd", "ppdl", "dfedpgp", "ditto"])
def test_also_with_an_optimiser_that_keeps_its_memory(name: str, tmp_path: Path) -> None:
    kept = Training(epochs=2, batch_size=5, lr=0.05, momentum=0.9, schedule="cosine", optimizer_state="kept")
    check(World(name, tmp_path, SMALL, training=kept))


@pytest.mark.parametrize("name", ["d-psgd", "osgp", "dfedpgp", "kd-pdfl", "fedavg", "dac"])
def test_also_with_the_faults_of_the_experiment(name: str, tmp_path: Path) -> None:
    """Churn and loss that the experiment asks for follow from its seed, so every peer knows of them."""
    topology = MessageLoss(Churn(topology_for(algorithms[name](), SMALL.peers), 0.3, seed=1), 0.2, seed=2)
    check(World(name, tmp_path, SMALL, topology=topology))


@pytest.mark.parametrize(
    "name", ["d-psgd", "osgp", "dfedpgp", "kd-pdfl", "fedavg", "gossip-fedavg", "random-gossip"]
)
def test_also_with_the_joins_and_leaves_of_the_experiment(name: str, tmp_path: Path) -> None:
    topology = Attendance(topology_for(algorithms[name](), SMALL.peers), joins={4: 2}, leaves={1: 3})
    check(World(name, tmp_path, SMALL, topology=topology))
