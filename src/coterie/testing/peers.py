"""An algorithm among peers in memory: real peers' own code, with network, clock and crashes from a seed."""

from __future__ import annotations

import asyncio
import dataclasses
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import nn

from coterie.data import Federation, from_peers
from coterie.errors import CoterieError
from coterie.learning import Executor, LearningNode, Workers
from coterie.peer.exchange.journal import Journal
from coterie.peer.exchange.membership import Acquaintance
from coterie.peer.network.serving import Handler
from coterie.peer.process import Pace, Peer
from coterie.peer.turn import RoundReport
from coterie.protocol import Algorithm
from coterie.protocol.ledger import BOUND, Bound
from coterie.randomness import numpy_generator
from coterie.testing.network import Faults, MemoryNetwork, run_virtually
from coterie.topology import Topology, make
from coterie.training import Training

_FEATURES, _CLASSES, _HIDDEN = 4, 3, 5
_DIGEST = "0" * 64
_SEED = 3  # of the algorithm's own draws


@dataclass(frozen=True)
class Crash:
    """A peer dies without a word, as by SIGKILL, and is started again from its files."""

    peer: int
    at: float  # seconds after the start
    away: float = 5.0  # seconds until it is started again


@dataclass(frozen=True)
class Join:
    """A peer that nobody knew is invited into the running experiment, and started."""

    peer: int
    at: float  # seconds after the start


@dataclass(frozen=True)
class Leave:
    """A peer is told to leave before the end."""

    peer: int
    at: float  # seconds after the start


@dataclass(frozen=True)
class Rotation:
    """For some time nobody knows a peer's new key: it is refused, and so are those who call it."""

    peer: int
    at: float  # seconds after the start
    seconds: float = 2.0  # until the others know


@dataclass(frozen=True)
class PowerFailure:
    """All peers die at once, and are started again one after another."""

    at: float  # seconds after the start
    away: Sequence[float] = (5.0,)  # seconds until each is started again, by number; the last for all others


Event: TypeAlias = Crash | Join | Leave | Rotation | PowerFailure


@dataclass(frozen=True)
class Outcome:
    """What became of everyone, by number.

    states: at the end. reports: of the rounds that each finished. ends: None for whoever went through to its
    end, or else the error that stopped it. joined, left: the first round of who came later, and the first one
    without those who left.
    """

    states: Mapping[int, Any]
    reports: Mapping[int, Sequence[RoundReport]]
    ends: Mapping[int, CoterieError | None]
    joined: Mapping[int, int] = field(default_factory=dict)
    left: Mapping[int, int] = field(default_factory=dict)

    @property
    def finished(self) -> list[int]:
        """Who went through to its end."""
        return [number for number, end in self.ends.items() if end is None]


def run_peers(
    algorithm: Algorithm[Any],
    *,
    peers: int = 4,
    rounds: int = 3,
    faults: Faults | None = None,
    crashes: Sequence[Event] = (),
    seed: int = 0,
    in_step: bool = True,
    topology: Topology | None = None,
    training: Training | None = None,
) -> Outcome:
    """Run an algorithm among peers that delay, lose and repeat messages and crash, as the seed says.

    Returns when everyone has come to an end. It takes no real time but that of training, on a small
    federation of three classes. An error that is not Coterie's own is a mistake in the algorithm, and raised.

    crashes: what happens to peers, also joins and leaves. in_step: rounds together; False: each at its own
    pace. topology: by default one that suits the algorithm.
    """
    with tempfile.TemporaryDirectory(prefix="coterie-testing-") as folder:
        world = MemoryPeers(
            algorithm,
            Path(folder),
            peers=peers,
            rounds=rounds,
            faults=faults or Faults(),
            seed=seed,
            in_step=in_step,
            topology=topology,
            training=training or Training(epochs=1, batch_size=5, lr=0.1),
            busy=1.0,
        )
        ends = run_virtually(world.play_with(crashes))
    states = {number: peer.state for number, peer in world.peers_by_number.items()}
    passages = {number: peer.passage for number, peer in world.peers_by_number.items()}
    joined = {number: passage.since for number, passage in passages.items() if passage.since}
    left = {number: passage.until for number, passage in passages.items() if passage.until is not None}
    return Outcome(states, world.reports, ends, joined, left)


