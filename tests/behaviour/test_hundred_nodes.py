"""PPDL's bandit at the paper's size, without learning: 100 nodes, groups of 3, 156,849 arms each.

A group's reward follows from who is in it: 0.5, plus 0.25 times the share of its members in the node's own
cluster, plus noise of 0.03 (100 validation images give about 0.05). Discussed in docs/behaviour.md.
"""

from __future__ import annotations

import math
from statistics import mean

import pytest
import torch
from behaviour.measuring import Table, over_seeds, table
from torch import Tensor

from coterie.algorithms.parts.bandits import Bandit
from coterie.algorithms.ppdl import PPDL, PPDLVar
from coterie.protocol import Links
from coterie.randomness import Stream, stream
from coterie.topology import make

pytestmark = pytest.mark.slow

NODES, SIZE, ROUNDS = 100, 3, 200
CLUSTER = torch.arange(NODES) % 5
CHANCE = 19 / 99  # the own cluster's part of all others


def normal(numbers: Stream) -> Tensor:
    """(rows,) standard normal draws (Box-Muller)."""
    u, angle = ((numbers.bits(2).double() + 0.5) * 2.0**-32).unbind(1)
    return ((-2.0 * u.log()).sqrt() * (2.0 * math.pi * angle).cos()).float()


def played(ppdl: PPDL, deviation: float, seed: int) -> dict[str, float]:
    """Share of the played groups' members that are of the node's own cluster, over time."""
    graph = make("full", peers=NODES, seed=seed).graph(0)
    everyone, ids = Links(graph.receivers, graph.senders), torch.arange(NODES)
    bandit, inside = Bandit.fresh(NODES, ROUNDS, SIZE), []
    for number in range(ROUNDS):
        arms = bandit.draw(everyone, stream(seed, "group", number, ids))
        good = (CLUSTER[arms.groups] == CLUSTER[:, None]).double().mean(1)
        noise = normal(stream(seed, "noise", number, ids))
        reward = (0.5 + 0.25 * good + deviation * noise).clamp(0, 1)
        bandit = bandit.update(arms, reward, ppdl.q_in(number), torch.ones(NODES, dtype=torch.bool))
        inside.append(float(good.mean()))
    spans = ((1, 10), (31, 60), (61, 100), (151, 200))
    return {
        **{f"rounds {first}-{last}": mean(inside[first - 1 : last]) for first, last in spans},
        "one arm left": float((arms.competitive == 1).double().mean()),
    }


@pytest.fixture(scope="module")
def bandits() -> Table:
    kinds = {
        "q 0.1": (PPDL(q=0.1), 0.03),
        "q 0.5": (PPDL(q=0.5), 0.03),
        "ppdl-var": (PPDLVar(), 0.03),
        "q 0.1, noise 0.05": (PPDL(q=0.1), 0.05),
    }
    rows = [over_seeds(name, lambda seed, kind=kind: played(*kind, seed)) for name, kind in kinds.items()]
    return table(f"100 nodes in 5 clusters, chance {CHANCE:.3f}", rows)


def test_play_begins_at_chance(bandits: Table) -> None:
    """Nothing is known at first: the share is that of groups drawn at random."""
    for name in bandits:
        assert bandits[name]["rounds 1-10"] == pytest.approx(CHANCE, abs=0.02)


@pytest.mark.parametrize("name", ["q 0.1", "ppdl-var"])
def test_play_ends_in_the_own_cluster(bandits: Table, name: str) -> None:
    assert bandits[name]["rounds 151-200"] > 3 * CHANCE


def test_a_generous_bound_keeps_exploring(bandits: Table) -> None:
    assert bandits["q 0.5"]["rounds 151-200"] < 2 * CHANCE
