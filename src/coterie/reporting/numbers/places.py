"""Where peers stand in the graph: those of a cluster together, or of a community that is found.

Positions follow from the groups alone, so that they stay while links come and go.
"""

from __future__ import annotations

import importlib
import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from coterie.reporting.numbers.folders import OfFolder
from coterie.reporting.numbers.known import Array, Whole

Kind = Literal["cluster", "community", "none"]
_GOLDEN = math.pi * (3 - math.sqrt(5))  # the angle of a sunflower's seeds
_MOST_ON_RING = 60


@dataclass(frozen=True)
class Places:
    """Of the peers that are shown."""

    positions: Array  # (peers, 2) from 0 to 1
    groups: Whole  # (peers,) counted from 0
    kind: Kind  # what the groups are


def places_of(run: OfFolder) -> Places:
    groups, kind = groups_of(run)
    return Places(positions_of(groups), groups, kind)


def groups_of(run: OfFolder) -> tuple[Whole, Kind]:
    """True clusters where they are known, else communities of those who learned from each other."""
    clusters = run.clusters
    if clusters is not None:
        return np.unique(clusters[run.shown], return_inverse=True)[1], "cluster"
    found = communities(run.shares) if run.received else np.zeros(len(run.shown), np.int64)
    return found, "community" if found.any() else "none"  # where all are one, there are none


def communities(shares: Array) -> Whole:
    """Louvain's, of the shares in both directions; the largest community is 0."""
    networkx = importlib.import_module("networkx")
    graph = networkx.Graph()
    graph.add_nodes_from(range(len(shares)))
    both = shares + shares.T
    rows, columns = np.nonzero(np.triu(both, 1))
    edges = zip(rows.tolist(), columns.tolist(), both[rows, columns].tolist(), strict=True)
    graph.add_weighted_edges_from(edges)
    found = networkx.community.louvain_communities(graph, seed=0)
    groups = np.zeros(len(shares), np.int64)
    for number, members in enumerate(sorted(found, key=lambda some: (-len(some), min(some)))):
        groups[sorted(members)] = number
    return groups


def positions_of(groups: Whole) -> Array:
    """Each group on a disc of its own, the discs on a circle."""
    sizes = np.bincount(groups)
    radii = np.sqrt(np.maximum(sizes, 1))
    if len(sizes) == 1:
        return 0.5 + 0.46 * _disc(int(sizes[0]))
    around = 2.6 * radii.sum() / (2 * math.pi)  # so that neighbouring discs do not touch
    ring = max(around, 1.3 * float(radii.max()))
    angles = 2 * math.pi * (np.cumsum(radii) - radii / 2) / radii.sum()
    centres = ring * np.stack([np.cos(angles), np.sin(angles)], 1)
    places = np.zeros((len(groups), 2))
    for number, size in enumerate(sizes.tolist()):
        places[groups == number] = centres[number] + radii[number] * _disc(size)
    low, high = places.min(0), places.max(0)
    span = max(float((high - low).max()), 1e-9)
    return np.asarray(0.5 + 0.92 * (places - (low + high) / 2) / span)


def _disc(size: int) -> Array:
    """Points within the unit disc: few on its rim, many as the seeds of a sunflower."""
    number = np.arange(size)
    angle: Array = 2 * math.pi * number / max(1, size)
    radius: Array = np.full(size, 1.0 if size > 1 else 0.0)
    if size > _MOST_ON_RING:
        angle, radius = np.multiply(number, _GOLDEN), np.sqrt(np.divide(number + 0.5, size))
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1)
