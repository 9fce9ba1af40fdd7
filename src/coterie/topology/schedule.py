"""A topology: the graph of every round, as a function of (seed, round) alone."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from coterie.errors import TopologyError
from coterie.topology.catalogue import GraphKind
from coterie.topology.graph import Graph

_GRAPHS_KEPT = 4


class Topology(ABC):
    """Who can send to whom in each round, who is online, and which messages arrive."""

    nodes: int  # peers, and the hub if there is one
    hub: int | None  # the last node, which has no data
    directed: bool
    time_varying: bool

    @abstractmethod
    def graph(self, round: int) -> Graph:
        """The links of one round, whoever is online."""

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
