"""Small experiments with a handful of peers, in memory or simulated, with the same data and seeds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from coterie.catalogue import algorithms
from coterie.learning import Executor, Workers
from coterie.protocol import Algorithm, Params
from coterie.simulation import RoundRecord, Simulation
from coterie.simulation.blocks import Blocks
from coterie.testing import MemoryPeers, small_module


@dataclass(frozen=True)
class Size:
    peers: int = 5
    rounds: int = 5
    samples: int = 12


SMALL = Size()


class World(MemoryPeers):
    """Peers in memory of an algorithm that may be named."""

    def __init__(
        self, algorithm: Algorithm[Any] | str, folder: Path, size: Size = SMALL, **settings: Any
    ) -> None:
        if isinstance(algorithm, str):
            algorithm = algorithms[algorithm](**VARIANTS.get(algorithm, {}))
        super().__init__(algorithm, folder, size.peers, size.rounds, size.samples, **settings)


def simulation_of(world: World, hosts: Blocks | None = None) -> Simulation:
    """The same experiment in the simulator, before its first round.

    hosts: where the peers of the simulation live; None: in this process.
    """
    assert world.topology is not None
    module = small_module()
    return Simulation(
        algorithm=world.algorithm,
        federation=world.federation,
        module=module,
        topology=world.topology,
        training=world.training,
        executor=Executor("looped", module, Workers(1)),
        seed=3,
        rounds=world.rounds,
        keep_best=world.keep_best,
        bound=world.bound,
        sealing="quantised",  # as between real peers: nobody learns a sum of one
        hosts=hosts,
    )


def simulated(
    world: World, hosts: Blocks | None = None
) -> tuple[Params, dict[str, Tensor], list[RoundRecord]]:
    """The simulator's models and accuracies after the same experiment, and its records."""
    simulation = simulation_of(world, hosts)
    records = [simulation.step(evaluate=True) for _ in range(world.rounds)]
    accuracy = {point: values.metrics["accuracy"] for point, values in records[-1].evaluations.items()}
    return simulation.personal(), accuracy, records


def assert_as_simulated(world: World, found: tuple[Params, dict[str, Tensor], list[RoundRecord]]) -> None:
    """Parameters to 1e-4 relative (float32 sums in another order), scores as they are."""
    expected, accuracy, records = found
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


VARIANTS: dict[str, dict[str, Any]] = {
    "ppdl": {"peers": 3},
    "ppdl-var": {"peers": 3},
    "random-gossip": {"peers": 3},
    "kd-pdfl": {"exchange_every": 4},
    "star-fedavg": {"exchange_every": 4},
    "fedavg-plus": {"exchange_every": 4},
}
