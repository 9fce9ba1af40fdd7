"""What goes wrong: peers that come late, leave, or are away for a round, and messages that get lost.

All wrap a topology. Each draw is a pure function of what it is about, so every process agrees on it and a
resumed run sees the same faults.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from coterie.errors import TopologyError
from coterie.randomness import digest, philox, stream
from coterie.topology.graphs import Graph, Topology


class _Wrapper(Topology):
    """The wrapped topology, unless a method says otherwise."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.nodes, self.hub = topology.nodes, topology.hub
        self.directed, self.time_varying = topology.directed, topology.time_varying

    def graph(self, round: int) -> Graph:
        return self.topology.graph(round)

    def present(self, round: int) -> Tensor:
        return self.topology.present(round)

    def online(self, round: int) -> Tensor:
        return self.topology.online(round)

    def delivers(self, round: int, slot: int, senders: Tensor, receivers: Tensor) -> Tensor:
        return self.topology.delivers(round, slot, senders, receivers)


class _Drawn(_Wrapper):
    """What happens with a probability, by a seed."""

    name: ClassVar[str]

    def __init__(self, topology: Topology, rate: float, seed: int) -> None:
        if not 0.0 <= rate <= 1.0:
            raise TopologyError(f"{self.name} rate {rate} is not a probability; choose it from 0 to 1")
        super().__init__(topology)
        self.rate, self.seed = rate, seed

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.topology!r}, rate={self.rate}, seed={self.seed})"


class Attendance(_Wrapper):
    """Peers that join later, and peers that leave; the others' graph has no links with who is not there.

    joins: the first round of each peer that is not there from the start. leaves: the first round without
    it, of each peer that goes. Both may change meanwhile: real peers learn of it as they go. fixed: a round,
    who is absent in it and who leaves with it, whatever the others say.

    Who leaves hands over what it holds in its last round: it sends all of its conserved mass, and none is
    sent to it (`Graph.leaving`).
    """

    def __init__(
        self,
        topology: Topology,
        joins: Mapping[int, int] | None = None,
        leaves: Mapping[int, int] | None = None,
    ) -> None:
        super().__init__(topology)
        self.joins, self.leaves = dict(joins or {}), dict(leaves or {})
        self.fixed: tuple[int, frozenset[int], frozenset[int]] | None = None
        self._kept: tuple[Graph, Tensor, Tensor, Graph] | None = None

    def present(self, round: int) -> Tensor:
        there = self.topology.present(round)
        if self.fixed is not None and self.fixed[0] == round:
            there[list(self.fixed[1])] = False
            return there
        for peer, first in self.joins.items():
            there[peer] &= round >= first
        for peer, end in self.leaves.items():
            there[peer] &= round < end
        return there

    def graph(self, round: int) -> Graph:
        whole = self.topology.graph(round)
        if not self.joins and not self.leaves and self.fixed is None:
            return whole
        present, leaving = self.present(round), torch.zeros(self.nodes, dtype=torch.bool)
        if whole.leaving is not None:  # also those of whom the wrapped topology says so
            leaving |= whole.leaving
        leaving[self._leaving(round)] = True
        kept = self._kept
        if kept and kept[0] is whole and torch.equal(kept[1], present) and torch.equal(kept[2], leaving):
            return kept[3]
        graph = whole.without(~present, leaving if bool(leaving.any()) else None)
        self._kept = whole, present, leaving, graph
        return graph

    def _leaving(self, round: int) -> list[int]:
        if self.fixed is not None and self.fixed[0] == round:
            return list(self.fixed[2])
        return [peer for peer, end in self.leaves.items() if round == end - 1]

    def online(self, round: int) -> Tensor:
        return self.present(round) & self.topology.online(round)

    def __repr__(self) -> str:
        return f"Attendance({self.topology!r}, joins={self.joins}, leaves={self.leaves})"


class Churn(_Drawn):
    """Each peer is offline in each round with probability `rate`; the hub never is.

    The graph keeps the links of those who are away; nothing is delivered over them.
    """

    name = "churn"

    def online(self, round: int) -> Tensor:
        draws = stream(self.seed, "churn", round, torch.arange(self.nodes)).uniform(1)[:, 0]
        present = draws >= self.rate
        if self.hub is not None:
            present[self.hub] = True
        return present & self.topology.online(round)

    def delivers(self, round: int, slot: int, senders: Tensor, receivers: Tensor) -> Tensor:
        present = self.online(round)
        arrived = self.topology.delivers(round, slot, senders, receivers)
        return arrived & present[senders] & present[receivers]


class MessageLoss(_Drawn):
    """Each message is lost with probability `rate`, given round, slot, sender and receiver."""

    name = "loss"

    def delivers(self, round: int, slot: int, senders: Tensor, receivers: Tensor) -> Tensor:
        counter = (receivers, torch.tensor(slot), torch.tensor(round), senders)
        bits = philox(counter, digest(self.seed, "loss"))[0]  # uniform in [0, 2^32)
        arrived = self.topology.delivers(round, slot, senders, receivers)
        return arrived & (bits >= self.rate * 2.0**32)
