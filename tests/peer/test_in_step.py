"""Peers in memory give the simulator's numbers, for every algorithm of the catalogue."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from peers_in_memory import SMALL, World, simulated

from coterie.catalogue import algorithms
from coterie.testing import run_virtually, topology_for
from coterie.topology import Churn, MessageLoss
from coterie.training import Training


def check(world: World) -> None:
    """Parameters to 1e-4 relative (float32 sums in another order), accuracies as they are."""
    run_virtually(world.play())
    expected, accuracy, records = simulated(world)
    for number in range(world.peers):
        own = world.peers_by_number[number]
        for leaf, value in own.algorithm.personal(own.state).items():
            torch.testing.assert_close(value[0], expected[leaf][number], rtol=1e-4, atol=1e-5)
        assert world.reports[number][-1].scores["accuracy"] == pytest.approx(
            {point: float(values[number]) for point, values in accuracy.items()}, abs=1e-6, nan_ok=True
        )
        for report, record in zip(world.reports[number], records, strict=True):
            assert report.gradient_steps == record.gradient_steps[number]
            assert report.samples_seen == record.samples_seen[number]


@pytest.mark.parametrize("name", list(algorithms))
def test_peers_give_the_numbers_of_the_simulator(name: str, tmp_path: Path) -> None:
    check(World(name, tmp_path, SMALL))


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
