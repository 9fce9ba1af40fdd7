"""Which peers live where, by what they cost and how fast workers are."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from coterie.experiments.cluster.placing import Clock, capacity, costs, cut, steady
from coterie.experiments.setup.schema import Execution


class Nodes:
    """What Ray says of its nodes."""

    def __init__(self, *resources: dict[str, float]) -> None:
        self._nodes = [{"Alive": True, "Resources": one} for one in resources]

    def nodes(self) -> list[dict[str, Any]]:
        return [*self._nodes, {"Alive": False, "Resources": {"CPU": 64.0, "GPU": 8.0}}]


@pytest.mark.parametrize(
    ("asked", "nodes", "fit"),
    [
        ({"cpus": 2}, [{"CPU": 3.0}] * 3, 3),  # what is left of each is no CPU for a fourth
        ({"cpus": 0.1}, [{"CPU": 1.0}], 10),
        ({"gpus": 0.1}, [{"CPU": 16.0, "GPU": 1.0}], 16),  # on the CPU nobody takes of a GPU
        ({"gpus": 0.1, "device": "cuda"}, [{"CPU": 16.0, "GPU": 1.0}], 10),
        ({"gpus": 0.4, "device": "cuda"}, [{"CPU": 16.0, "GPU": 1.0}] * 2, 4),
        ({"device": "cuda"}, [{"CPU": 16.0}, {"CPU": 0.0, "GPU": 4.0}], 0),
    ],
)
def test_how_many_fit(asked: dict[str, Any], nodes: list[dict[str, float]], fit: int) -> None:
    assert capacity(Nodes(*nodes), Execution(**asked)) == fit


def test_costs_count_batches_and_the_hub_hardly() -> None:
    found = costs(torch.tensor([0, 1, 20, 21]), batch_size=20, hub=4)
    assert found.tolist() == [1, 2, 2, 3, 1]


def test_equal_peers_on_equal_workers() -> None:
    assert [ids.tolist() for ids in cut(torch.ones(6), [1.0, 1.0, 1.0])] == [[0, 1], [2, 3], [4, 5]]


def test_a_worker_that_is_three_times_faster_gets_three_times_as_much() -> None:
    assert [len(ids) for ids in cut(torch.ones(80), [1.0, 3.0])] == [20, 60]


def test_one_dear_peer_is_a_worker_of_its_own() -> None:
    weights = torch.tensor([1.0, 1.0, 1.0, 30.0])
    assert [ids.tolist() for ids in cut(weights, [1.0, 1.0])] == [[0, 1, 2], [3]]


@given(
    st.lists(st.floats(0.1, 100), min_size=1, max_size=30),
    st.lists(st.floats(0.01, 100), min_size=1, max_size=8),
)
def test_everyone_is_hosted_once_and_nobody_hosts_none(weights: list[float], speeds: list[float]) -> None:
    speeds = speeds[: len(weights)]
    shards = cut(torch.tensor(weights, dtype=torch.double), speeds)
    assert torch.cat(shards).tolist() == list(range(len(weights)))
    assert len(shards) == len(speeds)
    assert all(len(ids) for ids in shards)


@given(st.lists(st.floats(1, 10), min_size=2, max_size=6), st.integers(50, 400))
def test_the_slowest_is_never_far_behind(speeds: list[float], peers: int) -> None:
    """By no more than the peer at each end of its stretch, which cannot be cut."""
    times = [len(ids) / speed for ids, speed in zip(cut(torch.ones(peers), speeds), speeds, strict=True)]
    fair = peers / sum(speeds)
    assert max(times) <= fair + 1 / min(speeds)


def test_a_short_look_does_not_tell_like_from_like() -> None:
    assert steady([1.0, 1.2, 0.9]) == [1.0, 1.0, 1.0]
    assert steady([1.0, 1.0, 2.0]) == [1.0, 1.0, 2.0]
    assert steady([1.0, 1.0, 100.0]) == [1.0, 1.0, 4.0]


@pytest.mark.parametrize(("third", "uneven"), [(1.4, False), (1.6, True)])
def test_uneven_is_one_slower_by_half_in_three_rounds(third: float, uneven: bool) -> None:
    clock = Clock([10.0, 10.0, 10.0])
    for _ in range(2):
        clock.add([1.0, 1.0, 2.0])
        assert not clock.uneven  # one bad round is no reason
    clock.add([1.0, 1.0, third])
    assert clock.uneven == uneven
    assert clock.speeds == pytest.approx([10.0, 10.0, 30 / (4 + third)])


def test_a_single_worker_is_never_uneven() -> None:
    clock = Clock([5.0])
    assert clock.speeds == []
    for _ in range(3):
        clock.add([9.0])
    assert not clock.uneven
