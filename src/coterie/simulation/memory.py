"""How much memory a simulation will take, told from one or two of its rows before all are made.

The peak of a round: everyone's data, the state before and after it, the models between local training and
mixing, what optimisers remember, and the addresses of one exchange. The state of a row is seen, not guessed:
an algorithm makes it for two rows, in a graph of all nodes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.data.federation import Federation
from coterie.inputs import named
from coterie.protocol.trees import named_tensors
from coterie.simulation.blocks import Common, Hosting

_TRIED = 2  # rows
_SUMMED = 3  # copies of the models where sums are exchanged: the weighted models, their sums, and the means
_PER_MESSAGE = 120  # bytes: sender, receiver, size, place, and the sorting of them
_PER_NODE = 400  # bytes: scores, records, traffic
_PER_WORKER = 96 << 20  # bytes at most: chunks of rows with their gradients and batches


@dataclass(frozen=True)
class Need:
    """Bytes at the peak of a round."""

    nodes: int
    data: int  # of the pool, already in memory
    state: int  # before and after a round
    models: int  # between local training and mixing
    optimiser: int  # what is remembered from round to round
    exchange: int  # addresses of messages, records
    workers: int
    numbers: int  # of the largest model

    @property
    def to_come(self) -> int:
        """What is not in memory yet."""
        return self.state + self.models + self.optimiser + self.exchange + self.workers

    @property
    def total(self) -> int:
        return self.data + self.to_come

    @property
    def per_node(self) -> float:
        """What one more node takes, its data left out."""
        return (self.to_come - self.workers) / self.nodes


def need_of(hosting: Hosting) -> Need:
    """Tries one or two rows of each network."""
    nodes, messages = hosting.topology.nodes, len(hosting.topology.graph(0).senders)
    state = models = optimiser = numbers = 0
    for count, ids in _tried(hosting):
        (block,) = hosting.host([ids]).blocks
        block.settle(Common.of([block.about()]))
        rows = len(ids)
        own = _bytes(tensor for _, tensor in named_tensors(block.state))
        personal = block.algorithm.personal(block.state)
        state += 2 * own * count // rows
        between = _SUMMED if block.algorithm.facts.sealed else 1
        models += between * _bytes(personal.values()) * count // rows
        optimiser += _kept(hosting, personal) * count // rows
        numbers = max(numbers, sum(value[0].numel() for value in personal.values()))
    return Need(
        nodes,
        data_bytes(hosting.federation),
        state,
        models,
        optimiser,
        messages * _PER_MESSAGE + nodes * _PER_NODE,
        min(_PER_WORKER, 4 * models) * hosting.executor.workers.count,
        numbers,
    )


def data_bytes(federation: Federation) -> int:
    """Of the pool and the lists; data that are made when needed take none."""
    splits = (federation.train, federation.validation, federation.test)
    pool = _bytes(named(federation.x).values()) + federation.y.nbytes
    return pool + sum(split.index.nbytes + split.offsets.nbytes for split in splits)


def _tried(hosting: Hosting) -> Iterable[tuple[int, Tensor]]:
    """Of each network: how many nodes have it, and the first of them."""
    which = torch.zeros(hosting.topology.nodes, dtype=torch.long)
    for number, architecture in enumerate(hosting.architectures):
        which[architecture.ids] = number + 1
    for number in range(len(hosting.executors)):
        ids = (which == number).nonzero().flatten()
        if len(ids):
            yield len(ids), ids[:_TRIED]


def _kept(hosting: Hosting, personal: dict[str, Tensor]) -> int:
    """Bytes that the optimisers of these rows remember, and their best models."""
    training = hosting.training
    kept = 2 if training.optimizer != "sgd" else int(training.momentum > 0)
    return _bytes(personal.values()) * (kept * (training.optimizer_state == "kept") + hosting.keep_best)


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)
