"""PPDL's bandit, whose arms are groups of M peers, in an exact sparse form.

With 99 candidates and M = 3 there are 156,849 arms; only those that were pulled are stored. A
pseudo-reward depends on an arm only through its overlap u with the pulled group, and falls with u, so an
arm competes with the best one exactly if it shares at most a_j nodes with every pulled group j. How many
unpulled arms do, and which is the k-th of them, follows by counting (`Groups`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

import torch
from torch import Tensor

from coterie.protocol import Links
from coterie.randomness import Stream

_CHUNK = 1 << 22  # pairs of nodes that are looked at together
_TOGETHER = 1 << 20  # pairs of nodes that are counted together
# Rewards are accuracies, quotients of small numbers, so that a bound often equals the best mean, while their
# float32 values differ by some 1e-8. Such arms compete: eq. 4 has >=.
_TIE = 1e-6


@dataclass(frozen=True)
class Arms:
    """The group that each row plays."""

    groups: Tensor  # (rows, M) ids, ascending; -1 where fewer than M nodes were reachable
    probability: Tensor  # (rows,) with which the bandit chose it
    competitive: Tensor  # (rows,) how many arms it chose from

    @property
    def size(self) -> Tensor:
        """(rows,) number of nodes in the group."""
        return (self.groups >= 0).sum(1)

    @property
    def links(self) -> Links:
        rows, place = (self.groups >= 0).nonzero(as_tuple=True)
        return Links(rows, self.groups[rows, place])


@dataclass(frozen=True)
class Bandit:
    """What each row remembers of its pulled arms; there are at most as many as rounds."""

    groups: Tensor  # (rows, arms, M) int32, ids ascending; -1: none yet
    pulls: Tensor  # (rows, arms) int32: n_j
    pseudo: Tensor  # (rows, arms, M + 1) sums of the pseudo-rewards at overlap u; at u = M, of the rewards
    losses: Tensor  # (rows, arms) importance-weighted losses: L_j

    @classmethod
    def fresh(cls, rows: int, arms: int, size: int) -> Bandit:
        return cls(
            torch.full((rows, arms, size), -1, dtype=torch.int32),
            torch.zeros(rows, arms, dtype=torch.int32),
            torch.zeros(rows, arms, size + 1, dtype=torch.float64),
            torch.zeros(rows, arms, dtype=torch.float64),
        )

    def draw(self, candidates: Links, stream: Stream) -> Arms:
        """For each row an arm of its competitive set; the candidates are sorted by row and id."""
        rows, size = len(self.groups), self.groups.shape[2]
        degree = torch.bincount(candidates.rows, minlength=rows)
        ids = torch.full((rows, max(size, int(degree.max()))), torch.iinfo(torch.long).max)
        place = torch.arange(len(candidates)) - (degree.cumsum(0) - degree)[candidates.rows]
        ids[candidates.rows, place] = candidates.ids
        groups = ids[:, :size].where(torch.arange(size) < degree[:, None], -1)
        probability, competitive = torch.ones(rows, dtype=torch.float64), torch.ones(rows, dtype=torch.long)
        uniform = _doubles(stream.bits(4))
        for chunk in (degree > size).nonzero().flatten().split(max(1, _CHUNK // ids.shape[1] ** 2)):
            if len(chunk):
                choice = Choice.of(self, chunk, ids[chunk], degree[chunk])
                place, probability[chunk], competitive[chunk] = choice.draw(uniform[chunk])
                groups[chunk] = ids[chunk].gather(1, place)
        return Arms(groups, probability, competitive)

    def update(self, arms: Arms, reward: Tensor, q: float, observed: Tensor) -> Bandit:
        """Learn each row's reward, where it was observed for a whole group of M nodes."""
        size = self.groups.shape[2]
        groups = arms.groups.int()
        same = (self.groups == groups[:, None]).all(2) & (self.pulls > 0)
        slot = torch.where(same.any(1), same.int().argmax(1), (self.pulls > 0).sum(1))
        # The second condition: a run of more rounds than were planned.
        observed = observed & (arms.size == size) & (slot < self.pulls.shape[1])
        row, slot = observed.nonzero().flatten(), slot[observed]
        r = reward.double()[row]
        new = Bandit(self.groups.clone(), self.pulls.clone(), self.pseudo.clone(), self.losses.clone())
        new.groups[row, slot] = groups[row]
        new.pulls[row, slot] += 1
        new.pseudo[row, slot] += pseudo_rewards(r, q, size)
        new.losses[row, slot] += (1.0 - r) / arms.probability[row]
        return new


def pseudo_rewards(reward: Tensor, q: float, size: int) -> Tensor:
    """(rows, M + 1): what an arm that shares u = 0 .. M nodes with the pulled one may bring (eq. 3)."""
    overlap = torch.arange(1, size, dtype=torch.float64)
    between = (reward[:, None] + q / overlap).clamp(max=1.0)
    return torch.cat((torch.ones_like(reward)[:, None], between, reward[:, None]), dim=1)