def small_federation(peers: int, samples: int = 12) -> Federation:
    """Three classes of points around three centres; a few samples for everyone, the same at every call."""
    rng = numpy_generator(7, "peers")
    datasets = []
    for _ in range(peers):
        parts = {}
        for part, n in (("train", samples), ("validation", 4), ("test", 8)):
            y = rng.integers(0, _CLASSES, n)
            parts[part] = (rng.normal(size=(n, _FEATURES)) + y[:, None], y)
        datasets.append(parts)
    made = from_peers(datasets, n_classes=_CLASSES)
    return dataclasses.replace(made, clusters=torch.arange(peers) // 3)


def small_module() -> nn.Module:
    """Two layers, with the same initial weights at every call."""
    with torch.random.fork_rng():
        torch.manual_seed(11)
        return nn.Sequential(nn.Linear(_FEATURES, _HIDDEN), nn.ReLU(), nn.Linear(_HIDDEN, _CLASSES))


def topology_for(algorithm: Algorithm[Any], peers: int) -> Topology:
    """One that the algorithm can work with."""
    facts = algorithm.facts
    name = "star" if facts.hub else "directed(2)" if facts.directed else "full"
    return make(name, peers=peers, seed=5)


class _AtOnce(Workers):
    """No threads: peers in memory wait for each other's work anyway."""

    def __init__(self) -> None:
        super().__init__(1)

    def map(self, fn: Callable[[Any], Any], tasks: Iterable[Any]) -> list[Any]:
        return [fn(task) for task in tasks]


@dataclass
class _Roster:
    """A peer's: of everyone those who are members by now. It is asked for at every turn."""

    number: int
    everyone: Mapping[int, Acquaintance]
    members: set[int]  # grows
    _known: dict[int, Acquaintance] = field(default_factory=dict)
    _count: int = 0  # of the members when that was looked up

    def __call__(self) -> Mapping[int, Acquaintance]:
        if len(self.members) != self._count:
            self._known = {n: self.everyone[n] for n in sorted(self.members) if n != self.number}
            self._count = len(self.members)
        return self._known


@dataclass
class MemoryPeers:
    """An experiment of few peers, which can be started and crashed one by one; `play` runs all to the end.

    folder: for their state. alone: whether a peer goes on when nobody else is there, as it would not by
    itself. bound: on what sealed sums give away. busy: virtual seconds that a piece of local work takes, at
    most. evaluates: whether a round's models are measured.
    """

    algorithm: Algorithm[Any]
    folder: Path
    peers: int = 5
    rounds: int = 5
    samples: int = 12
    faults: Faults = field(default_factory=Faults)
    seed: int = 0
    pace: Pace = field(default_factory=lambda: Pace(deadline=30.0, join=60.0))
    topology: Topology | None = None
    training: Training = field(default_factory=lambda: Training(epochs=1, batch_size=5, lr=0.1))
    in_step: bool = True
    alone: bool = True
    keep_best: bool = False
    bound: Bound = BOUND
    busy: float = 0.0
    evaluates: Callable[[int], bool] = lambda round: True

    def __post_init__(self) -> None:
        self.topology = self.topology or topology_for(self.algorithm, self.peers)
        self.nodes = self.topology.nodes
        self.federation = small_federation(self.peers, self.samples)
        self.network = MemoryNetwork(self.seed, self.faults)
        self.peers_by_number: dict[int, Peer] = {}
        self.reports: dict[int, list[RoundReport]] = {n: [] for n in range(self.nodes)}
        self.tasks: dict[int, asyncio.Task[None]] = {}
        self.members = set(range(self.nodes))  # whom everyone knows
        self.invited: set[int] = set()  # who came later
        self.leaving: set[int] = set()

    async def play(self) -> None:
        """Everyone to the end; raises the first error."""
        for number in range(self.nodes):
            self.start(number)
        await asyncio.gather(*self.tasks.values())

    async def play_with(self, events: Sequence[Event]) -> dict[int, CoterieError | None]:
        """Everyone to its end, with crashes, joins and leaves; how each of them ended."""
        self.invited = {event.peer for event in events if isinstance(event, Join)}
        self.members -= self.invited
        for number in sorted(self.members):
            self.start(number)
        await asyncio.gather(*map(self._happens, events))
        ends = await asyncio.gather(*self.tasks.values(), return_exceptions=True)
        for end in ends:
            if end is not None and not isinstance(end, CoterieError):
                raise end
        return dict(zip(self.tasks, ends, strict=True))  # type: ignore[arg-type]  # as just checked

    def start(self, number: int) -> asyncio.Task[None]:
        """Start a peer, or start it again after a crash."""
        peer = self.peers_by_number[number] = self._peer(number)
        self.tasks[number] = asyncio.create_task(self._run(peer))
        return self.tasks[number]

    async def crash(self, number: int) -> None:
        """As SIGKILL: nothing is cleaned up, connections die."""
        self.network.detach(f"peer-{number}")
        self.tasks[number].cancel()
        await asyncio.gather(self.tasks[number], return_exceptions=True)

    def handler(self, peer: Peer) -> Handler:
        """What answers the others in a peer's name: itself, unless a test puts something in between."""
        return peer

    def node(self, number: int) -> LearningNode:
        """The one row that a peer hosts."""
        assert self.topology is not None
        module, ids = small_module(), torch.tensor([number])
        return LearningNode(
            ids=ids,
            federation=self.federation.of_nodes(ids, self.topology.hub),
            module=module,
            executor=Executor("looped", module, _AtOnce()),
            training=self.training,
            seed=_SEED,
            rounds=self.rounds,
            hub=self.topology.hub,
            clusters=self.federation.clusters,
            bound=self.bound,
        )

    def _peer(self, number: int) -> Peer:
        assert self.topology is not None
        everyone = {
            n: Acquaintance(f"peer-{n}", n, f"host:{1000 + n}", invited=n in self.invited)
            for n in range(self.nodes)
        }
        me = everyone[number]
        return Peer(
            name=me.name,
            address=me.address,
            node=self.node(number),
            algorithm=self.algorithm,
            topology=self.topology,
            rounds=self.rounds,
            digest=_DIGEST,
            roster=_Roster(number, everyone, self.members),
            transport=self.network.transport(me.name),
            journal=Journal(self.folder / me.name, durable=False),
            pace=self.pace,
            in_step=self.in_step,
            alone=self.alone,
            invited=number in self.invited,
            leaves=lambda: number in self.leaving,
            keep_best=self.keep_best,
            evaluates=self.evaluates,
            work=self._work,
            observer=self.reports[number].append,
        )

    async def _run(self, peer: Peer) -> None:
        try:
            await peer.load()
            self.network.attach(peer.name, self.handler(peer))
            await peer.run()
        finally:
            if self.peers_by_number[peer.number] is peer:
                self.network.detach(peer.name)

    async def _happens(self, event: Event) -> None:
        await asyncio.sleep(event.at)
        if isinstance(event, Join):
            self.members.add(event.peer)
            self.start(event.peer)
        elif isinstance(event, Leave):
            self.leaving.add(event.peer)
        elif isinstance(event, Rotation):
            self.network.unknown.add(f"peer-{event.peer}")
            await asyncio.sleep(event.seconds)
            self.network.unknown.discard(f"peer-{event.peer}")
        elif isinstance(event, PowerFailure):
            there = sorted(self.tasks)
            away = [*event.away, *[event.away[-1]] * len(there)]
            await asyncio.gather(*(self._dies(number, away[number]) for number in there))
        else:
            await self._dies(event.peer, event.away)

    async def _dies(self, number: int, away: float) -> None:
        if number in self.tasks and not self.tasks[number].done():
            await self.crash(number)
            await asyncio.sleep(away)
            self.start(number)

    async def _work(self, task: Callable[[], Any]) -> Any:
        """Local work takes virtual time, and others get a turn."""
        await asyncio.sleep(self.network.random.uniform(0, self.busy))
        return task()
