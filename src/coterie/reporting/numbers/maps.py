"""Who learned from whom as a map: receivers by senders, those of a cluster side by side."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from coterie.reporting.numbers.known import Array, Known, Whole

MOST_PEERS_ON_MAP = 1000  # a heat map of more has a million cells and shows nothing


@dataclass(frozen=True)
class HeatMap:
    """Mean shares over seeds, sorted by cluster."""

    shares: Array  # (receivers, senders)
    order: Whole  # the peers, as they stand in rows and columns
    borders: list[int]  # places where a new cluster begins
    inside: float | None  # the share that came from the peer's own true cluster


def heat_map(group: Sequence[Known]) -> HeatMap:
    """group: an algorithm's runs, one for each seed. The order is that of the first."""
    shares = [sorted_by(run.clusters, run.shares) for run in group]
    inside = [share for run in group if (share := run.own_cluster_share) is not None]
    clusters = group[0].clusters
    return HeatMap(
        np.mean(shares, axis=0),
        by_cluster(clusters, group[0].peers),
        borders_of(clusters),
        statistics.fmean(inside) if inside else None,
    )


def sorted_by(clusters: Whole | None, shares: Array) -> Array:
    order = by_cluster(clusters, len(shares))
    return shares[order][:, order]


def by_cluster(clusters: Whole | None, peers: int) -> Whole:
    """The peers, those of a cluster side by side."""
    return np.arange(peers) if clusters is None else np.argsort(clusters, kind="stable")


def borders_of(clusters: Whole | None) -> list[int]:
    """Where, in that order, a new cluster begins."""
    if clusters is None:
        return []
    return [int(place) + 1 for place in np.flatnonzero(np.diff(np.sort(clusters)))]
