"""Where peers stand: those of a group together, and the groups apart."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from coterie.reporting.numbers.places import communities, groups_of, positions_of


def two_cliques(between: float) -> Any:
    """Eight peers: four learn from each other, and so do the other four."""
    shares = np.full((8, 8), between)
    shares[:4, :4] = shares[4:, 4:] = 1.0
    np.fill_diagonal(shares, 0.0)
    return shares


def run(shares: Any, clusters: Any = None) -> Any:
    return SimpleNamespace(shares=shares, clusters=clusters, received=True, shown=np.arange(len(shares)))


def test_those_who_learn_from_each_other_are_a_community() -> None:
    assert communities(two_cliques(0.01)).tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert groups_of(run(two_cliques(0.01)))[1] == "community"


def test_one_community_is_none() -> None:
    groups, kind = groups_of(run(two_cliques(1.0)))
    assert (set(groups.tolist()), kind) == ({0}, "none")


def test_true_clusters_come_first() -> None:
    groups, kind = groups_of(run(two_cliques(0.01), np.array([7, 3] * 4)))
    assert (groups.tolist(), kind) == ([1, 0] * 4, "cluster")


def test_groups_do_not_mix() -> None:
    """A peer is nearer to the middle of its own group than to that of any other, and nobody is cut off."""
    groups = np.repeat([0, 1, 2], [90, 20, 5])
    places = positions_of(groups)
    middles = np.stack([places[groups == number].mean(0) for number in range(3)])
    nearest = np.linalg.norm(places[:, None] - middles, axis=2).argmin(1)
    assert nearest.tolist() == groups.tolist()
    assert places.min() >= 0
    assert places.max() <= 1
