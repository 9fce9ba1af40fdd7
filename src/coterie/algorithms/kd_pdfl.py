"""KD-PDFL: Jeong and Kountouris, Personalized Decentralized FL with Knowledge Distillation (ICC 2023)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from coterie.algorithms.parts.distillation import output_distances
from coterie.algorithms.parts.heads import pick
from coterie.algorithms.parts.received import MOST_IN_MATRIX, Footprints, Met, adopt
from coterie.algorithms.parts.settings import (
    KD_PDFL_EMNIST,
    KD_PDFL_IOT,
    require_above_zero,
    require_at_least,
)
from coterie.algorithms.parts.star import StarNode, require_interval, steps_between_exchanges
from coterie.errors import ConfigError
from coterie.protocol import Algorithm, Facts, Inbox, Node, Params, Presets, Round, average
from coterie.protocol.inbox import share_per_row


@dataclass(frozen=True)
class CollaborationState:
    """Each node's model, how much it trusts every other, and the models that it remembers."""

    params: Params
    collaboration: Tensor | Met  # (rows, peers) w_ij; of more than 5,000 peers, those of pairs that met
    footprints: Footprints  # empty unless use_cache


@dataclass(frozen=True)
class KDPDFL(Algorithm[CollaborationState]):
    """A star node weighs its neighbours' models by how they answer on its own data, and mixes them.

        i <- a random node;  N_i <- those that can reach it in this round (fading links)
        d_ij = 1/n sum_x sum_l (z_i,l(x) - z_j,l(x))^2             (3) z = MidGetter(theta, x), i's data x
        h_j = mu1 d_ij + mu2 dg/dw_ij,  g = lambda_g ||w_i||^2 - log(sum_k w_ik + delta)
        w_ij <- max(0, w_ij - eta h_j),  eta = 1 / ||h||           (2) j in N_i only
        c_i = min(n_i / c_base, 1 / (|N_i| + 1))                   (4)
        theta_i <- c_i theta_i + (1 - c_i) sum_j w_ij theta_j / sum_j w_ij
        broadcast theta_i to N_i, which store it (cache), adopt it (overwrite) or are sent nothing (none)
        theta_k <- theta_k - lr grad f_k(theta_k)                  T_ex - 2 times, on every node k

    A round is one exchange interval of T_ex iterations; its T_ex - 2 local steps of one mini-batch each
    replace the experiment's `training.epochs` and `training.steps`, unless training.work is "equal".
    mu1 = 0: no selection; mu2 = 0: nodes stop cooperating; both 0 with n_i >= c_base: the uniform mean over
    N_i + i.

    Eq. 3 is what the paper calls a Wasserstein distance. It is a mean squared L2 distance, between
    probabilities from 0 to 2; classes have no order over which mass could be moved.

    MidGetter gives the softmax of the logits or, with `layer` (the name of a submodule), the raw outputs of
    that layer divided by the square root of their number, so that d_ij is per feature. share "base" sends
    and mixes only what the outputs of `layer` depend on; the rest of each model stays at home. Peers may have
    different networks (`models` in the experiment): i runs theta_j through j's network, and only layers of
    the same name and shape are mixed; what j lacks counts as i's own in the sum.

    Differs from the paper: by default a broadcast is stored (`cache`), so that personal models stay personal.
    In Algorithm 1 those that hear it adopt it, as the presets do (`overwrite`); its Table I is out of reach
    without that. "1./|h|" is read as one over the norm of h; step_rule "elementwise" is
    the other reading. Only w_ij of those that sent are stepped, since the distances of the others are not
    known. The paper compares on a batch of X_i; here it is all of it. Gradients are clipped at 10 unless
    training.clip says otherwise, of which the paper says nothing. Weights are normalised with c_i to sum 1,
    without which parameters shrink or explode. g is that of the cited Zantedeschi et al. (2020), for the
    paper names none. All start from the same random model, since zeros cannot learn. Only fresh models are
    mixed unless use_cache, which keeps one model of every peer at every peer: peers^2 models in memory,
    copied in each round; without it a broadcast in mode `cache` is sent and counted but not stored. The paper
    compares logits as probabilities and does not say how it would compare hidden layers, nor how it would mix
    unlike networks.
    """

    mu1: float = 1.0
    mu2: float = 0.1
    lambda_g: float = 1.0
    delta: float = 1e-6
    c_base: float = 600.0
    step_rule: Literal["norm", "elementwise", "const"] = "norm"
    step_size: float = 0.1  # eta of step_rule const, whose gradient is clipped to [-1, 1]
    exchange_every: int = 20  # T_ex
    broadcast: Literal["cache", "overwrite", "none"] = "cache"
    use_cache: bool = False
    layer: str | None = None  # whose outputs are compared; None: the logits
    share: Literal["whole", "base"] = "whole"  # base: the model up to `layer`

    # Out of step, a star mixes the newest model that each neighbour addressed to it since its last turn. The
    # bound on staleness should be about the number of peers: so long a pair may have no turn.
    facts = Facts(
        paper="Jeong and Kountouris 2023",
        measured="after_local",
        communication="one model to and from each neighbour of one node",
        architectures=True,
        free_running=True,
        own_work=("exchange_every",),
    )
    presets: ClassVar[Presets] = {
        "paper": {**KD_PDFL_IOT, "broadcast": "overwrite", "c_base": 600.0},
        "emnist": {**KD_PDFL_EMNIST, "broadcast": "overwrite", "c_base": 3000.0},  # 6 times 500 samples
    }

    def __post_init__(self) -> None:
        require_interval(self.exchange_every)
        require_at_least(0, self, "mu1", "mu2", "lambda_g", "step_size")
        require_above_zero(self, "delta", "c_base")
        if self.share == "base" and self.layer is None:
            raise ConfigError("share 'base' needs layer: the name of the last layer that is shared")

    def init(self, node: Node) -> CollaborationState:
        params, peers = node.initial(), node.graph.nodes - (node.hub is not None)
        footprints = Footprints.none(self.shared(params, node), self.use_cache * peers)
        if peers > MOST_IN_MATRIX and not self.use_cache:
            slots = StarNode.most_turns(node) * int(node.graph.in_degree.max())
            return CollaborationState(params, Met.nobody(node.rows, min(peers, slots), 1 / peers), footprints)
        everyone = torch.arange(peers) != node.ids[:, None]  # w_ii = 0
        return CollaborationState(params, everyone / peers, footprints)

    def round(self, state: CollaborationState, node: Node) -> Round[CollaborationState]:
        star = StarNode.draw(node)
        inbox = yield star.gather(self.shared(state.params, node), node)
        collaboration = self.updated(state, inbox, star, node)
        footprints = state.footprints.seen(inbox) if self.use_cache else state.footprints
        mine = self.mixed(state.params, collaboration, footprints, inbox, node)
        if self.broadcast != "none":
            answer = yield star.broadcast(self.shared(mine, node), inbox, node)
            mine = adopt(mine, answer) if self.broadcast == "overwrite" else mine
            footprints = footprints.seen(answer) if self.use_cache else footprints
        node.measure(after_mixing=mine)
        if node.evaluating and isinstance(collaboration, Tensor):
            node.record(collaboration=collaboration)
        mine = steps_between_exchanges(mine, node, self.exchange_every)
        return CollaborationState(mine, collaboration, footprints)

    def personal(self, state: CollaborationState) -> Params:
        return state.params

    def collaboration(self, state: CollaborationState) -> Tensor | None:
        return state.collaboration if isinstance(state.collaboration, Tensor) else None

    def compared_layer(self) -> str | None:
        return self.layer

    def shared(self, params: Params, node: Node) -> Params:
        """What leaves a node."""
        return pick(params, node.names(self.layer)) if self.share == "base" else params

    def updated(self, state: CollaborationState, inbox: Inbox, star: StarNode, node: Node) -> Tensor | Met:
        """The star's new collaboration weights, eq. 2; `inbox` is empty in all rows but the star's."""
        rows, senders, before = inbox.rows, inbox.senders, state.collaboration
        w = weights_of(before, inbox)
        if isinstance(before, Met):
            degree = before.total(rows, node.graph.nodes - (node.hub is not None))
        else:
            degree = before.double().sum(1)[rows]
        regulariser = 2 * self.lambda_g * w - 1 / (degree + self.delta)  # dg/dw_ij
        d = output_distances(node, state.params, star.row(node), inbox, self.layer)  # eq. 3
        h = self.mu1 * d + self.mu2 * regulariser
        after = (w - self.step(h)).clamp(min=0)
        if isinstance(before, Met):
            return before.changed(rows, senders, after)
        result = before.clone()
        result[rows, senders] = after.to(result.dtype)
        return result

    def step(self, h: Tensor) -> Tensor:
        """eta h, where eta = "1./|h|" is read in one of three ways."""
        if self.step_rule == "norm":
            return h / h.norm() if bool((h != 0).any()) else h
        return h.sign() if self.step_rule == "elementwise" else self.step_size * h.clamp(-1.0, 1.0)

    def mixed(
        self, mine: Params, collaboration: Tensor | Met, footprints: Footprints, inbox: Inbox, node: Node
    ) -> Params:
        """The star's new model; all others, who received nothing, keep theirs."""
        count = inbox.count.double()
        confidence = torch.minimum(node.n_samples / self.c_base, 1 / (count + 1))  # eq. 4
        share = torch.where(count > 0, 1 - confidence, 0.0)  # (rows,) of what was received
        if self.use_cache and isinstance(collaboration, Tensor):
            return footprints.mixed_with(mine, collaboration, share)
        w = weights_of(collaboration, inbox)
        total = share_per_row(inbox, w)
        weights = w * (share / total.where(total > 0, 1.0))[inbox.rows]
        return average(mine, inbox, weights)


def weights_of(collaboration: Tensor | Met, inbox: Inbox) -> Tensor:
    """(messages,) w_ij of those that arrived."""
    if isinstance(collaboration, Met):
        return collaboration.of(inbox.rows, inbox.senders).double()
    return collaboration[inbox.rows, inbox.senders].double()
