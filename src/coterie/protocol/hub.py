"""Addresses for algorithms with a hub: one more node, without data, that all others can reach."""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.protocol.exchange import Links
from coterie.protocol.node import Node


def sample_clients(node: Node, participation: float) -> Tensor:
    """Ids of this round's clients, sorted; every node computes the same ones."""
    peers = node.graph.nodes - 1
    count = max(1, round(participation * peers))
    return node.shared_rng("clients").sample(count, peers)[0].sort().values


def from_hub(node: Node, clients: Tensor) -> Links:
    """From the hub's row, if this process hosts it, to the clients."""
    row = node.is_hub.nonzero().flatten()
    return Links(row.repeat_interleave(len(clients)), clients.repeat(len(row)))


def to_hub(node: Node, sending: Tensor) -> Links:
    """From the rows where `sending` holds to the hub."""
    rows = (sending & ~node.is_hub).nonzero().flatten()
    assert node.hub is not None
    return Links(rows, torch.full_like(rows, node.hub))
