"""What comes back to its sender."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from algorithm_exam import PEERS, Exam, state_of
from torch import Tensor

from coterie.learning import Workers
from coterie.protocol import Exchange, Facts, ModelAlgorithm, ModelState, Node, Round
from coterie.simulation import RoundRecord
from coterie.topology import Topology, make


class Cut(Topology):
    """A ring of six on which what node 1 sends is lost, and so is what node 3 sends to node 4."""

    def __init__(self) -> None:
        self.inner = make("ring", peers=PEERS, seed=0)
        self.nodes, self.hub = PEERS, None
        self.directed = self.time_varying = False

    def graph(self, round: int):  # type: ignore[no-untyped-def]
        return self.inner.graph(round)

    def online(self, round: int) -> Tensor:
        return torch.ones(PEERS, dtype=torch.bool)

    def delivers(self, round: int, slot: int, senders: Tensor, receivers: Tensor) -> Tensor:
        return ~((senders == 1) | ((senders == 3) & (receivers == 4)))


@dataclass(frozen=True)
class Sends(ModelAlgorithm):
    """Sends (id, -id) to the neighbours, and keeps what comes back."""

    facts = Facts(paper="none", measured="after_mixing", communication="two numbers")

    conserved: bool = True

    def round(self, state: ModelState, node: Node) -> Round[ModelState]:
        own = {"w": torch.stack((node.ids, -node.ids), 1).float()}
        inbox = yield Exchange(own, conserved=self.conserved)
        none = {"w": torch.zeros(node.rows, 2)}
        return ModelState(dict(inbox.returned or none))  # type: ignore[arg-type]


def played(shards: list[list[int]] | None, conserved: bool) -> tuple[Tensor, RoundRecord]:
    """What came back to each node, and the record of the round."""
    with Workers(1) as workers:
        cut = shards and [torch.tensor(ids) for ids in shards]
        simulation = Exam(Sends(conserved), {1: workers}).simulation(topology=Cut(), shards=cut)
        record = simulation.step(evaluate=False)
    return state_of(simulation)["params/w"], record


@pytest.mark.parametrize("shards", [None, [[3, 0], [4, 1], [2, 5]]], ids=["whole", "cut"])
def test_lost_payloads_of_a_conserved_exchange_come_back(shards: list[list[int]] | None) -> None:
    back, record = played(shards, conserved=True)
    assert back.tolist() == [[0, 0], [2, -2], [0, 0], [3, -3], [0, 0], [0, 0]]
    (traffic,) = record.traffic
    assert int((~traffic.delivered).sum()) == 3


def test_other_exchanges_give_nothing_back() -> None:
    assert played(None, conserved=False)[0].tolist() == [[0, 0]] * PEERS
