"""Exchanges between real peers over mutual TLS on loopback: what sealing costs, and what talking costs.

All peers are objects in one process and share one core, so the times are those of everybody's work together;
separate machines work side by side. Nobody trains: a round is its exchanges.
"""

from __future__ import annotations

import asyncio
import contextlib
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
from coterie.learning import Executor, LearningNode, Workers
from coterie.peer.cards import Card
from coterie.peer.contexts import Contexts
from coterie.peer.identity import Identity
from coterie.peer.journal import Journal
from coterie.peer.membership import Acquaintance
from coterie.peer.process import Pace, Peer
from coterie.peer.roster import Roster
from coterie.peer.tls import TlsTransport
from coterie.protocol import Algorithm, Exchange, Facts, Inbox, Links, Node, Params, Round
from coterie.topology import Topology, make
from coterie.training import Training

_T = TypeVar("_T")
_MILLION = 1_000_000
_MODEL = 10_000  # float32: 40 kB
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
        others = _links(range(1, 4)) if collects else Links.none()
        payload = {"model": torch.randn(1, _MILLION)}
        for sealed in (False, True):
            yield Exchange({})
            receivers = Links.none() if collects else _links([0])
            exchange = Exchange(payload, to=receivers, expect=others, sealed=sealed)
            if not collects:
                yield exchange
                continue
            with self.clock.timed("sealed" if sealed else "plain"):
                (yield exchange).sum()
        return state


@dataclass(frozen=True)
class ToNeighbours(_Talk):
    """Everybody sends a model to its neighbours. Before that, all wait for each other."""

    def round(self, state: _Nothing, node: Node) -> Round[_Nothing]:
        yield Exchange({})
        with self.clock.timed("exchange"):
            inbox: Inbox = yield Exchange({"model": torch.randn(1, _MODEL)})
        assert int(inbox.count[0]) > 0
        return state


def sealed() -> list[Row]:
    """One collector, three members, a million parameters each: the sealed sum against the plain exchange."""
    clock = Clock()
    play(ToOne(clock=clock), make("full", peers=4, seed=0), rounds=12)
    plain, masked = (min(clock.seconds[what][1:]) for what in ("plain", "sealed"))
    print(f"sum of 3 x 1M parameters: {1000 * plain:.0f} ms plain, {1000 * masked:.0f} ms sealed")
    return [Row("sum of 3 x 1M parameters: sealed / plain", masked, plain, 2.5, at_least=False)]


def exchange() -> list[Row]:
    """A 40 kB model among 8 peers: until the last of them has all that it expects, and all receipts."""
    return [_exchange(topology) for topology in ("full", "random-regular(4)", "ring")]


def _exchange(topology: str) -> Row:
    clock = Clock()
    play(ToNeighbours(clock=clock), make(topology, peers=8, seed=0), rounds=20)
    seconds = median(clock.seconds["exchange"][8:])  # without the first round, which opens connections
    return Row(f"40 kB among 8 peers, {topology}: exchange / 50 ms", seconds, 0.05, 1.0, at_least=False)


def play(algorithm: Algorithm[Any], topology: Topology, rounds: int) -> None:
    """All peers to the end, in this process."""
    with tempfile.TemporaryDirectory() as name:
        asyncio.run(_play(Path(name), algorithm, topology, rounds))


async def _play(folder: Path, algorithm: Algorithm[Any], topology: Topology, rounds: int) -> None:
    identities = {n: Identity.create(folder / str(n), f"peer-{n}") for n in range(topology.nodes)}
    transports: dict[int, TlsTransport] = {}
    acquaintances: dict[int, dict[int, Acquaintance]] = {}
    peers = []
    for number, identity in identities.items():
        roster = Roster.load(identity.folder)
        roster.add(*(_card(other, n) for n, other in identities.items() if n != number))
        transports[number] = _transport(identity, roster)
        others: dict[int, Acquaintance] = {}
        acquaintances[number] = others
        transport = transports[number]
        peers.append(_peer(identity, roster, others, transport, algorithm, topology, rounds, number))
    try:
        for peer in peers:
            await transports[peer.number].start(peer)
            peer.address = f"{_HOST}:{transports[peer.number].port}"
            for number, others in acquaintances.items():
                if number != peer.number:
                    others[peer.number] = Acquaintance(peer.name, peer.number, peer.address)
        await asyncio.gather(*(peer.run() for peer in peers))
    finally:
        for transport in transports.values():
            await transport.stop()


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
        address=f"{_HOST}:1",
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


def _transport(identity: Identity, roster: Roster) -> TlsTransport:
    contexts = Contexts(identity.folder, roster)
    return TlsTransport(
        identity.name,
        _HOST,
        0,
        server_context=contexts.server,
        client_context=contexts.client,
        identify=roster.identify,
        spool=identity.folder / "spool",
    )


def _card(identity: Identity, number: int) -> Card:
    return Card(name=identity.name, number=number, address=f"{_HOST}:1", certificate=identity.certificate_pem)


def _links(ids: Any) -> Links:
    ids = torch.tensor(list(ids))
    return Links(torch.zeros_like(ids), ids)
