"""Random undirected graphs: random-regular, erdos-renyi, small-world, and fading radio links.

They are drawn in a few array operations, so that 100,000 nodes take a moment. networkx loops in Python over
every edge; and real peers with different versions of it would have to draw the same graph.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from coterie.errors import TopologyError
from coterie.randomness import Stream, numpy_generator, stream
from coterie.topology.graphs import GraphKind, LinkEnds, both_ways, check_probability, check_size

Ids = NDArray[np.int64]

_TRIES_PER_EDGE = 64


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
    """Watts-Strogatz: a ring of k nearest neighbours whose links are rewired with probability p.

    As in the original, a rewired graph may fall apart, although it hardly ever does for k of 4 or more.
    """

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
        return _links(
            small_world(peers, self.k, self.p, stream(seed, "small-world", phase, torch.arange(peers)))
        )


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


def random_pairs(nodes: int, p: float, generator: np.random.Generator) -> tuple[Ids, Ids]:
    """The edges of G(nodes, p): each pair of nodes with probability p, independently.

    Batagelj and Brandes (2005): the gaps between successive edges are geometric, so the work grows
    with the number of edges and not with the number of pairs.
    """
    total = nodes * (nodes - 1) // 2
    if p <= 0.0 or total == 0:
        return _pair_at(np.empty(0, dtype=np.int64))
    if p >= 1.0:
        return _pair_at(np.arange(total))
    found: list[Ids] = []
    last = -1
    while last < total:
        expected = (total - last) * p
        size = int(expected + 6 * math.sqrt(expected)) + 10  # one pass nearly always
        gaps = np.minimum(generator.geometric(p, size), total + 1)
        places = last + np.cumsum(gaps)
        found.append(places[places < total])
        last = int(places[-1])
    return _pair_at(np.concatenate(found))


def _pair_at(place: Ids) -> tuple[Ids, Ids]:
    """Number the pairs (1,0), (2,0), (2,1), (3,0), ... and return those at the given places."""
    high = ((1.0 + np.sqrt(1.0 + 8.0 * place)) / 2.0).astype(np.int64)
    high -= high * (high - 1) // 2 > place  # the square root is rounded
    high += high * (high + 1) // 2 <= place
    return high, place - high * (high - 1) // 2


def random_regular(nodes: int, k: int, generator: np.random.Generator) -> tuple[Ids, Ids]:
    """The edges of a random graph in which every node has exactly k neighbours.

    Configuration model: pair up k stubs per node at random, then replace each self loop or repeated
    edge by switching ends with a random good edge. About k^2/4 edges need that, whatever `nodes` is.
    The caller has checked that nodes * k is even and k < nodes.
    """
    if 2 * k >= nodes:
        return _complement(nodes, *random_regular(nodes, nodes - 1 - k, generator))
    while True:
        stubs = generator.permutation(np.repeat(np.arange(nodes), k)).reshape(-1, 2)
        if _repair(stubs, nodes, generator):
            return stubs[:, 0], stubs[:, 1]


def _complement(nodes: int, a: Ids, b: Ids) -> tuple[Ids, Ids]:
    missing = np.tri(nodes, k=-1, dtype=bool)
    missing[np.maximum(a, b), np.minimum(a, b)] = False
    high, low = np.nonzero(missing)
    return high, low


def _repair(edges: Ids, nodes: int, generator: np.random.Generator) -> bool:
    """Switch bad edges in place until none is left; False if a small graph got stuck."""
    keys = edges.min(axis=1) * nodes + edges.max(axis=1)
    bad = np.ones(len(keys), dtype=bool)
    bad[np.unique(keys, return_index=True)[1]] = False  # of equal edges the first is good
    bad |= edges[:, 0] == edges[:, 1]
    if not bad.any():
        return True
    present = _Present(np.sort(keys[~bad]))
    for index in np.flatnonzero(bad).tolist():
        partners = generator.integers(len(edges), size=_TRIES_PER_EDGE).tolist()
        flips = generator.integers(2, size=_TRIES_PER_EDGE).tolist()
        if not any(
            not bad[partner] and _switch(edges, index, partner, flip, nodes, present)
            for partner, flip in zip(partners, flips, strict=True)
        ):
            return False
        bad[index] = False
    return True


class _Present:
    """Which edges there are: a sorted array, and the few that were switched since. No object per edge."""

    def __init__(self, keys: Ids) -> None:
        self._keys = keys
        self._added: set[int] = set()
        self._removed: set[int] = set()

    def __contains__(self, key: int) -> bool:
        if key in self._added or key in self._removed:
            return key in self._added
        place = int(np.searchsorted(self._keys, key))
        return place < len(self._keys) and int(self._keys[place]) == key

    def remove(self, key: int) -> None:
        self._added.discard(key)
        self._removed.add(key)

    def add(self, *keys: int) -> None:
        self._added.update(keys)


def _switch(edges: Ids, bad: int, good: int, flip: int, nodes: int, present: _Present) -> bool:
    """Turn a-b and c-d into a-c and b-d, if neither exists nor is a loop."""
    a, b = edges[bad].tolist()
    c, d = edges[good, [flip, 1 - flip]].tolist()
    first, second = (min(a, c) * nodes + max(a, c)), (min(b, d) * nodes + max(b, d))
    if a == c or b == d or first == second or first in present or second in present:
        return False
    present.remove(min(c, d) * nodes + max(c, d))
    present.add(first, second)
    edges[bad], edges[good] = (a, c), (b, d)
    return True


def small_world(nodes: int, k: int, p: float, numbers: Stream) -> tuple[Ids, Ids]:
    """The edges of a Watts-Strogatz graph: from each node to the next k / 2 on a ring, some of them rewired.

    A rewired edge keeps the first of its ends and gets another second one, to which there is no edge yet. All
    are tried at once, and those that meet an edge are tried again. Where nearly everyone is everyone's
    neighbour already, an edge may find no free place and stays. numbers: a stream of all nodes.
    """
    here, hop = np.repeat(np.arange(nodes), k // 2), np.tile(np.arange(1, k // 2 + 1), nodes)
    there = (here + hop) % nodes
    waiting = np.flatnonzero(numbers.uniform(k // 2).numpy().ravel() < p)
    for attempt in range(1, 1 + _TRIES_PER_EDGE):
        if not len(waiting):
            break
        wanted = _other_ends(here[waiting], hop[waiting], nodes, numbers, attempt)
        keys = np.minimum(here[waiting], wanted) * nodes + np.maximum(here[waiting], wanted)
        taken = np.minimum(here, there) * nodes + np.maximum(here, there)
        free = np.zeros(len(waiting), dtype=bool)
        free[np.unique(keys, return_index=True)[1]] = True  # of equal wishes the first is granted
        free &= ~np.isin(keys, taken)
        there[waiting[free]] = wanted[free]
        waiting = waiting[~free]
    return here, there


def _other_ends(here: Ids, hop: Ids, nodes: int, numbers: Stream, attempt: int) -> Ids:
    """A random other node for each edge, which is known by its first end and its hop on the ring."""
    rows, place = np.unique(here, return_inverse=True)
    own = replace(numbers, ids=numbers.ids[torch.from_numpy(rows)])
    draws = own.bits(int(hop.max()), index=attempt).numpy()[place, hop - 1]
    other: Ids = draws * (nodes - 1) >> 32
    return other + (other >= here)  # number the others without oneself
