"""DAC: Listo Zec et al., Decentralized Adaptive Clustering of Deep Nets (FL-IJCAI 2022).

DAC-var, whose tau grows with time, is what PPDL's authors compare with.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, cast

import torch
from torch import Tensor

from coterie.algorithms.parts.best_model import Best
from coterie.algorithms.parts.received import completed
from coterie.algorithms.parts.selection import draw, mask_of, possible_senders, probabilities, rescored
from coterie.algorithms.parts.settings import PPDL_TRAINING, require_at_least
from coterie.algorithms.parts.weighting import weighted, weighted_mean
from coterie.protocol import Algorithm, Facts, Inbox, Node, Params, Presets, Round, Tree, pull
from coterie.protocol.plausible import Sized
from coterie.protocol.trees import Counters


@dataclass(frozen=True)
class DACState:
    """The model, the best one so far, and how similar all other nodes seem."""

    params: Params
    best: Best
    scores: Tensor  # (rows, nodes) 0: unknown
    sampled: Tensor  # (rows, nodes) bool: heard from directly, at any time


@dataclass(frozen=True)
class DAC(Algorithm[DACState]):
    """Sample peers by how well their models do on one's own data.

        G <- M nodes drawn without replacement with probabilities p_i
        s_ij = 1 / (loss of theta_j on i's training data)                     j in G
        s_ik = s_jk of the j in G with s_jk > 0 that is most similar to i     k never sampled by i
        p_ik = exp(tau s_ik) / sum_k exp(tau s_ik)                            unknown nodes have s = 0
        theta_i <- sum_{j in G + i} n_j theta_j / sum_{j in G + i} n_j
        theta_i <- local training from theta_i

    Models come with their senders' scores. One local training phase precedes the first round; the model
    that counts is the one with the lowest validation loss so far, where there is validation data.

    Differs from the paper: all nodes average last round's models, while its code overwrites one node after
    another; losses below 0.001 count as 0.001, and every node keeps a probability of at least about 1e-12.
    """

    peers: int = 3  # M
    tau: float = 30.0  # how strongly similar nodes are preferred

    facts = Facts(
        paper="Listo Zec et al. 2022",
        keeps_best=True,
        measured="after_local",
        communication="one model and one score vector from each of M peers",
        free_running=True,
    )
    presets: ClassVar[Presets] = {
        "ppdl": {"peers": 3, "tau": 30.0, **PPDL_TRAINING},
        "paper": {"peers": 5, "tau": 30.0, **PPDL_TRAINING},  # the rate is tuned there, too
    }

    def __post_init__(self) -> None:
        require_at_least(1, self, "peers")
        require_at_least(0, self, "tau")

    def init(self, node: Node) -> DACState:
        params = node.train(node.initial())
        scores = torch.zeros(node.rows, node.graph.nodes)
        return DACState(params, Best.first(params, node), scores, scores > 0)

    def round(self, state: DACState, node: Node) -> Round[DACState]:
        can_send = mask_of(possible_senders(node), state.scores)
        wanted = draw(node, probabilities(state.scores, can_send, self.tau_in(node.round)), self.peers)
        n = node.n_samples.float()
        payload: Tree = {"model": state.params, "samples": Counters(n=n), "scores": Counters(s=state.scores)}
        inbox = yield from pull(payload, wanted, check=Sized(state.params, "model"))
        loss, samples, heard = _judge(node, inbox, state)
        mixed = _average(state.params, n, inbox, samples)
        node.measure(after_mixing=mixed)
        scores, sampled = rescored(state.scores, state.sampled, inbox.links, loss, heard, node.ids)
        if node.evaluating:
            node.record(scores=scores)
        trained = node.train(mixed)
        return DACState(trained, state.best.seen(trained, node), scores, sampled)

    def personal(self, state: DACState) -> Params:
        return state.best.params

    def tau_in(self, round: int) -> float:
        return self.tau


@dataclass(frozen=True)
class DACVar(DAC):
    """DAC that explores at first and exploits later.

        tau(t) = 2 a / (1 + exp(-0.2 t)) - a + 1,   a = tau

    so tau(0) = 1, and tau(t) goes to tau + 1.

    Differs from the paper: the schedule is that of the authors' code. Everything else, and what differs, is
    as in dac.
    """

    def tau_in(self, round: int) -> float:
        return 2 * self.tau / (1 + math.exp(-0.2 * round)) - self.tau + 1


def _judge(node: Node, inbox: Inbox, state: DACState) -> tuple[Tensor, Tensor, Tensor]:
    """Of each message: its model's loss on the receiver's training data, n of the sender, its scores."""

    def look(payload: Tree, rows: Tensor) -> Tensor:
        sent = cast(dict[str, Params], payload)
        model = completed(sent["model"], state.params, rows, node)
        loss = node.evaluate(model, "train", rows=rows).loss
        return torch.cat((loss[:, None], sent["samples"]["n"][:, None], sent["scores"]["s"]), dim=1)

    seen = inbox.map(look).reshape(-1, state.scores.shape[1] + 2)
    return seen[:, 0], seen[:, 1], seen[:, 2:]


def _average(mine: Params, n: Tensor, inbox: Inbox, samples: Tensor) -> Params:
    """Mean by numbers of samples; one's own model where nobody has any."""
    received = cast(dict[str, Params], inbox.sum(samples))
    if received:
        arrived = torch.zeros_like(n).index_add(0, inbox.rows, samples)
        received = {"model": received["model"], "samples": {"n": arrived}}
    return weighted_mean(weighted(mine, n), received, mine)
