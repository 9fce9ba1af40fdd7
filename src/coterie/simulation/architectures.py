"""Peers with different networks: nodes with the same one are hosted together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from coterie.learning import Executor
from coterie.protocol import Params


@dataclass(frozen=True)
class Architecture:
    """Nodes that have another network than the others."""

    ids: Tensor
    executor: Executor


@dataclass(frozen=True)
class PeerModels:
    """The personal models of peers with the same network."""

    peers: Tensor  # (k,) ids, sorted
    params: Params  # (k, ...)
    module: nn.Module  # the network, with its initial weights


def cut(shards: Sequence[Tensor], usual: Executor, others: Sequence[Architecture]) -> list[Architecture]:
    """Blocks of nodes with one network each, out of shards with any."""
    nodes = 1 + max(int(ids.max()) for ids in shards)
    which = torch.zeros(nodes, dtype=torch.long)
    for number, other in enumerate(others):
        which[other.ids] = number + 1
    executors = [usual, *(other.executor for other in others)]
    parts = [(ids[which[ids] == kind], executors[kind]) for ids in shards for kind in range(len(executors))]
    return [Architecture(ids, executor) for ids, executor in parts if len(ids)]
