"""Choosing peers to learn from."""

from __future__ import annotations

import torch

from coterie.errors import ConfigError
from coterie.protocol import Links, Node


def require_peers(peers: int) -> None:
    """Whoever learns from a number of peers needs at least one."""
    if peers < 1:
        raise ConfigError(f"peers must be at least 1, not {peers}")


def possible_senders(node: Node) -> Links:
    """For each row, the nodes that can send to it in this round, sorted by row."""
    row_of = torch.full((node.graph.nodes,), -1)
    row_of[node.ids] = torch.arange(node.rows)
    rows = row_of[node.graph.receivers]
    here = rows >= 0
    links = Links(rows[here], node.graph.senders[here])
    order = torch.argsort(links.rows, stable=True)
    return Links(links.rows[order], links.ids[order])


def choose(node: Node, candidates: Links, k: int, purpose: str = "peers") -> Links:
    """For each row, k of its candidates (sorted by row), uniformly without replacement, or all of them."""
    sizes = torch.bincount(candidates.rows, minlength=node.rows)
    if not len(candidates):
        return candidates
    order = node.rng(purpose).permutation(sizes, int(sizes.max()))[:, :k]
    first = sizes.cumsum(0) - sizes
    taken = torch.arange(order.shape[1]) < sizes[:, None]
    place = (first[:, None] + order)[taken]
    return Links(candidates.rows[place], candidates.ids[place])
