"""DPFL: Kharrat, Canini and Horvath, Decentralized Personalized Federated Learning (AISTATS 2025)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from coterie.algorithms.parts.best_model import require_validation
from coterie.algorithms.parts.received import completed
from coterie.algorithms.parts.selection import mask_of, possible_senders
from coterie.algorithms.parts.settings import require_at_least
from coterie.protocol import Algorithm, Facts, Inbox, Links, Node, Params, Presets, Round, Tree, average, pull
from coterie.protocol.inbox import share_per_row
from coterie.protocol.trees import map_params, per_row, some_rows


@dataclass(frozen=True)
class DPFLState:
    """The model, and from whom each node learns."""

    params: Params
    chosen: Tensor  # (rows, nodes) bool


@dataclass(frozen=True)
class DPFL(Algorithm[DPFLState]):
    """Choose the peers whose mean with oneself does best on one's own validation data, one after another.

        theta_i <- local training
        every P rounds:  C_i <- {};  up to M times, over all nodes that can be reached:
            j <- argmin_j of the validation loss of mean{theta_k: k in C_i + i + j}
            add j to C_i, unless that raises the loss: then stop
        theta_i <- mean{theta_k: k in C_i + i}

    Between two choices only those in C_i are asked for their models. Choosing needs everyone's.

    Differs from the paper: it draws who joins by chance, in proportion to the gain of adding and of leaving
    out; this is the deterministic greedy choice, which the authors' code has as well. Models are averaged
    evenly, not by numbers of samples. The first choice is in the first round, where the code waits.
    """

    peers: int = 4  # M, the most that a node learns from
    every: int = 2  # P, rounds from one choice to the next

    facts = Facts(
        paper="Kharrat et al. 2025",
        measured="after_local",
        communication="one model from each of at most M peers, and every P rounds one from everybody",
        validation=True,
    )
    presets: ClassVar[Presets] = {}

    def __post_init__(self) -> None:
        require_at_least(1, self, "peers", "every")

    def init(self, node: Node) -> DPFLState:
        require_validation(node, "chooses peers by validation loss")
        return DPFLState(node.initial(), torch.zeros(node.rows, node.graph.nodes, dtype=torch.bool))

    def round(self, state: DPFLState, node: Node) -> Round[DPFLState]:
        mine = node.train(state.params)
        node.measure(after_local=mine)
        reachable, choosing = possible_senders(node), node.round % self.every == 0
        known = state.chosen[reachable.rows, reachable.ids]
        wanted = reachable if choosing else Links(reachable.rows[known], reachable.ids[known])
        inbox = yield from pull(mine, wanted)
        taken, chosen = torch.ones(len(inbox.rows)), state.chosen
        if choosing:
            taken = self.greedy(mine, inbox, node)
            chosen = mask_of(Links(inbox.rows[taken > 0], inbox.senders[taken > 0]), state.chosen)
        if node.evaluating:
            node.record(collaboration=chosen.float())
        return DPFLState(_mean(mine, inbox, taken), chosen)

    def personal(self, state: DPFLState) -> Params:
        return state.params

    def collaboration(self, state: DPFLState) -> Tensor:
        return state.chosen.float()

    def greedy(self, mine: Params, inbox: Inbox, node: Node) -> Tensor:
        """(messages,) 1 for those whose models are taken, else 0."""
        taken = torch.zeros(len(inbox.rows))
        best = node.evaluate(mine, "validation").loss
        for _ in range(min(self.peers, int(inbox.count.max()) if len(inbox.rows) else 0)):
            loss = self.with_one_more(mine, inbox, taken, node).masked_fill(taken > 0, torch.inf)
            least = torch.full_like(best, torch.inf).scatter_reduce(0, inbox.rows, loss, "amin")
            added = (loss == least[inbox.rows]) & (least <= best)[inbox.rows]
            added &= _first_of_its_row(added, inbox)
            if not bool(added.any()):
                break
            taken, best = taken + added.float(), torch.minimum(best, least)
        return taken

    def with_one_more(self, mine: Params, inbox: Inbox, taken: Tensor, node: Node) -> Tensor:
        """(messages,) validation loss of the receiver's mean once this model is added."""
        mean, count = _mean(mine, inbox, taken), share_per_row(inbox, taken) + 1

        def loss(peers: Tree, rows: Tensor) -> Tensor:
            theirs = completed(peers, mine, rows, node)
            share = 1 / (count[rows] + 1)
            here = {name: some_rows(value, rows) for name, value in mean.items()}
            joined = map_params(lambda a, b: torch.lerp(a, b, per_row(share, a).to(a)), here, theirs)
            return node.evaluate(joined, "validation", rows=rows).loss

        return inbox.map(loss)


def _mean(mine: Params, inbox: Inbox, taken: Tensor) -> Params:
    """Mean of one's own model and those that are taken."""
    share = 1 / (share_per_row(inbox, taken) + 1)
    return average(mine, inbox, taken * share[inbox.rows])


def _first_of_its_row(added: Tensor, inbox: Inbox) -> Tensor:
    """(messages,) bool: no earlier message of the same row is added; of equal losses the lowest id wins."""
    ids = torch.where(added, inbox.senders, torch.iinfo(torch.long).max)
    nobody = torch.full((len(inbox.count),), torch.iinfo(torch.long).max)
    return ids == nobody.scatter_reduce(0, inbox.rows, ids, "amin")[inbox.rows]
