"""What a network does to a node: links cut, peers offline, messages lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from algorithm_exam import (
    ONE_CLASS_PEER,
    PEERS,
    Exam,
    assert_finite,
    assert_same,
    differs,
    exam,
    federation,
    state_of,
    topology_for,
)
from torch import Tensor

from coterie.protocol import Algorithm
from coterie.topology import Churn, Graph, MessageLoss, Topology


class Cut(Topology):
    """Another topology without the links of some nodes, in which some nodes are offline."""

    def __init__(self, inner: Topology, alone: Sequence[int] = (), offline: Sequence[int] = ()) -> None:
        self.inner, self.alone, self.offline = inner, torch.tensor(alone), torch.tensor(offline)
        self.nodes, self.hub = inner.nodes, inner.hub
        self.directed, self.time_varying = inner.directed, inner.time_varying

    def graph(self, round: int) -> Graph:
        graph = self.inner.graph(round)
        kept = self.delivers(round, 0, graph.senders, graph.receivers)
        return Graph.from_links(self.nodes, graph.senders[kept], graph.receivers[kept])

    def online(self, round: int) -> Tensor:
        return ~torch.isin(torch.arange(self.nodes), self.offline)

    def delivers(self, round: int, slot: int, senders: Tensor, receivers: Tensor) -> Tensor:
        return ~(torch.isin(senders, self.alone) | torch.isin(receivers, self.alone))


@exam()
def test_isolated_peer_goes_on_alone(algorithm: Algorithm[Any], sit: Callable[..., Exam]) -> None:
    """What the others do makes no difference to it, and it trains unless it needs a hub to.

    Nothing is measured: for that, hub algorithms hand out their model whatever the links are.
    """
    exam, inner = sit(algorithm), topology_for(algorithm)
    finals = []
    for alone in ([5], range(inner.nodes)):
        simulation = exam.simulation(topology=Cut(inner, alone=alone))
        before = state_of(simulation)
        for _ in range(3):
            simulation.step(evaluate=False)
        assert_finite(simulation)
        finals.append({name: value[5] for name, value in state_of(simulation).items()})
    assert_same(*finals, tolerance=1e-9)
    assert differs(finals[0], {name: value[5] for name, value in before.items()}) is not algorithm.facts.hub


@exam(variants=False)
def test_nobody_hears_anybody(algorithm: Algorithm[Any], sit: Callable[..., Exam]) -> None:
    """Empty inboxes for all: finite models, and nothing arrives."""
    inner = topology_for(algorithm)
    simulation, records = sit(algorithm).played(topology=Cut(inner, alone=range(inner.nodes)))
    assert_finite(simulation)
    assert int(simulation.totals.bytes_received.sum()) == 0
    for record in records:
        for evaluation in record.evaluations.values():
            assert bool(evaluation.loss.isfinite().all())


@exam(variants=False)
def test_peer_with_one_sample_and_peer_with_one_class_learn(
    algorithm: Algorithm[Any], sit: Callable[..., Exam]
) -> None:
    exam = sit(algorithm, torch.float32)
    data = federation()
    assert int(data.train.sizes[3]) == 1
    assert int((data.label_histogram()[ONE_CLASS_PEER] > 0).sum()) == 1
    simulation, records = exam.played()
    assert_finite(simulation)
    losses = torch.stack([record.train_loss for record in records])
    for peer in (3, ONE_CLASS_PEER):
        taken = losses[:, peer][~losses[:, peer].isnan()]
        assert bool(taken.isfinite().all())
        if algorithm.settings().get("participation", 1.0) == 1.0:
            assert len(taken) == len(records)


@exam()
def test_churn_and_loss(algorithm: Algorithm[Any], sit: Callable[..., Exam]) -> None:
    """Those who are offline keep every bit of their state, nothing is lost from the books, twice the same."""
    exam, finals = sit(algorithm, torch.float32), []
    for _ in range(2):
        topology = MessageLoss(Churn(topology_for(algorithm), 0.5, 2), 0.5, 2)
        simulation = exam.simulation(topology=topology)
        away = 0
        for number in range(4):
            before, offline = state_of(simulation), ~topology.online(number)
            record = simulation.step()
            away += int(offline.sum())
            after = state_of(simulation)
            assert_same({k: v[offline] for k, v in before.items()}, {k: v[offline] for k, v in after.items()})
            assert torch.equal(record.online, topology.online(number)[:PEERS])
            assert bool(record.train_loss[offline[:PEERS]].isnan().all())
            for traffic in record.traffic:
                assert not bool(offline[traffic.senders].any()), "an offline peer sent something"
                assert not bool((offline[traffic.receivers] & traffic.delivered).any())
        assert away > 3
        assert_finite(simulation)
        finals.append(state_of(simulation) | vars(simulation.totals))
    assert_same(*finals)


@exam(variants=False)
def test_everyone_offline_but_one(algorithm: Algorithm[Any], sit: Callable[..., Exam]) -> None:
    inner = topology_for(algorithm)
    topology = Cut(inner, offline=[peer for peer in range(PEERS) if peer != 2])
    simulation = sit(algorithm).simulation(topology=topology)
    before = state_of(simulation)
    simulation.step()
    simulation.step()
    others = [peer for peer in range(PEERS) if peer != 2]
    after = state_of(simulation)
    assert_same({k: v[others] for k, v in before.items()}, {k: v[others] for k, v in after.items()})
    assert_finite(simulation)
    assert int(simulation.totals.bytes_received[others].sum()) == 0
