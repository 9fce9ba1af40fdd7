"""The numbers of pictures, against what is worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from coterie.metric import Metric
from coterie.reporting.numbers.curves import learning_curve, reached, tenths
from coterie.reporting.numbers.gains import gains_of
from coterie.reporting.numbers.known import Array, Known, Point, Whole
from coterie.reporting.numbers.maps import heat_map
from coterie.sharing import inside_share, shares_of

NAN = float("nan")


class ByHand(Known):
    """A run whose scores are given; after the other point they are 0.1 lower."""

    algorithm, point, seed, names = "own", "after_mixing", 0, ()

    def __init__(self, scores: list[list[float]], rounds: list[int], higher: bool = True) -> None:
        self._scores, self.rounds, self.peers = np.array(scores), rounds, len(scores[0])
        self.metric = Metric("accuracy", higher, percent=True)

    def scores(self, point: Point) -> Array:
        return self._scores - 0.1 * (point != self.point)

    @property
    def reported(self) -> Array:
        return self._scores[-1]

    @property
    def clusters(self) -> Whole:
        return np.array([1, 0, 1])

    @property
    def shares(self) -> Array:
        return np.array([[0.0, 0.5, 0.5], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]])

    @property
    def own_cluster_share(self) -> float | None:
        return inside_share(self.shares, self.clusters)


def test_curves_are_of_the_rounds_that_all_seeds_have() -> None:
    first = ByHand([[0.2, 0.4], [0.4, 0.6], [0.6, 0.8]], [1, 2, 3])
    second = ByHand([[0.0, 0.2], [0.8, 1.0]], [1, 3])
    curve = learning_curve([first, second])
    assert curve.rounds == [1, 3]
    assert np.allclose(curve.mean, [0.2, 0.8])
    assert np.allclose(curve.low, [0.1, 0.7])
    assert np.allclose(curve.high, [0.3, 0.9])
    assert np.allclose(curve.other, [0.1, 0.7])
    assert np.allclose(curve.worst, [0.0, 0.6])  # of four peers a tenth is one
    assert np.allclose(curve.best, [0.4, 1.0])


def test_absent_peers_count_nowhere() -> None:
    curve = learning_curve([ByHand([[0.2, NAN, 0.4], [NAN, NAN, NAN]], [1, 2])])
    assert np.allclose(curve.mean, [0.3, NAN], equal_nan=True)
    assert np.allclose(curve.worst, [0.2, NAN], equal_nan=True)


def test_a_tenth_of_twenty_is_two() -> None:
    worst, best = tenths(np.arange(20.0)[None])
    assert (worst[0], best[0]) == (0.5, 18.5)


@pytest.mark.parametrize(("higher", "first"), [(True, 3), (False, 1)])
def test_a_target_is_reached_by_the_first_mean_as_good(higher: bool, first: int) -> None:
    means = np.array([0.1, 0.2, 0.3, 0.4])
    assert reached([1, 2, 3, 4], means, 0.3, Metric("any", higher)) == first
    assert reached([1, 2, 3, 4], means, 0.5 if higher else 0.05, Metric("any", higher)) is None


def test_gains_say_who_was_helped_and_who_was_hurt() -> None:
    local = ByHand([[0.5, 0.6, 0.4, NAN]], [1])
    gains = gains_of([ByHand([[0.7, 0.5, 0.4, 0.9]], [1])], [local])
    assert (gains.helped, gains.hurt) == (1, 1)
    assert gains.by_gain.tolist() == [0, 2, 1, 3]
    assert gains.by_local.tolist() == [2, 0, 1, 3]
    assert gains.mean == pytest.approx(0.625 - 0.5)


def test_where_lower_is_better_a_gain_is_still_positive() -> None:
    gains = gains_of([ByHand([[0.7]], [1], higher=False)], [ByHand([[0.9]], [1], higher=False)])
    assert gains.gain[0] == pytest.approx(0.2)


def test_maps_put_clusters_side_by_side() -> None:
    found = heat_map([ByHand([[0.5] * 3], [1])])
    assert found.order.tolist() == [1, 0, 2]
    assert found.borders == [1]
    assert np.allclose(found.shares, [[0, 1, 0], [0.5, 0, 0.5], [0, 0, 0]])
    assert found.inside == pytest.approx(
        0.25
    )  # peer 0 takes half from its cluster, peer 1 nothing, 2 learns not


def test_shares_of_arrays_and_of_tensors_are_the_same() -> None:
    counts = np.array([[0.0, 3.0, 1.0], [0.0, 0.0, 0.0], [2.0, 2.0, 0.0]])
    clusters = np.array([0, 0, 1])
    of_array, of_tensor = shares_of(counts), shares_of(torch.from_numpy(counts))
    assert np.array_equal(of_array, of_tensor.numpy())
    assert np.allclose(of_array, [[0, 0.75, 0.25], [0, 0, 0], [0.5, 0.5, 0]])
    assert inside_share(of_array, clusters) == inside_share(of_tensor, torch.from_numpy(clusters)) == 0.375
    assert inside_share(np.zeros((3, 3)), clusters) is None
