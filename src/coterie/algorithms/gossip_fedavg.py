"""Gossip FedAvg: federated averaging (McMahan et al., 2017) among neighbours, without a server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from coterie.algorithms.parts.weighting import judged_by, weighted, weighted_mean
from coterie.protocol import Exchange, Facts, ModelAlgorithm, ModelState, Node, Params, Round


@dataclass(frozen=True)
class GossipFedAvg(ModelAlgorithm):
    """Train locally, then average with the neighbours by numbers of samples.

        y_i <- theta_i after local SGD
        theta_i <- sum_j n_j y_j / sum_j n_j                over the neighbours and oneself

    Each node sends n_i * y_i and n_i, so the receiver needs only the two sums, and the exchange is sealed.

    sealed=False: neighbours may see each other's models. Between real peers that do not keep step it must be
    so: a secure sum needs its members in the same round.

    Differs from the paper: there is no server. Each node averages over its neighbours and itself, so that
    nodes differ unless all are neighbours, and everyone takes part in every round.
    """

    sealed: bool = True

    facts = Facts(
        paper="McMahan et al. 2017, decentralised",
        measured="after_mixing",
        communication="one model to each neighbour",
        personal=False,
        sealed=True,
        free_running=True,
    )

    def round(self, state: ModelState, node: Node) -> Round[ModelState]:
        mine = node.train(state.params)
        node.measure(after_local=mine)
        payload = weighted(mine, node.n_samples.float())
        inbox = yield Exchange(payload, sealed=self.sealed, check=judged_by(mine))
        return ModelState(weighted_mean(payload, cast(dict[str, Params], inbox.sum()), mine))

    def needs_step(self) -> bool:
        return self.sealed
