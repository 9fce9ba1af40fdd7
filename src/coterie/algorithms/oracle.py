"""Oracle: PPDL's upper baseline, which is told who belongs to whose cluster."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from coterie.algorithms.parts.selection import possible_senders
from coterie.algorithms.random_gossip import RandomGossip
from coterie.protocol import Facts, Links, Node


@dataclass(frozen=True)
class Oracle(RandomGossip):
    """Random gossip restricted to the node's own true cluster.

        G <- M nodes of one's own cluster, or all of them when there are fewer; then as random gossip

    No real node could know the clusters: it shows what perfect selection would give.

    Differs from the paper: nothing known. Where a cluster has fewer than M others, all of them are taken.
    """

    facts = Facts(
        paper="Listo Zec et al. 2025 (baseline)",
        measured="after_local",
        communication="one model from each of M peers",
        sealed=True,
        clusters=True,
    )

    def candidates(self, node: Node) -> Links:
        everyone = possible_senders(node)
        assert node.clusters is not None
        nobody = node.clusters.new_full((1,), -1)  # the cluster of a hub, which is the last node
        cluster = torch.cat((node.clusters, nobody)) if node.hub is not None else node.clusters
        mine = cluster[node.ids[everyone.rows]]
        same = (mine == cluster[everyone.ids]) & (mine >= 0)
        return Links(everyone.rows[same], everyone.ids[same])
