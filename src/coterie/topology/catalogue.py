"""The catalogue of graphs that users can name, and what each entry has to provide."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from coterie.errors import TopologyError

LinkEnds = tuple[Tensor, Tensor]  # senders (links,), receivers (links,)

MOST_LINKS = 50_000_000
"""Two int64 ids per link and the sorting of them: beyond this a round's graph takes gigabytes."""


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