@dataclass(frozen=True)
class Choice:
    """The choice of some rows among the groups of nodes that they can reach, by position in a table."""

    reachable: Tensor  # (rows, nodes) bool
    groups: Tensor  # (rows, pulled, M) ascending positions; `nodes` itself: not reachable
    playable: Tensor  # (rows, pulled) bool: all members are reachable
    pulls: Tensor  # (rows, pulled)
    means: Tensor  # (rows, pulled, M + 1) phi by overlap; the last column is mu
    losses: Tensor  # (rows, pulled)

    @classmethod
    def of(cls, bandit: Bandit, rows: Tensor, ids: Tensor, degree: Tensor) -> Choice:
        width = ids.shape[1]
        pulls = bandit.pulls[rows]
        known = int((pulls > 0).sum(1).max())  # arms are stored in the order of their first pull
        pulls, groups = pulls[:, :known].double(), bandit.groups[rows, :known].long()
        flat = groups.flatten(1)
        place = torch.searchsorted(ids, flat).clamp(max=width - 1)
        place = place.where(ids.gather(1, place) == flat, width).view_as(groups).sort(dim=2).values
        means = bandit.pseudo[rows, :known] / pulls.clamp(min=1)[:, :, None]
        return cls(
            torch.arange(width) < degree[:, None],
            place,
            (place < width).all(2),
            pulls,
            means,
            bandit.losses[rows, :known],
        )

    @property
    def size(self) -> int:
        return self.groups.shape[2]

    def limits(self) -> tuple[Tensor, Tensor]:
        """a_j, how many nodes competitive arms may share with each pulled one, and which is k_bar (eq. 4)."""
        pulled, arms = self.pulls > 0, _binomial(self.reachable.sum(1), self.size)
        significant = pulled & (self.pulls * arms[:, None] >= self.pulls.sum(1, keepdim=True))
        significant = significant.where(significant.any(1, keepdim=True), pulled)
        eligible, mu = significant & self.playable, self.means[:, :, -1]
        highest = mu.masked_fill(~eligible, -torch.inf)
        highest = highest.amax(1) if highest.shape[1] else highest.new_full((len(mu),), -torch.inf)
        most = (self.means >= highest[:, None, None] - _TIE).sum(2) - 1  # phi falls with the overlap
        best = eligible & (mu >= highest[:, None] - _TIE)
        for member in self.groups.unbind(2) if mu.shape[1] else ():  # of equal arms the lowest
            lowest = member.masked_fill(~best, torch.iinfo(torch.long).max).amin(1, keepdim=True)
            best = best & (member == lowest)
        return most.where(significant, self.size), best

    def competitive(self) -> tuple[Groups, Tensor]:
        """The competitive set A: the arms that were never pulled, and (rows, pulled) which of the others."""
        most, best = self.limits()
        # phi_jj = mu_j: a pulled arm below the best is out, so few are left to compare with all others.
        row, arm = (self.playable & (most == self.size)).nonzero(as_tuple=True)
        overlap = (self.groups[row, arm][:, None, :, None] == self.groups[row][:, :, None, :]).sum((2, 3))
        inside = best.clone()
        inside[row, arm] |= (overlap <= most[row]).all(1)
        unpulled = Groups(self.reachable, self.groups, most.clamp(max=self.size - 1), self.size)
        return unpulled, inside

    def draw(self, uniform: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """An arm by Tsallis-INF over A (as positions), its probability, and the size of A."""
        unpulled, inside = self.competitive()
        count = unpulled.count
        copies = torch.cat((count[:, None], inside.long()), dim=1)
        losses = torch.cat((torch.zeros_like(uniform[:, :1]), self.losses), dim=1)
        weights = tsallis_inf(losses, copies, self.pulls.sum(1) + 1)
        mass = (copies * weights).cumsum(1)
        below = uniform[:, :1] * mass[:, -1:] * (1 - 2.0**-50)
        kind = torch.searchsorted(mass, below, right=True)
        probability = weights.gather(1, kind)[:, 0] / mass[:, -1]
        new = (kind[:, 0] == 0).nonzero().flatten()
        place = torch.empty(len(kind), self.size, dtype=torch.long)
        if self.groups.shape[1]:
            old = (kind - 1).clamp(min=0)[:, :, None].expand(-1, 1, self.size)
            place = self.groups.gather(1, old)[:, 0]
        number = (uniform[new, 1] * count[new]).long().minimum(count[new] - 1)
        place[new] = unpulled.take(new).pick(number)
        return place, probability, count + inside.sum(1)


def tsallis_inf(losses: Tensor, copies: Tensor, t: Tensor) -> Tensor:
    """(rows, arms) weights t / (L_j - x)^2 of arms of which copies_j are alike, with x so that they sum to 1.

    Newton on sum^(-1/2) - 1, a concave function that falls with x: from min L - sqrt(t), right of the
    root, it comes down to the root without overshooting.
    """
    t = t[:, None].double()
    x = losses.masked_fill(copies == 0, torch.inf).amin(1, keepdim=True) - t.sqrt()
    for _ in range(50):
        # An arm that does not exist may have any loss, also x.
        gap = (losses - x).masked_fill(copies == 0, 1.0)
        total = (copies * t / gap**2).sum(1, keepdim=True)
        if bool(((total - 1.0).abs() < 1e-12).all()):
            break
        x = x - (total**1.5 - total) / (copies * t / gap**3).sum(1, keepdim=True)
    return t / (losses - x).masked_fill(copies == 0, torch.inf) ** 2


def _binomial(n: Tensor, k: int) -> Tensor:
    """(rows,) n over k, in double precision."""
    result = torch.ones(len(n), dtype=torch.float64)
    for i in range(k):
        result = result * (n - i) / (i + 1)
    return result


def _doubles(words: Tensor) -> Tensor:
    """(rows, n) numbers in [0, 1) with 53 random bits from (rows, 2 n) words of 32 bits."""
    return ((words[:, ::2] << 21) | (words[:, 1::2] >> 11)).double() * 2.0**-53


@dataclass(frozen=True, eq=False)
class Groups:
    """For each row, the sets of `size` nodes with at most limits[j] nodes in common with group j.

    They are counted and picked by number, never listed. They are ordered by their lowest node, then by the
    next, and so on. Counting takes one product of (nodes, nodes) matrices per row for size 3, and for every
    node above that one for each node instead.
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
