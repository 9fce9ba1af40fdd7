"""The links of one round, the kinds of graphs that users can name, and the graph of every round."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from coterie.errors import ConfigError, TopologyError

LinkEnds = tuple[Tensor, Tensor]  # senders (links,), receivers (links,)

MOST_LINKS = 50_000_000
"""Two int64 ids per link and the sorting of them: beyond this a round's graph takes gigabytes."""
_GRAPHS_KEPT = 4


@dataclass(frozen=True, eq=False)
class Graph:
    """Directed links without self loops or duplicates; an undirected edge is two links.

    Make one with `from_links`, which establishes the order that the other methods rely on.
    """

    nodes: int
    senders: Tensor  # (links,) int64
    receivers: Tensor  # (links,) int64; sorted by receiver, then by sender
    leaving: Tensor | None = None  # (nodes,) bool: who takes part for the last time; None: nobody

    @classmethod
    def from_links(cls, nodes: int, senders: Tensor, receivers: Tensor) -> Graph:
        """Sort, drop duplicates and self loops; ids outside 0..nodes-1 are an error."""
        senders, receivers = senders.long().flatten(), receivers.long().flatten()
        _check_ids(nodes, senders)
        _check_ids(nodes, receivers)
        keys = (receivers * nodes + senders)[senders != receivers]
        if not bool((keys[1:] > keys[:-1]).all()):
            keys = keys.sort().values
            keys = keys[torch.cat((keys.new_ones(1).bool(), keys[1:] > keys[:-1]))]
        return cls(nodes, keys % nodes, keys // nodes)

    @cached_property
    def in_degree(self) -> Tensor:
        """(nodes,) how many nodes send to each."""
        return torch.bincount(self.receivers, minlength=self.nodes)

    @cached_property
    def out_degree(self) -> Tensor:
        """(nodes,) how many nodes each sends to."""
        return torch.bincount(self.senders, minlength=self.nodes)

    @cached_property
    def symmetric(self) -> bool:
        """Whether every link has its reverse."""
        reverse = (self.senders * self.nodes + self.receivers).sort().values
        return torch.equal(reverse, self.receivers * self.nodes + self.senders)

    def in_neighbours(self, node: int) -> Tensor:
        """Ids of the nodes that send to `node`, ascending."""
        start, end = self._in_offsets[node], self._in_offsets[node + 1]
        return self.senders[start:end]

    def out_neighbours(self, node: int) -> Tensor:
        """Ids of the nodes that `node` sends to, ascending."""
        receivers, offsets = self._by_sender
        return receivers[offsets[node] : offsets[node + 1]]

    def without(self, absent: Tensor, leaving: Tensor | None = None) -> Graph:
        """The links between all others; leaving: who of them takes part for the last time."""
        kept = ~(absent[self.senders] | absent[self.receivers])
        return Graph(self.nodes, self.senders[kept], self.receivers[kept], leaving)

    def adjacency(self) -> Tensor:
        """(nodes, nodes) bool, `A[receiver, sender]`; for small graphs."""
        dense = torch.zeros(self.nodes, self.nodes, dtype=torch.bool)
        dense[self.receivers, self.senders] = True
        return dense

    @cached_property
    def _in_offsets(self) -> list[int]:
        return _offsets(self.in_degree)

    @cached_property
    def _by_sender(self) -> tuple[Tensor, list[int]]:
        order = self.senders.argsort(stable=True)
        return self.receivers[order], _offsets(self.out_degree)


def metropolis(graph: Graph, senders: Tensor, receivers: Tensor) -> Tensor:
    """(links,) the share of a sender's model that a receiver takes over some links: those of what arrived.

    1 / (1 + the larger degree), and a receiver keeps for itself what is left to 1: rows and columns sum to 1,
    so that the mean over peers is kept.
    """
    if not graph.symmetric:
        raise TopologyError("metropolis weights need an undirected graph; on a directed one use uniform")
    degree = graph.in_degree
    return 1.0 / (1 + torch.maximum(degree[senders], degree[receivers])).float()


def _check_ids(nodes: int, ids: Tensor) -> None:
    if len(ids) == 0:
        return
    lowest, highest = map(int, ids.aminmax())
    if lowest < 0 or highest >= nodes:
        wrong = lowest if lowest < 0 else highest
        raise TopologyError(f"node {wrong} does not exist: {nodes} nodes have ids 0 to {nodes - 1}")


def _offsets(degree: Tensor) -> list[int]:
    return [0, *degree.cumsum(0).tolist()]


class GraphKind(ABC):
    """What was asked for, before the number of peers and the seed are known. Entries are frozen."""

    def has_hub(self) -> bool:
        """Whether there is one more node, the last, without data."""
        return False

    def is_directed(self) -> bool:
        """Whether a link need not have its reverse."""
        return False

    def varies(self) -> bool:
        """Whether the graph changes between rounds."""
        return False

    def phase(self, round: int, peers: int) -> int:
        """Rounds of equal phase have the same graph; a static graph has one phase."""
        return round if self.varies() else 0

    def check(self, peers: int) -> None:  # noqa: B027  (most graphs exist for any number of peers)
        """TopologyError if no such graph exists. Needs no PyTorch, so that a mistake is found at once."""

    @abstractmethod
    def links(self, peers: int, seed: int, phase: int) -> LinkEnds:
        """The links of one phase, in any order, of a graph that exists."""


def require_graph_kind(found: Any, shown: str) -> None:
    """Refuse a class that makes no graphs; a function is seen by what it returns."""
    if inspect.isclass(found) and not issubclass(found, GraphKind):
        raise ConfigError(
            f"{shown} is no topology: let it inherit from coterie.topology.GraphKind and define "
            "links(peers, seed, phase), or write a function that returns a networkx graph or a list of pairs"
        )
    if inspect.isabstract(found):
        missing = ", ".join(sorted(found.__abstractmethods__))
        raise ConfigError(f"{shown} does not define {missing}(peers, seed, phase)")


def both_ways(a: Tensor, b: Tensor) -> LinkEnds:
    """The two links of each undirected edge."""
    return torch.cat((a, b)), torch.cat((b, a))


def check_size(asked: str, links: float) -> None:
    """Refuse a graph too large to hold."""
    if links > MOST_LINKS:
        raise TopologyError(
            f"{asked} has about {links:,.0f} links, more than the {MOST_LINKS:,} that fit; with so many "
            f"peers use a sparse graph: random-regular(k), directed(k), small-world(k,p), exponential or ring"
        )


def check_probability(asked: str, name: str, value: float) -> None:
    """Refuse a probability outside [0, 1], NaN included."""
    if not 0.0 <= value <= 1.0:
        raise TopologyError(f"{asked}: {name} is a probability, from 0 to 1, not {value}")


class Topology(ABC):
    """Who can send to whom in each round, who is online, and which messages arrive."""

    nodes: int  # peers, and the hub if there is one
    hub: int | None  # the last node, which has no data
    directed: bool
    time_varying: bool

    @abstractmethod
    def graph(self, round: int) -> Graph:
        """The links of one round, whoever is online."""

    def present(self, round: int) -> Tensor:
        """(nodes,) bool: who is a member in this round, whether it is online or not."""
        return torch.ones(self.nodes, dtype=torch.bool)

    def online(self, round: int) -> Tensor:
        """(nodes,) bool: who takes part in this round."""
        return torch.ones(self.nodes, dtype=torch.bool)

    def delivers(self, round: int, slot: int, senders: Tensor, receivers: Tensor) -> Tensor:
        """(messages,) bool: which messages of the round's exchange number `slot` arrive."""
        return torch.ones(len(senders), dtype=torch.bool)


class Scheduled(Topology):
    """The graphs of a spec for a given number of peers and seed; the latest few are kept."""

    def __init__(self, spec: GraphKind, peers: int, seed: int) -> None:
        if peers < 1:
            raise TopologyError(f"a topology needs at least 1 peer, not {peers}")
        spec.check(peers)
        self.spec, self.peers, self.seed = spec, peers, seed
        self.nodes = peers + 1 if spec.has_hub() else peers
        self.hub = peers if spec.has_hub() else None
        self.directed = spec.is_directed()
        self.time_varying = spec.varies()
        # A plain dict, so that a topology can be sent to a worker with its static graph.
        self._graphs: dict[int, Graph] = {}

    def graph(self, round: int) -> Graph:
        phase = self.spec.phase(round, self.peers)
        graph = self._graphs.get(phase)
        if graph is None:
            graph = Graph.from_links(self.nodes, *self.spec.links(self.peers, self.seed, phase))
            for oldest in list(self._graphs)[: 1 - _GRAPHS_KEPT]:
                self._graphs.pop(oldest, None)  # another worker thread may have been faster
            self._graphs[phase] = graph
        return graph

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.spec!r}, peers={self.peers}, seed={self.seed})"
