"""CoBo: Hashemi et al., Collaborative Learning via Bilevel Optimization (NeurIPS 2024)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, cast

import torch
from torch import Tensor

from coterie.algorithms.parts.distillation import full_gradient
from coterie.algorithms.parts.heads import pick
from coterie.algorithms.parts.selection import random_pairs
from coterie.algorithms.parts.settings import require_at_least
from coterie.protocol import Algorithm, Exchange, Facts, Inbox, Links, Node, Params, Presets, Round, average
from coterie.protocol.inbox import share_per_row
from coterie.protocol.plausible import Sized
from coterie.protocol.trees import Tree, some_rows


@dataclass(frozen=True)
class CoBoState:
    """The model, and how much each node is pulled towards every other."""

    params: Params
    collaboration: Tensor  # (rows, nodes) w_ij in [0, 1]


@dataclass(frozen=True)
class CoBo(Algorithm[CoBoState]):
    """Two nodes are partners as long as their gradients point the same way half way between their models.

        z_ij = (theta_i + theta_j) / 2                                        for some pairs of neighbours
        w_ij <- clip(w_ij + gamma <grad F_i(z_ij), grad F_j(z_ij)>, 0, 1)     w_ij = 1 at first
        theta_i <- theta_i - lr (grad F_i(theta_i) + rho sum_j w_ij (theta_i - theta_j))     local SGD

    theta_j are the models as they were at the start of the round. Keep lr rho times the number of neighbours
    below 1. Each node is in at most one pair of a round, drawn from the seed, so that all know the pairs.

    Differs from the paper: it takes one step between two exchanges; here a round has whole local epochs. It
    examines each pair with probability 1 / nodes; here the pairs are a random matching of the links, which
    is as many gradients. They are over all of a node's training data, not over a batch. Where links are
    fewer than all, partners are neighbours.
    """

    gamma: float = 0.01
    rho: float = 0.05

    facts = Facts(
        paper="Hashemi et al. 2024",
        measured="after_local",
        communication="one model to each neighbour, one gradient to one of them",
        symmetric_only=True,
    )
    presets: ClassVar[Presets] = {"paper": {"gamma": 0.01, "rho": 0.05}}

    def __post_init__(self) -> None:
        require_at_least(0, self, "gamma", "rho")

    def init(self, node: Node) -> CoBoState:
        everyone = torch.arange(node.graph.nodes) != node.ids[:, None]
        return CoBoState(node.initial(), everyone.float())

    def round(self, state: CoBoState, node: Node) -> Round[CoBoState]:
        inbox = yield Exchange(state.params)
        partner = random_pairs(node)[node.ids]  # (rows,) -1: none
        half = 0.5 * (inbox.senders == partner[inbox.rows])
        met = share_per_row(inbox, half) > 0
        middle = average(state.params, inbox, half)
        gradient = full_gradient(node, middle, node.loss, met)
        gradient = pick(gradient, tuple(n for n in gradient if n not in (*node.buffers, *node.at_home)))
        rows, paired = met.nonzero().flatten(), (partner >= 0).nonzero().flatten()
        to, expect = Links(rows, partner[rows]), Links(paired, partner[paired])
        answers = yield Exchange(gradient, to=to, expect=expect, check=Sized(state.params), averaged=False)
        collaboration = self.updated(state.collaboration, gradient, answers)
        if node.evaluating:
            node.record(collaboration=collaboration)
        trained = node.train(state.params, proximal=self.pull(state.params, collaboration, inbox))
        return CoBoState(trained, collaboration)

    def personal(self, state: CoBoState) -> Params:
        return state.params

    def collaboration(self, state: CoBoState) -> Tensor:
        return state.collaboration

    def updated(self, collaboration: Tensor, gradient: Params, answers: Inbox) -> Tensor:
        """The weights of those pairs that exchanged their gradients."""

        def aligned(theirs: Tree, rows: Tensor) -> Tensor:
            sent = cast(Params, theirs)
            both = ((some_rows(mine, rows) * sent[name]).flatten(1).sum(1) for name, mine in gradient.items())
            return torch.stack(list(both)).sum(0).cpu()

        result, place = collaboration.clone(), (answers.rows, answers.senders)
        result[place] = (result[place] + self.gamma * answers.map(aligned).to(result)).clamp(0.0, 1.0)
        return result

    def pull(self, mine: Params, collaboration: Tensor, inbox: Inbox) -> tuple[Tensor, Params]:
        """rho sum_j w_ij (theta - theta_j) as one pull towards the weighted mean of those who sent."""
        weights = collaboration[inbox.rows, inbox.senders].double()
        total = share_per_row(inbox, weights)
        return self.rho * total, average(mine, inbox, weights / total.where(total > 0, 1.0)[inbox.rows])
