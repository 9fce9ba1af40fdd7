"""What methods around a star node share: who it is in this round, and the steps between exchanges."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from coterie.errors import ConfigError
from coterie.protocol import Exchange, Inbox, Links, Node, Params


@dataclass(frozen=True)
class StarNode:
    """The node that wakes up in this round, and who can reach it; every node computes the same."""

    id: int
    neighbours: Tensor  # (k,) ids

    @classmethod
    def draw(cls, node: Node) -> StarNode:
        peers = node.graph.nodes - (node.hub is not None)
        star = int(node.shared_rng("star").sample(1, peers)[0, 0])
        neighbours = node.graph.in_neighbours(star)
        return cls(star, neighbours[neighbours < peers])  # a hub has no model of its own

    @classmethod
    def most_turns(cls, node: Node) -> int:
        """How often any node wakes up at most in all rounds: stars follow from the seed alone."""
        peers, drawn = node.graph.nodes - (node.hub is not None), node.shared_rng("star")
        stars = [int(replace(drawn, round=n).sample(1, peers)[0, 0]) for n in range(node.rounds)]
        return max(Counter(stars).values(), default=0)

    def row(self, node: Node) -> Tensor:
        """The star's row, if this process hosts it: (1,) or (0,)."""
        return (node.ids == self.id).nonzero().flatten()

    def gather(self, payload: Params, node: Node) -> Exchange:
        """The neighbours send to the star."""
        row = self.row(node)
        expected = Links(row.repeat_interleave(len(self.neighbours)), self.neighbours.repeat(len(row)))
        return Exchange(payload, to=self._around(node), expect=expected)

    def broadcast(self, payload: Params, inbox: Inbox, node: Node) -> Exchange:
        """The star answers those that it heard."""
        return Exchange(payload, to=inbox.links, expect=self._around(node))

    def _around(self, node: Node) -> Links:
        rows = torch.isin(node.ids, self.neighbours).nonzero().flatten()
        return Links(rows, torch.full_like(rows, self.id))


def steps_between_exchanges(params: Params, node: Node, exchange_every: int, **settings: Any) -> Params:
    """The iterations between two exchanges, without the two slots for exchange and broadcast."""
    return node.train(params, steps=exchange_every - 2, **settings)


def require_interval(exchange_every: int) -> None:
    """Refuse an interval without room for exchange and broadcast."""
    if exchange_every < 2:
        raise ConfigError(
            f"exchange_every must be 2 or more (exchange, broadcast, local steps), not {exchange_every}"
        )
