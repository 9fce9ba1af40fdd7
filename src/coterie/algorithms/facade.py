"""FACADE: Biswas et al., Fair Decentralized Learning (SaTML 2025)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, cast

import torch
from torch import Tensor

from coterie.algorithms.parts.heads import pick
from coterie.algorithms.parts.settings import require_at_least
from coterie.protocol import Algorithm, Exchange, Facts, Inbox, Node, Params, Presets, Round, Tree, average
from coterie.protocol.inbox import share_per_row
from coterie.protocol.plausible import Sized
from coterie.protocol.trees import map_params, per_row

_NUMBER = "number of the head"  # beside the model in a payload; no parameter is called so


@dataclass(frozen=True)
class HeadsState:
    """One body with the chosen head, and all heads."""

    params: Params
    heads: Params  # (rows, k, ...)
    cluster: Tensor  # (rows,) which head is the node's own


@dataclass(frozen=True)
class PlausibleHead:
    """The number of a head is one of those that exist, and the model has a plausible size."""

    clusters: int
    sized: Sized

    def __call__(self, payload: Tree) -> str:
        number = float(cast(Params, payload)[_NUMBER])
        if number not in range(self.clusters):
            return f"the number of its head is {number:g}, and heads have 0 to {self.clusters - 1}"
        return self.sized(payload)


@dataclass(frozen=True)
class FACADE(Algorithm[HeadsState]):
    """Every node has one body and k heads, and uses the head that fits its data best.

        send u_i, the head v_i,c that i trained, and its number c
        u_i <- mean of u_j over j in N_i + i
        v_i,k <- mean of v_i,k and of those v_j,k that arrived, for each k
        c <- argmin_k F_i(u_i, v_i,k) on i's training data
        (u_i, v_i,c) <- local training

    So nodes with the same head form a cluster, without being told. All nodes start with the same k heads.

    Differs from the paper: its nodes average once more over their cluster before they are measured, for which
    they would have to know it; here nobody does. The first head is the network's own initial one; the others
    are random with entries of the same size. Messages arrive before local training, so that the first round
    mixes equal models.
    """

    clusters: int = 4  # k

    facts = Facts(
        paper="Biswas et al. 2025",
        measured="after_local",
        communication="one model and the number of its head to each neighbour",
        free_running=True,
        partial=True,
    )
    presets: ClassVar[Presets] = {}

    def __post_init__(self) -> None:
        require_at_least(1, self, "clusters")

    def init(self, node: Node) -> HeadsState:
        params = node.initial()
        heads = {name: self.first_heads(name, params[name], node) for name in node.head}
        return HeadsState(params, heads, torch.zeros(node.rows, dtype=torch.long))

    def round(self, state: HeadsState, node: Node) -> Round[HeadsState]:
        payload = {**state.params, _NUMBER: state.cluster.float()}
        inbox = yield Exchange(payload, check=PlausibleHead(self.clusters, Sized(state.params)))
        body = average(pick(state.params, node.body), inbox)
        heads = self.mixed_heads(state.heads, inbox)
        cluster = self.best(body, heads, node)
        mixed = {**body, **_chosen(heads, cluster)}
        node.measure(after_mixing=mixed)
        node.record(cluster=cluster)
        trained = node.train(mixed)
        place = (torch.arange(node.rows), cluster)
        heads = {name: value.index_put(place, trained[name]) for name, value in heads.items()}
        return HeadsState(trained, heads, cluster)

    def personal(self, state: HeadsState) -> Params:
        return state.params

    def first_heads(self, name: str, head: Tensor, node: Node) -> Tensor:
        """(rows, k, ...) the initial head and random ones, the same on all nodes that start alike."""
        size = head.square().flatten(1).mean(1).sqrt() * 3**0.5  # of a uniform distribution
        others = [
            2 * node.shared_rng(f"head {name}").uniform(head[0].numel(), number).view(head[:1].shape) - 1
            for number in range(1, self.clusters)
        ]
        return torch.stack([head, *(other.to(head) * per_row(size, head) for other in others)], 1)

    def mixed_heads(self, heads: Params, inbox: Inbox) -> Params:
        """Each head averaged with those of its number that arrived."""
        numbers = inbox.map(lambda sent, rows: cast(Params, sent)[_NUMBER].cpu())
        mixed = []
        for number in range(self.clusters):
            same = (numbers == number).double()
            share = 1 / (share_per_row(inbox, same) + 1)
            mixed.append(average(_numbered(heads, number), inbox, same * share[inbox.rows]))
        return {name: torch.stack([head[name] for head in mixed], 1) for name in heads}

    def best(self, body: Params, heads: Params, node: Node) -> Tensor:
        """(rows,) the head with the least loss on each row's training data; the first without any."""
        each = ({**body, **_numbered(heads, number)} for number in range(self.clusters))
        losses = torch.stack([node.evaluate(model, "train").loss for model in each], 1)
        return losses.nan_to_num(0.0).argmin(1)


def _numbered(heads: Params, number: int) -> Params:
    return map_params(lambda head: head[:, number], heads)


def _chosen(heads: Params, cluster: Tensor) -> Params:
    rows = torch.arange(len(cluster))
    return map_params(lambda head: head[rows.to(head.device), cluster.to(head.device)], heads)
