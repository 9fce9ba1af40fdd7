"""Random undirected graphs drawn in a few array operations, so that 100,000 nodes take a moment.

networkx has both, but loops in Python over every edge; and real peers with different versions of it
would have to draw the same graph.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]

_TRIES_PER_EDGE = 64


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
    present = set(keys[~bad].tolist())
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


def _switch(edges: Ids, bad: int, good: int, flip: int, nodes: int, present: set[int]) -> bool:
    """Turn a-b and c-d into a-c and b-d, if neither exists nor is a loop."""
    a, b = edges[bad].tolist()
    c, d = edges[good, [flip, 1 - flip]].tolist()
    first, second = (min(a, c) * nodes + max(a, c)), (min(b, d) * nodes + max(b, d))
    if a == c or b == d or first == second or first in present or second in present:
        return False
    present.remove(min(c, d) * nodes + max(c, d))
    present.update((first, second))
    edges[bad], edges[good] = (a, c), (b, d)
    return True
