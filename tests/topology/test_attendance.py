"""Peers that join later and peers that leave: whose links a round has, and who hands its mass over."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from coterie import simulate
from coterie.errors import ConfigError
from coterie.topology import Attendance, Churn, make


def test_links_are_between_those_who_are_there() -> None:
    topology = Attendance(make("full", peers=4, seed=0), joins={2: 1}, leaves={0: 3})
    assert [topology.graph(r).in_degree.tolist() for r in range(4)] == [
        [2, 2, 0, 2],
        [3, 3, 3, 3],
        [3, 3, 3, 3],
        [0, 2, 2, 2],
    ]
    assert [topology.online(r).tolist() for r in (0, 2, 3)] == [
        [True, True, False, True],
        [True] * 4,
        [False, True, True, True],
    ]
    assert topology.graph(1).leaving is None
    leaving = topology.graph(2).leaving
    assert leaving is not None
    assert leaving.tolist() == [True, False, False, False]
    assert topology.graph(2) is topology.graph(2)


def test_what_changes_meanwhile_counts_at_once() -> None:
    topology = Attendance(make("ring", peers=4, seed=0))
    assert topology.graph(5).in_degree.tolist() == [2] * 4
    topology.leaves[1] = 5
    assert topology.graph(5).in_degree.tolist() == [1, 0, 1, 2]
    assert Churn(topology, 0.0, 0).present(5).tolist() == [True, False, True, True]


def test_a_run_with_joins_and_leaves() -> None:
    run = simulate(
        algorithm="d-psgd", peers=5, rounds=6, faults={"joins": {"2": "3-4"}, "leaves": {"4": "0"}}, seed=1
    )
    online = run.frame("peers").pivot(index="round", columns="peer", values="online")
    assert online.sum(axis=1).tolist() == [3, 3, 5, 5, 4, 4]
    assert online[3].tolist() == [False] * 2 + [True] * 4
    assert online[0].tolist() == [True] * 4 + [False] * 2


@pytest.mark.parametrize(
    ("faults", "words"),
    [
        ({"joins": {"0": "1"}}, "'0' is not a number of rounds from 1 to 5"),
        ({"joins": {"six": "1"}}, "'six' is not a number of rounds"),
        ({"leaves": {"6": "1"}}, "'6' is not a number of rounds from 1 to 5"),
        ({"leaves": {"2": "7"}}, "'7' is not within the peers 0 to 4"),
        ({"joins": {"4": "1"}, "leaves": {"3": "0-2"}}, "peer 1 leaves after 3 rounds, and comes after 4"),
    ],
)
def test_mistakes(faults: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        simulate(algorithm="local", peers=5, rounds=6, faults=faults)


def test_one_around_another_hides_nothing_of_it() -> None:
    """As a real peer's own view stands around what the experiment says."""
    ring = make("ring", peers=5, seed=0)
    nested = Attendance(Attendance(ring, joins={4: 2}, leaves={1: 3}), joins=dict.fromkeys(range(5), 0))
    single = Attendance(ring, joins={4: 2}, leaves={1: 3})
    for number in range(5):
        assert torch.equal(nested.present(number), single.present(number))
        assert torch.equal(nested.graph(number).senders, single.graph(number).senders)
        leaving = nested.graph(number).leaving
        assert (None if leaving is None else leaving.tolist()) == (
            [False, True, False, False, False] if number == 2 else None
        )
