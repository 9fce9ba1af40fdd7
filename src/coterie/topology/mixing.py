"""Mixing weights: what share of a sender's model a receiver takes.

Each scheme is a function of the round's graph that gives the weights of some of its links, so that it
also serves the messages that did arrive. A receiver of an average keeps for itself what is left to 1.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from coterie.errors import TopologyError
from coterie.registry import Registry
from coterie.topology.graphs import Graph

Scheme = Callable[[Graph, Tensor, Tensor], Tensor]

mixing_schemes: Registry[Tensor] = Registry("mixing scheme")
"""`mixing_schemes["metropolis"]` is the function itself."""


@mixing_schemes.register("uniform")
def uniform(graph: Graph, senders: Tensor, receivers: Tensor) -> Tensor:
    """1 / (in-degree + 1): the plain average of one's own model and all neighbours'; rows sum to 1."""
    return 1.0 / (graph.in_degree[receivers] + 1).float()


@mixing_schemes.register("metropolis")
def metropolis(graph: Graph, senders: Tensor, receivers: Tensor) -> Tensor:
    """1 / (1 + the larger degree): rows and columns sum to 1, so the mean over peers is kept."""
    if not graph.symmetric:
        raise TopologyError(
            "metropolis weights need an undirected graph; on a directed one use uniform or push-sum"
        )
    degree = graph.in_degree
    return 1.0 / (1 + torch.maximum(degree[senders], degree[receivers])).float()


@mixing_schemes.register("push-sum")
def push_sum(graph: Graph, senders: Tensor, receivers: Tensor) -> Tensor:
    """1 / (out-degree + 1): a sender is shared out, one share stays at home; columns sum to 1."""
    return 1.0 / (graph.out_degree[senders] + 1).float()


def matrix(graph: Graph, scheme: str | Scheme) -> Tensor:
    """(nodes, nodes) `W[receiver, sender]` with the self weights on the diagonal; for small graphs.

    The diagonal is what is left to 1: of the row, or for push-sum of the column.
    """
    weigh = mixing_schemes[scheme] if isinstance(scheme, str) else scheme
    dense = torch.zeros(graph.nodes, graph.nodes)
    dense[graph.receivers, graph.senders] = weigh(graph, graph.senders, graph.receivers)
    given_away = dense.double().sum(dim=0 if weigh is push_sum else 1)
    return dense + torch.diag(1.0 - given_away).float()
