"""Small experiments with a handful of peers, in memory or simulated, with the same data and seeds."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from coterie.catalogue import algorithms
from coterie.data import Federation, from_peers
from coterie.learning import Executor, LearningNode, Workers
from coterie.peer.exchange.journal import Journal
from coterie.peer.exchange.membership import Acquaintance
from coterie.peer.process import Pace, Peer, RoundReport
from coterie.protocol import Algorithm, Params
from coterie.randomness import numpy_generator
from coterie.simulation import Simulation
from coterie.testing import Faults, MemoryNetwork
from coterie.topology import Topology, make
from coterie.training import Training

FEATURES, CLASSES, HIDDEN = 4, 3, 5
DIGEST = "0" * 64


@dataclass(frozen=True)
class Size:
    peers: int = 5
    rounds: int = 5
    samples: int = 12


SMALL = Size()


def small_federation(peers: int, samples: int) -> Federation:
    rng = numpy_generator(7, "peers")
    datasets = []
    for _ in range(peers):
        parts = {}
        for part, n in (("train", samples), ("validation", 4), ("test", 8)):
            y = rng.integers(0, CLASSES, n)
            parts[part] = (rng.normal(size=(n, FEATURES)) + y[:, None], y)
        datasets.append(parts)
    made = from_peers(datasets, n_classes=CLASSES)
    return dataclasses.replace(made, clusters=torch.arange(peers) // 3)


def small_module() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(11)
        return nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES))


def topology_for(algorithm: Algorithm[Any], peers: int) -> Topology:
    facts = algorithm.facts
    name = "star" if facts.hub else "directed(2)" if facts.directed else "full"
    return make(name, peers=peers, seed=5)


async def inline(task: Callable[[], Any]) -> Any:
    """Local work takes no (virtual) time, but others get a turn."""
    await asyncio.sleep(0)
    return task()


@dataclass
class World:
    """An experiment of few peers; `play` runs them to the end over a memory network."""

    algorithm: Algorithm[Any] | str
    folder: Path
    size: Size = SMALL
    faults: Faults = field(default_factory=Faults)
    seed: int = 0
    pace: Pace = field(default_factory=lambda: Pace(deadline=30.0, join=60.0))
    topology: Topology | None = None
    training: Training = field(default_factory=lambda: Training(epochs=1, batch_size=5, lr=0.1))
    in_step: bool = True
    busy: float = 0.0  # virtual seconds that each piece of local work takes, at most

    def __post_init__(self) -> None:
        if isinstance(self.algorithm, str):
            name = self.algorithm
            self.algorithm = algorithms[name](**VARIANTS.get(name, {}))
        self.peers = self.size.peers
        self.topology = self.topology or topology_for(self.algorithm, self.peers)
        self.federation = small_federation(self.peers, self.size.samples)
        self.network = MemoryNetwork(self.seed, self.faults)
        self.peers_by_number: dict[int, Peer] = {}
        self.reports: dict[int, list[RoundReport]] = {n: [] for n in range(self.topology.nodes)}
        self.tasks: dict[int, asyncio.Task[None]] = {}

    @property
    def nodes(self) -> int:
        assert self.topology is not None
        return self.topology.nodes

    def others(self, number: int) -> Mapping[int, Acquaintance]:
        return {n: Acquaintance(f"peer-{n}", n, f"host:{1000 + n}") for n in range(self.nodes) if n != number}

    def node(self, number: int) -> LearningNode:
        assert self.topology is not None
        module, ids = small_module(), torch.tensor([number])
        return LearningNode(
            ids=ids,
            federation=self.federation.of_nodes(ids, self.topology.hub),
            module=module,
            executor=Executor("looped", module, Workers(1)),
            training=self.training,
            seed=3,
            rounds=self.size.rounds,
            hub=self.topology.hub,
            clusters=self.federation.clusters,
        )

    def start(self, number: int) -> asyncio.Task[None]:
        """Start a peer, or start it again after a crash."""
        assert self.topology is not None
        assert isinstance(self.algorithm, Algorithm)
        others = self.others(number)
        peer = Peer(
            name=f"peer-{number}",
            address=f"host:{1000 + number}",
            node=self.node(number),
            algorithm=self.algorithm,
            topology=self.topology,
            rounds=self.size.rounds,
            digest=DIGEST,
            roster=lambda: others,
            transport=self.network.transport(f"peer-{number}"),
            journal=Journal(self.folder / f"peer-{number}", durable=False),
            pace=self.pace,
            in_step=self.in_step,
            work=self._work,
            observer=self.reports[number].append,
        )
        self.peers_by_number[number] = peer
        self.network.attach(peer.name, peer)
        self.tasks[number] = asyncio.create_task(self._run(peer))
        return self.tasks[number]

    async def _run(self, peer: Peer) -> None:
        try:
            await peer.run()
        finally:
            if self.peers_by_number[peer.number] is peer:
                self.network.detach(peer.name)

    async def _work(self, task: Callable[[], Any]) -> Any:
        await asyncio.sleep(self.network.random.uniform(0, self.busy))
        return task()

    async def crash(self, number: int) -> None:
        """As SIGKILL: nothing is cleaned up, connections die."""
        self.network.detach(f"peer-{number}")
        self.tasks[number].cancel()
        await asyncio.gather(self.tasks[number], return_exceptions=True)

    async def play(self) -> None:
        for number in range(self.nodes):
            self.start(number)
        await asyncio.gather(*self.tasks.values())


def simulated(world: World) -> tuple[Params, dict[str, Tensor]]:
    """The simulator's models and accuracies after the same experiment."""
    assert world.topology is not None
    assert isinstance(world.algorithm, Algorithm)
    module = small_module()
    simulation = Simulation(
        algorithm=world.algorithm,
        federation=world.federation,
        module=module,
        topology=world.topology,
        training=world.training,
        executor=Executor("looped", module, Workers(1)),
        seed=3,
        rounds=world.size.rounds,
        sealing="quantised",  # as between real peers: nobody learns a sum of one
    )
    for _ in range(world.size.rounds):
        record = simulation.step(evaluate=True)
    accuracy = {point: values.accuracy for point, values in record.evaluations.items()}
    return simulation.personal(), accuracy


VARIANTS: dict[str, dict[str, Any]] = {
    "ppdl": {"peers": 2},
    "ppdl-var": {"peers": 2},
    "random-gossip": {"peers": 3},
    "kd-pdfl": {"exchange_every": 4},
    "star-fedavg": {"exchange_every": 4},
    "fedavg-plus": {"exchange_every": 4},
}
