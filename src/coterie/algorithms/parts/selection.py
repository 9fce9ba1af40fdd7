"""Choosing peers to learn from: uniformly, in pairs, or by how their models do on one's own data (DAC)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.protocol import Links, Node

_LOWEST_LOSS = 1e-3  # scores stay finite when a loss goes to 0
_LOWEST_PROBABILITY = 1e-12  # nobody becomes impossible


def possible_senders(node: Node) -> Links:
    """For each row, the nodes that can send to it in this round, sorted by row."""
    row_of = torch.full((node.graph.nodes,), -1)
    row_of[node.ids] = torch.arange(node.rows)
    rows = row_of[node.graph.receivers]
    here = rows >= 0
    links = Links(rows[here], node.graph.senders[here])
    order = torch.argsort(links.rows, stable=True)
    return Links(links.rows[order], links.ids[order])


def choose(node: Node, candidates: Links, k: int, purpose: str = "peers") -> Links:
    """For each row, k of its candidates (sorted by row), uniformly without replacement, or all of them."""
    sizes = torch.bincount(candidates.rows, minlength=node.rows)
    if not len(candidates):
        return candidates
    order = node.rng(purpose).permutation(sizes, int(sizes.max()))[:, :k]
    first = sizes.cumsum(0) - sizes
    taken = torch.arange(order.shape[1]) < sizes[:, None]
    place = (first[:, None] + order)[taken]
    return Links(candidates.rows[place], candidates.ids[place])


def random_pairs(node: Node) -> Tensor:
    """(nodes,) the partner of each node in a random matching of this round's links; -1 for none.

    Every node computes the same. Links come in a random order, and one whose ends are both free is taken.
    """
    first, second = node.graph.senders, node.graph.receivers
    once = (first < second) & (second != (-1 if node.hub is None else node.hub))
    first, second = first[once], second[once]
    rank = node.shared_rng("pairs").bits(len(first))[0].argsort(stable=True).argsort()
    partner = torch.full((node.graph.nodes,), -1)
    while len(first):  # all links at a time that come before every other link of both their ends
        ends = torch.cat((first, second))
        lowest = torch.full_like(partner, len(once)).scatter_reduce(0, ends, rank.repeat(2), "amin")
        taken = (rank == lowest[first]) & (rank == lowest[second])
        partner[first[taken]], partner[second[taken]] = second[taken], first[taken]
        free = (partner[first] < 0) & (partner[second] < 0)
        first, second, rank = first[free], second[free], rank[free]
    return partner


def mask_of(links: Links, like: Tensor) -> Tensor:
    """(rows, nodes) bool: which pairs are among the links; in the shape of `like`."""
    mask = torch.zeros_like(like, dtype=torch.bool)
    mask[links.rows, links.ids] = True
    return mask


def links_of(mask: Tensor) -> Links:
    """The pairs that a (rows, nodes) mask holds."""
    return Links(*mask.nonzero(as_tuple=True))


@dataclass(frozen=True)
class Acquaintance:
    """What each row knows of the others' losses on its own data: sums and numbers of looks, which fade."""

    loss: Tensor  # (rows, nodes)
    number: Tensor  # (rows, nodes)

    @property
    def mean(self) -> Tensor:
        """(rows, nodes) infinite for those never seen."""
        return torch.where(self.number > 0, self.loss / self.number, torch.inf)

    def heard(self, links: Links, loss: Tensor, memory: float) -> Acquaintance:
        """One round later, with new losses (links,)."""
        place = (links.rows, links.ids)
        number = (memory * self.number).index_put(place, torch.ones_like(loss), accumulate=True)
        return Acquaintance((memory * self.loss).index_put(place, loss, accumulate=True), number)

    def lower_bound(self, explore: float) -> Tensor:
        """(rows, nodes) the mean less what it may be off by (discounted UCB); -inf for those never seen."""
        seen, mean = self.number > 0, torch.where(self.number > 0, self.mean, 0.0)
        count = seen.sum(1, keepdim=True).clamp(min=1)
        away = torch.where(seen, mean - mean.sum(1, keepdim=True) / count, 0.0)
        spread = (away.square().sum(1, keepdim=True) / count).sqrt()
        looks = self.number.sum(1, keepdim=True).clamp(min=1).log() / torch.where(seen, self.number, 1.0)
        return torch.where(seen, mean - explore * spread * looks.sqrt(), -torch.inf)

    def weights(self, kappa: float, worst: Tensor | None = None) -> Tensor:
        """(rows, nodes) exp(-kappa (l - b) / b), b the row's least mean l; 0 above `worst` (rows,)."""
        mean = self.mean
        best = mean.amin(1, keepdim=True).clamp(min=_LOWEST_LOSS)
        excess = ((mean - best) / best).clamp(min=0)
        known = mean.isfinite() if worst is None else mean < worst[:, None]
        return torch.where(known, (-kappa * excess).exp(), 0.0)


def probabilities(scores: Tensor, possible: Tensor, tau: float) -> Tensor:
    """(rows, nodes) softmax of tau * scores over the possible nodes, in double precision."""
    logits = (tau * scores.double()).masked_fill(~possible, -torch.inf)
    p = (logits - logits.amax(1, keepdim=True).clamp(min=0)).exp()
    p = p / p.sum(1, keepdim=True).clamp(min=_LOWEST_PROBABILITY) + _LOWEST_PROBABILITY
    p = p.masked_fill(~possible, 0.0)
    return p / p.sum(1, keepdim=True).clamp(min=_LOWEST_PROBABILITY)


def draw(node: Node, p: Tensor, k: int) -> Links:
    """For each row, k nodes one after another with these probabilities, or all that are possible.

    The k smallest of E / p with exponential E are such a sample.
    """
    uniform = (node.rng("peers").bits(p.shape[1]).double() + 0.5) * 2.0**-32
    order = (-uniform.log() / p).sort(dim=1)
    rows, place = order.values[:, :k].isfinite().nonzero(as_tuple=True)
    return Links(rows, order.indices[rows, place])


def rescored(
    scores: Tensor, sampled: Tensor, links: Links, loss: Tensor, heard: Tensor, ids: Tensor
) -> tuple[Tensor, Tensor]:
    """Scores of the peers that answered, and of those that they know (two hops)."""
    known = loss.isfinite()
    rows, peers, heard = links.rows[known], links.ids[known], heard[known].to(scores.dtype)
    similarity = 1.0 / loss[known].clamp(min=_LOWEST_LOSS).to(scores.dtype)
    scores, sampled = scores.clone(), sampled.clone()
    scores[rows, peers] = similarity
    sampled[rows, peers] = True
    for message in _by_rank(rows, peers, similarity):  # the most similar peer comes last, and stays
        row = rows[message]
        learn = (heard[message] > 0) & ~sampled[row]
        learn[torch.arange(len(row)), ids[row]] = False
        scores[row] = torch.where(learn, heard[message], scores[row])
    return scores, sampled


def _by_rank(rows: Tensor, peers: Tensor, similarity: Tensor) -> list[Tensor]:
    """Messages in turns with at most one of each row, the least similar sender first."""
    order = torch.argsort(peers)
    for key in (similarity, rows):
        order = order[torch.argsort(key[order], stable=True)]
    counts = torch.bincount(rows)
    place = torch.arange(len(rows)) - (counts.cumsum(0) - counts)[rows[order]]
    return [order[place == turn] for turn in range(int(counts.max()) if len(rows) else 0)]
