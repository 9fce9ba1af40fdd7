"""As many bytes as the paper describes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from algorithm_exam import CLASSES, CLUSTERS, FEATURES, HIDDEN, PEERS, Exam, exam

from coterie.algorithms.parts.selection import random_pairs
from coterie.catalogue import algorithms
from coterie.protocol import Algorithm
from coterie.simulation import Simulation
from coterie.topology import Graph

MODEL_BYTES = 4 * (FEATURES * HIDDEN + HIDDEN + HIDDEN * CLASSES + CLASSES)
BODY_BYTES = 4 * (FEATURES * HIDDEN + HIDDEN)
MASS_BYTES = 8  # push-sum's mu in double precision
NUMBER_BYTES = 4  # a number of samples, sent along with a model


def each_link(graph: Graph, settings: dict[str, Any]) -> int:
    return len(graph.senders)


def pulls(graph: Graph, settings: dict[str, Any], same_cluster: bool = False) -> int:
    """Every peer gets a model from M of those that can reach it, or from all when they are fewer."""
    reach = graph.adjacency()
    if same_cluster:
        reach = reach & (CLUSTERS[:, None] == CLUSTERS[None, :])
    return int(reach.sum(1).clamp(max=settings["peers"]).sum())


def sampled(settings: dict[str, Any]) -> int:
    return round(settings["participation"] * PEERS)


def around_a_star(graph: Graph, settings: dict[str, Any]) -> int:
    """Each neighbour of one node sends to it, and is answered; here all nodes have as many neighbours."""
    answered = settings.get("broadcast") != "none"
    return int(graph.in_degree[0]) * (1 + answered)


def pairs(simulation: Simulation, round: int) -> int:
    """How many pairs of neighbours meet in this round."""
    node = simulation.blocks[0].node
    node.begin(round, simulation.topology.graph(round), torch.ones(len(node.ids), dtype=torch.bool))
    return int((random_pairs(node) >= 0).sum()) // 2


BYTES_PER_ROUND: dict[str, Callable[[Graph, dict[str, Any]], int]] = {
    "local": lambda graph, s: 0,
    "d-psgd": lambda graph, s: each_link(graph, s) * MODEL_BYTES,
    "dfedavgm": lambda graph, s: each_link(graph, s) * MODEL_BYTES,
    "kd-pdfl": lambda graph, s: (
        around_a_star(graph, s) * (BODY_BYTES if s["share"] == "base" else MODEL_BYTES)
    ),
    "star-fedavg": lambda graph, s: around_a_star(graph, s) * MODEL_BYTES,
    "fedavg-plus": lambda graph, s: around_a_star(graph, s) * MODEL_BYTES,
    "blend-dfl": lambda graph, s: each_link(graph, s) * MODEL_BYTES,
    "dfedpgp": lambda graph, s: each_link(graph, s) * (BODY_BYTES + MASS_BYTES * (s["mixing"] == "push-sum")),
    "osgp": lambda graph, s: each_link(graph, s) * (MODEL_BYTES + MASS_BYTES),
    # Of 24 and 18 weights, 11 and 10 are kept; 3 bytes of mask each; the biases.
    "dis-pfl": lambda graph, s: each_link(graph, s) * (4 * 21 + 6 + 4 * (HIDDEN + CLASSES)),
    "dfedsam": lambda graph, s: each_link(graph, s) * MODEL_BYTES,
    "dfedavgm-p": lambda graph, s: each_link(graph, s) * BODY_BYTES,
    "gossip-fedavg": lambda graph, s: each_link(graph, s) * (MODEL_BYTES + NUMBER_BYTES),
    "random-gossip": lambda graph, s: pulls(graph, s) * (MODEL_BYTES + NUMBER_BYTES),
    "ppdl": lambda graph, s: pulls(graph, s) * (MODEL_BYTES + NUMBER_BYTES),
    "ppdl-var": lambda graph, s: pulls(graph, s) * (MODEL_BYTES + NUMBER_BYTES),
    "dac": lambda graph, s: pulls(graph, s) * (MODEL_BYTES + NUMBER_BYTES * (1 + PEERS)),
    "dac-var": lambda graph, s: pulls(graph, s) * (MODEL_BYTES + NUMBER_BYTES * (1 + PEERS)),
    "oracle": lambda graph, s: pulls(graph, s, same_cluster=True) * (MODEL_BYTES + NUMBER_BYTES),
    "fedavg": lambda graph, s: sampled(s) * (2 * MODEL_BYTES + NUMBER_BYTES),
    "fedper": lambda graph, s: sampled(s) * (2 * BODY_BYTES + NUMBER_BYTES),
    "fedrep": lambda graph, s: sampled(s) * (2 * BODY_BYTES + NUMBER_BYTES),
    "fedbabu": lambda graph, s: sampled(s) * (2 * BODY_BYTES + NUMBER_BYTES),
    "fedprox": lambda graph, s: sampled(s) * (2 * MODEL_BYTES + NUMBER_BYTES),
    "ditto": lambda graph, s: sampled(s) * (2 * MODEL_BYTES + NUMBER_BYTES),
    "per-fedavg": lambda graph, s: sampled(s) * (2 * MODEL_BYTES + NUMBER_BYTES),
    "pfedme": lambda graph, s: PEERS * MODEL_BYTES + sampled(s) * (MODEL_BYTES + NUMBER_BYTES),
    "pfedkd-wcl": lambda graph, s: (
        sampled(s) * (2 * MODEL_BYTES + NUMBER_BYTES * ("lastclient" in s["server_update"]))
    ),
    "pdfl": lambda graph, s: each_link(graph, s) * MODEL_BYTES,
    "cobo": lambda graph, s: (each_link(graph, s) + 2 * s["pairs"]) * MODEL_BYTES,
    "dpfl": lambda graph, s: (s["chosen"] if s["round"] % s["every"] else each_link(graph, s)) * MODEL_BYTES,
    "pfedgraph": lambda graph, s: each_link(graph, s) * (MODEL_BYTES + NUMBER_BYTES),
    "dbe": lambda graph, s: each_link(graph, s) * (MODEL_BYTES + NUMBER_BYTES * (HIDDEN + 1)),
    "fedala": lambda graph, s: each_link(graph, s) * MODEL_BYTES,
    "facade": lambda graph, s: each_link(graph, s) * (MODEL_BYTES + NUMBER_BYTES),
    "dfedsalt": lambda graph, s: each_link(graph, s) * BODY_BYTES,
    "kin": lambda graph, s: pulls(graph, s) * MODEL_BYTES,
}


@exam()
def test_bytes_are_those_that_the_paper_describes(
    algorithm: Algorithm[Any], sit: Callable[..., Exam]
) -> None:
    name = next(name for name in algorithms if algorithms[name] is type(algorithm))
    assert name in BYTES_PER_ROUND, f"say in BYTES_PER_ROUND how many bytes {name} sends per round"
    simulation = sit(algorithm, torch.float32).simulation()
    expected = 0
    for number in range(3):
        learned = algorithm.collaboration(simulation.blocks[0].state)
        so_far = {
            "round": number,
            "chosen": 0 if learned is None else int((learned > 0).sum()),  # by what was learned before
            "pairs": pairs(simulation, number),
        }
        record = simulation.step(evaluate=number != 1)  # measuring is not traffic
        graph = simulation.topology.graph(number)
        this_round = BYTES_PER_ROUND[name](graph, {**algorithm.settings(), **so_far})
        assert sum(int(traffic.bytes.sum()) for traffic in record.traffic) == this_round
        expected += this_round
    assert int(simulation.totals.bytes_sent.sum()) == expected
    assert int(simulation.totals.bytes_received.sum()) == expected  # nothing was lost
