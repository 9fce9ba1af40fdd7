"""Sets of nodes that share few nodes with given groups: counted and picked by number, never listed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

import torch
from torch import Tensor

_TOGETHER = 1 << 20  # pairs of nodes that are counted together


@dataclass(frozen=True, eq=False)
class Groups:
    """For each row, the sets of `size` nodes with at most limits[j] nodes in common with group j.

    Sets are ordered by their lowest node, then by the next, and so on. Counting takes one product of
    (nodes, nodes) matrices per row for size 3, and for every node above that one for each node instead.
    """

    nodes: Tensor  # (rows, nodes) bool: which may be used
    groups: Tensor  # (rows, groups, members) ascending positions of nodes; `nodes` itself: nobody
    limits: Tensor  # (rows, groups)
    size: int

    @property
    def count(self) -> Tensor:
        """(rows,) how many sets there are."""
        return self._by_lowest.sum(1)

    def pick(self, number: Tensor) -> Tensor:
        """(rows, size): the nodes of set `number`, ascending, for numbers below `count`."""
        ends = self._by_lowest.cumsum(1)
        lowest = torch.searchsorted(ends, number[:, None], right=True)
        if self.size == 1:
            return lowest
        start = ends.gather(1, lowest) - self._by_lowest.gather(1, lowest)
        rest = self._above(lowest).pick(number - start[:, 0])
        return torch.cat((lowest, rest), dim=1)

    def take(self, rows: Tensor) -> Groups:
        """Some of the rows."""
        some = Groups(self.nodes[rows], self.groups[rows], self.limits[rows], self.size)
        if "_by_lowest" in self.__dict__:
            some.__dict__["_by_lowest"] = self._by_lowest[rows]
        return some

    @cached_property
    def _free(self) -> Tensor:
        """(rows, nodes) bool: nodes that are in no group of which nothing may be taken."""
        width = self.nodes.shape[1]
        banned = self.nodes.new_zeros(len(self.nodes), width + 1)
        row, group = (self.limits <= 0).nonzero(as_tuple=True)
        banned[row[:, None], self.groups[row, group]] = True
        return self.nodes & ~banned[:, :width]

    @cached_property
    def _by_lowest(self) -> Tensor:
        """(rows, nodes) int64: how many sets have each node as their lowest."""
        counts = torch.zeros(self.nodes.shape, dtype=torch.long)
        rows = (self._free.sum(1) >= self.size).nonzero().flatten()
        if len(rows):
            counts[rows] = Groups(
                self._free[rows], self.groups[rows], self.limits[rows], self.size
            )._counted()
        return counts

    def _counted(self) -> Tensor:
        if self.size == 1:
            return self._free.long()
        if self.size > 3:
            return self._counted_above()
        together = self._together()
        if self.size == 2:
            return together.sum(2).long()
        counts = (torch.bmm(together, together) * together).sum(2).long()
        row, a, b, c = self._full_triples()
        full = together[row, a, b] * together[row, a, c] * together[row, b, c]
        return counts.index_put_((row, a), -full.long(), accumulate=True)

    def _counted_above(self) -> Tensor:
        """By what can be added to each lowest node, for many rows and nodes at once."""
        width = self.nodes.shape[1]
        counts = torch.zeros(self.nodes.shape, dtype=torch.long)
        node, row = self._free.T.nonzero(as_tuple=True)  # in the order of nodes: those before are of no use
        for pairs in torch.arange(len(row)).split(max(1, _TOGETHER // width**2)):
            some, lowest = row[pairs], node[pairs]
            above = self.take(some)._above(lowest[:, None])._from(int(lowest[0]))
            counts[some, lowest] = above.count
        return counts

    def _from(self, first: int) -> Groups:
        """The same sets without the nodes before `first`, of which there are none."""
        nobody = self.nodes.shape[1] - first
        groups = (self.groups - first).where(self.groups >= first, nobody).sort(dim=2).values
        return Groups(self.nodes[:, first:], groups, self.limits, self.size)

    def _above(self, node: Tensor) -> Groups:
        """What can be added to each row's node (rows, 1) from those after it."""
        later = self._free & (torch.arange(self.nodes.shape[1]) > node)
        used = (self.groups == node[:, :, None]).any(2)
        return Groups(later, self.groups, self.limits - used.long(), self.size - 1)

    def _together(self) -> Tensor:
        """(rows, nodes, nodes), 1 where the row's node comes before the column's and both may be taken."""
        n = self.nodes.shape[1]
        row, group = (self.limits == 1).nonzero(as_tuple=True)
        pairs = torch.ones(len(self.nodes), n + 1, n + 1).triu_(1)
        for a, b in combinations(range(self.groups.shape[2]), 2):
            pairs[row, self.groups[row, group, a], self.groups[row, group, b]] = 0.0
        free = self._free.float()
        return pairs[:, :n, :n] * free[:, :, None] * free[:, None, :]

    def _full_triples(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Rows and three nodes of a group of which only two may be taken, each triple once."""
        n = self.nodes.shape[1]
        row, group = (self.limits == 2).nonzero(as_tuple=True)
        chosen = self.groups[row, group]
        found = []
        for triple in combinations(range(chosen.shape[1]), 3):
            nodes = chosen[:, list(triple)]
            inside = nodes[:, 2] < n  # ascending, and n stands for nobody
            found.append(torch.cat((row[inside, None], nodes[inside]), dim=1))
        triples = torch.cat(found) if len(found) == 1 else torch.cat(found).unique(dim=0)
        return triples[:, 0], triples[:, 1], triples[:, 2], triples[:, 3]
