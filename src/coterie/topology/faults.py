"""What goes wrong: peers that are away for a round, and messages that get lost.

Both wrap a topology and can be nested in any order. Each draw is a pure function of what it is about,
so every process agrees on it and a resumed run sees the same faults.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from coterie.errors import TopologyError
from coterie.randomness import digest, philox, stream
from coterie.topology.graphs import Graph, Topology


class _Wrapper(Topology):
    """The wrapped topology, unless a method says otherwise."""

    name: ClassVar[str]

    def __init__(self, topology: Topology, rate: float, seed: int) -> None:
        if not 0.0 <= rate <= 1.0:
            raise TopologyError(f"{self.name} rate {rate} is not a probability; choose it from 0 to 1")
        self.topology, self.rate, self.seed = topology, rate, seed
        self.nodes, self.hub = topology.nodes, topology.hub
        self.directed, self.time_varying = topology.directed, topology.time_varying

    def graph(self, round: int) -> Graph:
        return self.topology.graph(round)

    def online(self, round: int) -> Tensor:
        return self.topology.online(round)

    def delivers(self, round: int, slot: int, senders: Tensor, receivers: Tensor) -> Tensor:
        return self.topology.delivers(round, slot, senders, receivers)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.topology!r}, rate={self.rate}, seed={self.seed})"


class Churn(_Wrapper):
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


class MessageLoss(_Wrapper):
    """Each message is lost with probability `rate`, given round, slot, sender and receiver."""

    name = "loss"

    def delivers(self, round: int, slot: int, senders: Tensor, receivers: Tensor) -> Tensor:
        counter = (receivers, torch.tensor(slot), torch.tensor(round), senders)
        bits = philox(counter, digest(self.seed, "loss"))[0]  # uniform in [0, 2^32)
        arrived = self.topology.delivers(round, slot, senders, receivers)
        return arrived & (bits >= self.rate * 2.0**32)
