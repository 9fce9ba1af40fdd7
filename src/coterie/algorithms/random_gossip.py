"""Two baselines of PPDL (Listo Zec et al., 2025).

Random gossip learns from anyone. Oracle, the upper baseline, is told who belongs to whose cluster.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, cast

import torch

from coterie.algorithms.parts.best_model import Best
from coterie.algorithms.parts.selection import choose, possible_senders
from coterie.algorithms.parts.settings import PPDL_TRAINING, require_at_least
from coterie.algorithms.parts.weighting import judged_by, weighted, weighted_mean
from coterie.protocol import Algorithm, Facts, Links, Node, Params, Presets, Round, pull


@dataclass(frozen=True)
class PullState:
    """The model, and the best one so far by validation loss."""

    params: Params
    best: Best


@dataclass(frozen=True)
class RandomGossip(Algorithm[PullState]):
    """Pull the models of M random reachable nodes, average them with one's own, then train.

        G <- M nodes drawn uniformly without replacement, or all when fewer are reachable
        theta_i <- sum_{j in G + i} n_j theta_j / sum_{j in G + i} n_j
        theta_i <- local training from theta_i

    One local training phase precedes the first round. Where the experiment sets aside validation data, the
    model that counts is the one with the lowest validation loss so far, as in PPDL.

    sealed=False: as for gossip-fedavg. Real peers that do not keep step average what has come of the models
    that they asked for lately.

    Differs from the paper: nothing known. It does not say how a node learns from fewer than M, which is from
    all of them, nor how models are weighted, which is by numbers of samples, as in the authors' code.
    """

    peers: int = 3  # M
    sealed: bool = True

    facts = Facts(
        paper="Listo Zec et al. 2025 (baseline)",
        keeps_best=True,
        measured="after_local",
        communication="one model from each of M peers",
        sealed=True,
        free_running=True,
    )
    presets: ClassVar[Presets] = {"ppdl": {"peers": 3, **PPDL_TRAINING}}

    def __post_init__(self) -> None:
        require_at_least(1, self, "peers")

    def init(self, node: Node) -> PullState:
        params = node.train(node.initial())
        return PullState(params, Best.first(params, node))

    def round(self, state: PullState, node: Node) -> Round[PullState]:
        wanted = choose(node, self.candidates(node), self.peers)
        mine = weighted(state.params, node.n_samples.float())
        check = judged_by(state.params)
        inbox = yield from pull(mine, wanted, sealed=self.sealed, check=check, most=self.peers)
        mixed = weighted_mean(mine, cast(dict[str, Params], inbox.sum()), state.params)
        node.measure(after_mixing=mixed)
        trained = node.train(mixed)
        return PullState(trained, state.best.seen(trained, node))

    def personal(self, state: PullState) -> Params:
        return state.best.params

    def sealed_group(self) -> int:
        return self.peers

    def needs_step(self) -> bool:
        return self.sealed

    def candidates(self, node: Node) -> Links:
        """From whom a node may learn."""
        return possible_senders(node)


@dataclass(frozen=True)
class Oracle(RandomGossip):
    """Random gossip restricted to the node's own true cluster.

        G <- M nodes of one's own cluster, or all of them when there are fewer; then as random gossip

    No real node could know the clusters: it shows what perfect selection would give.

    Differs from the paper: nothing known. Where a cluster has fewer than M others, all of them are taken.
    """

    facts = replace(RandomGossip.facts, clusters=True)

    def candidates(self, node: Node) -> Links:
        everyone = possible_senders(node)
        assert node.clusters is not None
        nobody = node.clusters.new_full((1,), -1)  # the cluster of a hub, which is the last node
        cluster = torch.cat((node.clusters, nobody)) if node.hub is not None else node.clusters
        mine = cluster[node.ids[everyone.rows]]
        same = (mine == cluster[everyone.ids]) & (mine >= 0)
        return Links(everyone.rows[same], everyone.ids[same])
