"""FedAvg without a server, by a star node that changes in every exchange: the baseline of KD-PDFL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from coterie.algorithms.fedavg import adopt
from coterie.errors import ConfigError
from coterie.protocol import (
    Exchange,
    Facts,
    Inbox,
    Links,
    ModelAlgorithm,
    ModelState,
    Node,
    Params,
    Presets,
    Round,
    average,
)

IOT = {"exchange_every": 20, "training.lr": 0.01, "training.batch_size": 32}
EMNIST = {"exchange_every": 5, "training.lr": 0.01, "training.batch_size": 32}


@dataclass(frozen=True)
class StarFedAvg(ModelAlgorithm):
    """One random star node per exchange averages its neighbours' models and hands the mean back.

        i <- a random node;  N_i <- those that can reach it in this round (fading links)
        theta_i <- mean of theta_j over j in N_i + i
        theta_j <- theta_i                                   for j in N_i: broadcast with overwrite
        theta_k <- theta_k - lr grad f_k(theta_k)            T_ex - 2 times, on every node k

    A round is one exchange interval of T_ex iterations: exchange, broadcast, then T_ex - 2 local steps of
    one mini-batch each, which replace the experiment's `training.epochs` and `training.steps`. To compare
    with Local, give it training.steps = T_ex - 2. Only one node mixes per round: curves are slow by design.
    A message that is lost is a neighbour less; a star that hears nobody changes nothing.

    Differs from the paper: it does not write this baseline down. The same star and links as in KD-PDFL, a
    uniform mean and a broadcast that overwrites were chosen here; so were learning rate and batch size.
    """

    exchange_every: int = 20  # T_ex

    facts = Facts(
        paper="Jeong and Kountouris 2023 (baseline)",
        measured="after_local",
        communication="one model to and from each neighbour of one node",
        personal=False,
        architectures=True,
    )
    presets: ClassVar[Presets] = {"paper": IOT, "emnist": EMNIST}

    def __post_init__(self) -> None:
        require_interval(self.exchange_every)

    def round(self, state: ModelState, node: Node) -> Round[ModelState]:
        star = StarNode.draw(node)
        inbox = yield star.gather(state.params, node)
        mixed = self.mix(state.params, inbox, node)
        answer = yield star.broadcast(mixed, inbox, node)
        mine = adopt(mixed, answer)
        node.measure(after_mixing=mine)
        return ModelState(local_steps(mine, node, self.exchange_every, **self.local_settings(node)))

    def mix(self, mine: Params, inbox: Inbox, node: Node) -> Params:
        """The star's new model; all others, who received nothing, keep theirs."""
        return average(mine, inbox)

    def local_settings(self, node: Node) -> dict[str, Any]:
        """What a variant changes in local training."""
        return {}


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


def local_steps(params: Params, node: Node, exchange_every: int, **settings: Any) -> Params:
    """The iterations between two exchanges, without the two slots for exchange and broadcast."""
    steps = exchange_every - 2
    return node.train(params, steps=steps, **settings) if steps else params


def require_interval(exchange_every: int) -> None:
    """Refuse an interval without room for exchange and broadcast."""
    if exchange_every < 2:
        raise ConfigError(
            f"exchange_every must be 2 or more (exchange, broadcast, local steps), not {exchange_every}"
        )
