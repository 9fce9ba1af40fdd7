"""Exchanges between real peers over mutual TLS on loopback: what sealing costs, and what talking costs.

There are as many processes as cores, and each hosts its part of the peers. Nobody trains: a round is its
exchanges.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import multiprocessing
import socket
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import torch
from torch import nn

from benchmarks.timing import Row
from coterie.data import from_peers
from coterie.learning import Executor, LearningNode, Workers, cores
from coterie.peer.exchange.journal import Journal
from coterie.peer.exchange.membership import Acquaintance
from coterie.peer.network.calling import TlsTransport
from coterie.peer.process import Pace, Peer
from coterie.peer.trust.cards import Card
from coterie.peer.trust.contexts import Contexts
from coterie.peer.trust.identity import Identity
from coterie.peer.trust.roster import Roster
from coterie.protocol import Algorithm, Exchange, Facts, Inbox, Links, Node, Params, Round
from coterie.topology import Topology, make
from coterie.training import Training

_T = TypeVar("_T")
_MILLION = 1_000_000
_MODEL = 10_000  # float32: 40 kB
_IN_A_ROW = 10  # exchanges that are timed together: peers do not begin at the same moment
_HOST = "127.0.0.1"
_FACTS = Facts(paper="none", measured="after_mixing", communication="what is measured")


@dataclass
class Clock:
    """Seconds of every exchange, by what it was."""

    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    @contextlib.contextmanager
    def timed(self, what: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[what].append(time.perf_counter() - start)


@dataclass(frozen=True)
class _Nothing:
    """The state of a node that learns nothing."""

    params: Params


@dataclass(frozen=True)
class _Talk(Algorithm[_Nothing]):
    facts = _FACTS

    clock: Clock = field(default_factory=Clock)

    def init(self, node: Node) -> _Nothing:
        return _Nothing({"x": torch.zeros(1, 1)})

    def personal(self, state: _Nothing) -> Params:
        return state.params


@dataclass(frozen=True)
class ToOne(_Talk):
    """Node 0 adds up what all others send: plain, then sealed. Before each, all wait for each other."""

    def round(self, state: _Nothing, node: Node) -> Round[_Nothing]:
        collects = int(node.ids[0]) == 0
        others = _links(range(1, 4)) if collects else _links([])
        payload = {"model": torch.randn(1, _MILLION)}
        for sealed in (False, True):
            yield Exchange({})
            receivers = _links([]) if collects else _links([0])
            exchange = Exchange(payload, to=receivers, expect=others, sealed=sealed)
            if not collects:
                yield exchange
                continue
            with self.clock.timed("sealed" if sealed else "plain"):
                (yield exchange).sum()
        return state


@dataclass(frozen=True)
class ToNeighbours(_Talk):
    """Everybody sends a model to its neighbours, ten times in a row. Before that, all wait for each other."""

    def round(self, state: _Nothing, node: Node) -> Round[_Nothing]:
        payload = {"model": torch.randn(1, _MODEL)}
        yield Exchange({})
        with self.clock.timed("exchange"):
            for _ in range(_IN_A_ROW):
                inbox: Inbox = yield Exchange(payload)
                assert int(inbox.count[0]) > 0
        return state


def sealed() -> list[Row]:
    """One collector, three members, a million parameters each: the sealed sum against the plain exchange."""
    seconds = play(ToOne, "full", peers=4, rounds=12)
    plain, masked = (median(seconds[what][1:]) for what in ("plain", "sealed"))
    print(f"sum of 3 x 1M parameters: {1000 * plain:.0f} ms plain, {1000 * masked:.0f} ms sealed")
    return [Row("sum of 3 x 1M parameters: sealed / plain", masked, plain, 2.5, at_least=False)]


def exchange() -> list[Row]:
    """A 40 kB model among 8 peers: until the last of them has all that it expects, and all receipts."""
    return [_exchange(topology) for topology in ("full", "random-regular(4)", "ring")]


def _exchange(topology: str) -> Row:
    seconds = play(ToNeighbours, topology, peers=8, rounds=12)
    typical = median(seconds["exchange"]) / _IN_A_ROW  # the first round of twelve opens connections
    return Row(f"40 kB among 8 peers, {topology}: exchange / 50 ms", typical, 0.05, 1.0, at_least=False)


def play(algorithm: type[_Talk], topology: str, peers: int, rounds: int) -> dict[str, list[float]]:
    """All peers to the end; the seconds that they measured."""
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for number in range(peers):
            Identity.create(folder / str(number), f"peer-{number}")
        results: Any = spawn.Queue()
        ports = _free_ports(peers)
        parts = [range(first, peers, cores()) for first in range(cores())]
        hosts = [
            spawn.Process(target=_host, args=(folder, algorithm, topology, rounds, ports, part, results))
            for part in parts
        ]
        for host in hosts:
            host.start()
        measured = [results.get(timeout=300) for _ in hosts]
        for host in hosts:
            host.join(60)
    whats = {what for one in measured for what in one}
    return {what: [second for one in measured for second in one.get(what, ())] for what in whats}


def _host(
    folder: Path,
    algorithm: type[_Talk],
    topology: str,
    rounds: int,
    ports: list[int],
    part: range,
    results: Any,
) -> None:
    torch.set_num_threads(1)
    logging.getLogger("coterie.peer").setLevel(logging.ERROR)  # the processes do not start at the same moment
    clock = Clock()
    graph = make(topology, peers=len(ports), seed=0)
    asyncio.run(_play(folder, algorithm(clock=clock), graph, rounds, ports, part))
    results.put(dict(clock.seconds))


async def _play(
    folder: Path, algorithm: _Talk, topology: Topology, rounds: int, ports: list[int], part: range
) -> None:
    identities = [Identity.load(folder / str(number)) for number in range(topology.nodes)]
    everyone = {n: Acquaintance(f"peer-{n}", n, f"{_HOST}:{port}") for n, port in enumerate(ports)}
    peers, transports = [], []
    for number in part:
        roster = Roster.load(identities[number].folder)
        roster.add(*(_card(other, n) for n, other in enumerate(identities) if n != number))
        others = {n: other for n, other in everyone.items() if n != number}
        transport = _transport(identities[number], roster, ports[number])
        peers.append(
            _peer(identities[number], roster, others, transport, algorithm, topology, rounds, number)
        )
        transports.append(transport)
    try:
        for peer, transport in zip(peers, transports, strict=True):
            await transport.start(peer)
        await asyncio.gather(*(peer.run() for peer in peers))
    finally:
        for transport in transports:
            await transport.stop()


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server((_HOST, 0)) for _ in range(count)]
    ports = [sock.getsockname()[1] for sock in sockets]
    for sock in sockets:
        sock.close()
    return ports


def _peer(
    identity: Identity,
    roster: Roster,
    others: Mapping[int, Acquaintance],
    transport: TlsTransport,
    algorithm: Algorithm[Any],
    topology: Topology,
    rounds: int,
    number: int,
) -> Peer:
    return Peer(
        name=identity.name,
        address=f"{_HOST}:{transport.port}",
        node=_node(number, topology, rounds),
        algorithm=algorithm,
        topology=topology,
        rounds=rounds,
        digest="0" * 64,
        roster=lambda: others,
        transport=transport,
        journal=Journal(identity.folder / "state", durable=False),
        pace=Pace(heartbeat=2.0, suspect_after=30.0),  # a loaded machine is not an absent peer
        sign=identity.sign,
        verify=roster.verify,
        evaluates=lambda round: False,
        work=_inline,
    )


def _node(number: int, topology: Topology, rounds: int) -> LearningNode:
    """With four samples, of which nobody learns."""
    module, ids = nn.Linear(2, 2), torch.tensor([number])
    own = from_peers([{"train": (torch.zeros(4, 2).numpy(), torch.arange(4).numpy() % 2)}], n_classes=2)
    return LearningNode(
        ids=ids,
        federation=own.spread(number, topology.nodes).of_nodes(ids, None),
        module=module,
        executor=Executor("looped", module, Workers(1)),
        training=Training(),
        seed=0,
        rounds=rounds,
    )


async def _inline(task: Callable[[], _T]) -> _T:
    return task()


def _transport(identity: Identity, roster: Roster, port: int) -> TlsTransport:
    contexts = Contexts(identity.folder, roster)
    return TlsTransport(
        identity.name,
        _HOST,
        port,
        server_context=contexts.server,
        client_context=contexts.client,
        identify=roster.identify,
        spool=identity.folder / "spool",
    )


def _card(identity: Identity, number: int) -> Card:
    return Card(name=identity.name, number=number, address=f"{_HOST}:1", certificate=identity.certificate_pem)


def _links(ids: Any) -> Links:
    ids = torch.tensor(list(ids), dtype=torch.long)
    return Links(torch.zeros_like(ids), ids)
