"""How methods divide a round's local work, where all get equally much (`training.work = "equal"`)."""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.protocol import Node
from coterie.protocol.patterns import clients_per_round


def proportion(first: float | Tensor, second: float | Tensor) -> Tensor:
    """The share of the first of two phases, from the epochs of both; 0 where neither has any."""
    total = torch.as_tensor(first + second, dtype=torch.float64)
    return first / total.where(total > 0, 1.0)


def of_sampled(node: Node, participation: float) -> float:
    """The share of a sampled client, which makes up for the rounds that it sits out."""
    return (node.graph.nodes - 1) / clients_per_round(node, participation)
