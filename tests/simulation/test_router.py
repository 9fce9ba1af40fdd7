"""What comes back to its sender."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from coterie.protocol import Exchange
from coterie.simulation import Router
from coterie.topology import Topology, make


class Cut(Topology):
    """A ring of five on which what node 1 sends is lost, and so is what node 3 sends to node 4."""

    def __init__(self) -> None:
        self.inner = make("ring", peers=5, seed=0)
        self.nodes, self.hub = 5, None
        self.directed = self.time_varying = False

    def graph(self, round: int):  # type: ignore[no-untyped-def]
        return self.inner.graph(round)

    def online(self, round: int) -> Tensor:
        return torch.ones(5, dtype=torch.bool)

    def delivers(self, round: int, slot: int, senders: Tensor, receivers: Tensor) -> Tensor:
        return ~((senders == 1) | ((senders == 3) & (receivers == 4)))


def exchanges(blocks: list[Tensor], conserved: bool) -> list[Exchange]:
    return [Exchange({"w": torch.stack((ids, -ids), 1).float()}, conserved=conserved) for ids in blocks]


@pytest.mark.parametrize("blocks", [[[0, 1, 2, 3, 4]], [[3, 0], [4, 1], [2]]], ids=["whole", "cut"])
def test_lost_payloads_of_a_conserved_exchange_come_back(blocks: list[list[int]]) -> None:
    ids = [torch.tensor(block) for block in blocks]
    inboxes, traffic = Router(Cut(), ids, frozenset()).deliver(exchanges(ids, True), 0, 0)
    back = torch.zeros(5, 2)
    for block, inbox in zip(ids, inboxes, strict=True):
        assert not isinstance(inbox.returned, Tensor)
        if inbox.returned:
            back[block] = torch.as_tensor(inbox.returned["w"])
    assert back.tolist() == [[0, 0], [2, -2], [0, 0], [3, -3], [0, 0]]
    assert traffic is not None
    assert int((~traffic.delivered).sum()) == 3


def test_other_exchanges_give_nothing_back() -> None:
    ids = [torch.arange(5)]
    (inbox,), _ = Router(Cut(), ids, frozenset()).deliver(exchanges(ids, False), 0, 0)
    assert inbox.returned == {}
