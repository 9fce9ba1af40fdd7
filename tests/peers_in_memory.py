"""Small experiments with a handful of peers, in memory or simulated, with the same data and seeds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from coterie.catalogue import algorithms
from coterie.learning import Executor, Workers
from coterie.protocol import Algorithm, Params
from coterie.simulation import RoundRecord, Simulation
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


def simulated(world: World) -> tuple[Params, dict[str, Tensor], list[RoundRecord]]:
    """The simulator's models and accuracies after the same experiment, and its records."""
    assert world.topology is not None
    module = small_module()
    simulation = Simulation(
        algorithm=world.algorithm,
        federation=world.federation,
        module=module,
        topology=world.topology,
        training=world.training,
        executor=Executor("looped", module, Workers(1)),
        seed=3,
        rounds=world.rounds,
        keep_best=world.keep_best,
        sealing="quantised",  # as between real peers: nobody learns a sum of one
    )
    records = [simulation.step(evaluate=True) for _ in range(world.rounds)]
    accuracy = {point: values.metrics["accuracy"] for point, values in records[-1].evaluations.items()}
    return simulation.personal(), accuracy, records


VARIANTS: dict[str, dict[str, Any]] = {
    "ppdl": {"peers": 2},
    "ppdl-var": {"peers": 2},
    "random-gossip": {"peers": 3},
    "kd-pdfl": {"exchange_every": 4},
    "star-fedavg": {"exchange_every": 4},
    "fedavg-plus": {"exchange_every": 4},
}
