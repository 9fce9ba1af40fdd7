"""The links of one round, as two parallel tensors."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from coterie.errors import TopologyError


@dataclass(frozen=True, eq=False)
class Graph:
    """Directed links without self loops or duplicates; an undirected edge is two links.

    Make one with `from_links`, which establishes the order that the other methods rely on.
    """

    nodes: int
    senders: Tensor  # (links,) int64
    receivers: Tensor  # (links,) int64; sorted by receiver, then by sender

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


def _check_ids(nodes: int, ids: Tensor) -> None:
    if len(ids) == 0:
        return
    lowest, highest = map(int, ids.aminmax())
    if lowest < 0 or highest >= nodes:
        wrong = lowest if lowest < 0 else highest
        raise TopologyError(f"node {wrong} does not exist: {nodes} nodes have ids 0 to {nodes - 1}")


def _offsets(degree: Tensor) -> list[int]:
    return [0, *degree.cumsum(0).tolist()]
