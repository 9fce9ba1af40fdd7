"""Random undirected graphs: random-regular, erdos-renyi, small-world, and fading radio links."""

from __future__ import annotations

import math
from dataclasses import dataclass

import networkx
import numpy as np
import torch

from coterie.errors import TopologyError
from coterie.randomness import digest, numpy_generator
from coterie.topology.catalogue import GraphKind, LinkEnds, both_ways, check_probability, check_size
from coterie.topology.sampling import Ids, random_pairs, random_regular


class _Redrawn(GraphKind):
    """A random graph that is drawn once (every=0), or anew every so many rounds."""

    every: int

    def varies(self) -> bool:
        return self.every > 0

    def check(self, peers: int) -> None:
        if self.every < 0:
            raise TopologyError(f"every={self.every}: 0 keeps one graph, n draws a new one each n rounds")

    def phase(self, round: int, peers: int) -> int:
        return round // self.every if self.varies() else 0


@dataclass(frozen=True)
class RandomRegular(_Redrawn):
    """Every peer has exactly k random neighbours; redrawn every so many rounds (0: never)."""

    k: int
    every: int = 0

    def check(self, peers: int) -> None:
        super().check(peers)
        asked = f"random-regular({self.k}) with {peers} peers"
        _check_degree(asked, self.k, peers)
        if peers * self.k % 2:
            around = " or ".join(f"k={k}" for k in (self.k - 1, self.k + 1) if 1 <= k < peers)
            raise TopologyError(
                f"{asked} does not exist: peers x k = {peers * self.k} is odd; "
                f"use {around or 'more peers'}, or an even number of peers such as {peers + 1}"
            )
        check_size(asked, peers * self.k)

    def links(self, peers: int, seed: int, phase: int) -> LinkEnds:
        return _links(random_regular(peers, self.k, numpy_generator(seed, "random-regular", phase)))


@dataclass(frozen=True)
class ErdosRenyi(_Redrawn):
    """Every pair is linked with probability p; redrawn every so many rounds (0: never)."""

    p: float
    every: int = 0

    def check(self, peers: int) -> None:
        super().check(peers)
        asked = f"erdos-renyi({self.p:g}) with {peers} peers"
        check_probability(asked, "p", self.p)
        check_size(asked, self.p * peers * (peers - 1))

    def links(self, peers: int, seed: int, phase: int) -> LinkEnds:
        return _links(random_pairs(peers, self.p, numpy_generator(seed, "erdos-renyi", phase)))


@dataclass(frozen=True)
class SmallWorld(GraphKind):
    """Watts-Strogatz: a ring of k nearest neighbours whose links are rewired with probability p."""

    k: int
    p: float = 0.1

    def check(self, peers: int) -> None:
        asked = f"small-world({self.k},{self.p:g}) with {peers} peers"
        check_probability(asked, "p", self.p)
        _check_degree(asked, self.k, peers)
        if self.k % 2:
            raise TopologyError(
                f"{asked}: k must be even, half on each side; use {self.k - 1} or {self.k + 1}"
            )
        check_size(asked, peers * self.k)

    def links(self, peers: int, seed: int, phase: int) -> LinkEnds:
        graph = networkx.watts_strogatz_graph(peers, self.k, self.p, seed=digest(seed, "small-world"))
        edges = np.array(list(graph.edges()), dtype=np.int64).reshape(-1, 2)
        return _links((edges[:, 0], edges[:, 1]))


@dataclass(frozen=True)
class Fading(GraphKind):
    """KD-PDFL's radio: Rayleigh-fading links, redrawn each round, k reachable peers on average.

    A link is up when its gain |h|^2 ~ Exp(1), the same both ways, reaches a threshold; so links are up
    independently with probability exp(-threshold), and it is these that are drawn. A peer may be
    isolated for a round.
    """

    k: float = 5.0

    def varies(self) -> bool:
        return True

    def threshold(self, peers: int) -> float:
        """The least gain that carries a message: P(gain >= threshold) = k / (peers - 1)."""
        return math.log((peers - 1) / self.k) if self.k and peers > 1 else math.inf  # nobody to reach

    def check(self, peers: int) -> None:
        if peers > 1 and not 0.0 <= self.k <= peers - 1:
            raise TopologyError(
                f"fading({self.k:g}): {peers} peers can reach from 0 to {peers - 1} others on average"
            )
        check_size(f"fading({self.k:g}) with {peers} peers", self.k * peers)

    def links(self, peers: int, seed: int, phase: int) -> LinkEnds:
        up = math.exp(-self.threshold(peers))
        return _links(random_pairs(peers, up, numpy_generator(seed, "fading", phase)))


def _check_degree(asked: str, k: int, peers: int) -> None:
    if not 1 <= k < peers:
        can = f"k from 1 to {peers - 1}" if peers > 1 else "no k at all"
        more = f"; k={k} needs {k + 1} peers" if k >= 1 else ""
        raise TopologyError(f"{asked} does not exist: {peers} peers allow {can}{more}")


def _links(edges: tuple[Ids, Ids]) -> LinkEnds:
    a, b = edges
    return both_ways(torch.from_numpy(a), torch.from_numpy(b))
