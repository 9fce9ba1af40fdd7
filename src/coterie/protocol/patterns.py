"""Exchanges that many algorithms make: asking some nodes for what they have, and sending to and from a hub.

A hub is one more node, without data, that all others can reach.
"""

from __future__ import annotations

from collections.abc import Generator

import torch
from torch import Tensor

from coterie.protocol.exchange import Exchange, Links
from coterie.protocol.inbox import Inbox
from coterie.protocol.node import Node
from coterie.protocol.plausible import Check
from coterie.protocol.trees import Tree


def pull(
    payload: Tree, wanted: Links, *, sealed: bool = False, check: Check | None = None, most: int | None = None
) -> Generator[Exchange, Inbox, Inbox]:
    """Ask the wanted nodes for their payload, and answer those who ask for ours.

    Real peers that do not keep step ask, and go on: what comes back are answers to what they asked lately.
    most: how many nodes a row asks at most, if the answers are sealed.
    """
    asked = yield Exchange({}, to=wanted)
    return (
        yield Exchange(
            payload, to=asked.links, sealed=sealed, expect=wanted, check=check, most=most, answers=True
        )
    )


def sample_clients(node: Node, participation: float) -> Tensor:
    """Ids of this round's clients, sorted; every node computes the same ones."""
    count = clients_per_round(node, participation)
    return node.shared_rng("clients").sample(count, node.graph.nodes - 1)[0].sort().values


def clients_per_round(node: Node, participation: float) -> int:
    """How many `sample_clients` draws."""
    return max(1, round(participation * (node.graph.nodes - 1)))


def everyone(node: Node) -> Tensor:
    """Ids of all clients."""
    return torch.arange(node.graph.nodes - 1)


def from_hub(payload: Tree, node: Node, clients: Tensor, *, counted: bool = True) -> Exchange:
    """The hub sends its row to the clients."""
    at_hub = node.is_hub.nonzero().flatten()
    to = Links(at_hub.repeat_interleave(len(clients)), clients.repeat(len(at_hub)))
    return Exchange(payload, to=to, expect=_with_hub(node, torch.isin(node.ids, clients)), counted=counted)


def to_hub(
    payload: Tree, node: Node, sending: Tensor, clients: Tensor, check: Check | None = None
) -> Exchange:
    """The rows where `sending` holds, all of them among `clients`, send to the hub."""
    at_hub = node.is_hub.nonzero().flatten()
    expect = Links(at_hub.repeat_interleave(len(clients)), clients.repeat(len(at_hub)))
    return Exchange(payload, to=_with_hub(node, sending & ~node.is_hub), expect=expect, check=check)


def _with_hub(node: Node, chosen: Tensor) -> Links:
    rows = chosen.nonzero().flatten()
    assert node.hub is not None
    return Links(rows, torch.full_like(rows, node.hub))
