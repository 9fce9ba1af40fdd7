"""Algorithms that may run out of step: a round is one exchange along the links of the topology, or none.

There are two exceptions. What is addressed to the star of KD-PDFL is used once, at the star's next turn.
And some ask others for their models, who may answer later.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from coterie.catalogue import algorithms
from coterie.simulation import Simulation

FREE = [name for name in algorithms if algorithms[name].facts.free_running]
ASKING = ("kin", "dac", "dac-var", "random-gossip", "oracle")


def test_which_they_are() -> None:
    assert set(FREE) == {
        "local",
        "gossip-fedavg",
        "d-psgd",
        "dfedavgm",
        "dfedavgm-p",
        "dfedsam",
        "blend-dfl",
        "osgp",
        "dfedpgp",
        "kd-pdfl",
        "pdfl",
        "pfedgraph",
        "fedala",
        "dbe",
        "facade",
        "dfedsalt",
        *ASKING,
    }


def test_what_is_sealed_keeps_step() -> None:
    in_step = {name for name in FREE if algorithms[name]().needs_step()}
    assert in_step == {"gossip-fedavg", "dbe", "random-gossip", "oracle", "kin"}
    for name in in_step - {"kin"}:
        assert not algorithms[name](sealed=False).needs_step()
    assert not algorithms["kin"](private="never").needs_step()


@pytest.mark.parametrize("name", [name for name in FREE if name not in ("kd-pdfl", *ASKING)])
def test_a_round_is_one_exchange_with_the_neighbours(
    name: str, small_simulation: Callable[..., Simulation]
) -> None:
    simulation = small_simulation(algorithms[name](), "directed(2)")
    for number in range(2):
        graph, traffic = simulation.topology.graph(number), simulation.step(evaluate=False).traffic
        assert len(traffic) == (name != "local")
        for seen in traffic:
            assert torch.equal(seen.senders, graph.senders)
            assert torch.equal(seen.receivers, graph.receivers)
