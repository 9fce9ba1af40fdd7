"""The simulator: drives an algorithm's rounds over all nodes and measures what they learn."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from coterie.data import Federation, Split
from coterie.errors import ContractError
from coterie.learning import Executor, LearningNode
from coterie.protocol import Algorithm, Exchange, Inbox, Params
from coterie.simulation.router import Router, Traffic
from coterie.simulation.state import keep_offline
from coterie.topology import Topology
from coterie.training import Training

POINTS = ("after_local", "after_mixing")


@dataclass(frozen=True)
class Evaluation:
    """The personal models of all peers at one point of a round, each on its own test data."""

    accuracy: Tensor  # (peers,)
    loss: Tensor  # (peers,)
    global_accuracy: Tensor | None  # (peers,) on the common test set, where there is one and it was asked for


@dataclass(frozen=True)
class RoundRecord:
    """What happened in one round."""

    round: int
    seconds: float
    online: Tensor  # (peers,)
    train_loss: Tensor  # (peers,) NaN for those that did not train
    evaluations: dict[str, Evaluation]  # by point; empty in rounds that are not measured
    traffic: list[Traffic]
    diagnostics: dict[str, Tensor]  # what the algorithm recorded, one entry per peer


@dataclass
class Totals:
    """Traffic since the first round."""

    bytes_sent: Tensor  # (nodes,)
    bytes_received: Tensor
    messages_sent: Tensor
    links: Tensor  # (links,) receiver * nodes + sender of every link over which a payload arrived
    link_messages: Tensor  # (links,) how many

    @classmethod
    def zero(cls, nodes: int) -> Totals:
        def empty(n: int) -> Tensor:
            return torch.zeros(n, dtype=torch.long)

        return cls(empty(nodes), empty(nodes), empty(nodes), empty(0), empty(0))

    def add(self, traffic: Traffic) -> None:
        self.bytes_sent.index_add_(0, traffic.senders, traffic.bytes)
        self.bytes_received.index_add_(0, traffic.receivers, traffic.bytes * traffic.delivered)
        self.messages_sent.index_add_(0, traffic.senders, torch.ones_like(traffic.senders))
        arrived = traffic.delivered & (traffic.bytes > 0)
        keys = traffic.receivers[arrived] * len(self.bytes_sent) + traffic.senders[arrived]
        self.links, place = torch.cat((self.links, keys)).unique(return_inverse=True)
        messages = torch.cat((self.link_messages, torch.ones_like(keys)))
        self.link_messages = torch.zeros_like(self.links).index_add_(0, place, messages)


@dataclass
class _Block:
    """Rows that are hosted together."""

    node: LearningNode
    state: Any


@dataclass
class Simulation:
    """N peers (and a hub if the topology has one) under one algorithm.

    shards: how to cut the nodes into blocks; one block of all nodes is fastest.
    """

    algorithm: Algorithm[Any]
    federation: Federation
    module: nn.Module
    topology: Topology
    training: Training
    executor: Executor
    seed: int
    rounds: int
    own_module: Callable[[int], nn.Module] | None = None
    local_buffers: bool = False
    shards: Sequence[Tensor] | None = None

    round: int = 0  # the next one
    blocks: list[_Block] = field(init=False)
    totals: Totals = field(init=False)

    def __post_init__(self) -> None:
        shards = self.shards or [torch.arange(self.topology.nodes)]
        nodes = [self._node(ids) for ids in shards]
        withheld = frozenset(nodes[0].buffers) if self.local_buffers else frozenset()
        self._router = Router(self.topology, shards, withheld)
        self.totals = Totals.zero(self.topology.nodes)
        for node in nodes:
            node.begin(-1, self.topology.graph(0), torch.ones(node.rows, dtype=torch.bool))
        self.blocks = [_Block(node, self.algorithm.init(node)) for node in nodes]

    def step(self, *, evaluate: bool = True, evaluate_global: bool = False) -> RoundRecord:
        """Play the next round."""
        started = time.perf_counter()
        graph, online = self.topology.graph(self.round), self.topology.online(self.round)
        for block in self.blocks:
            block.node.begin(self.round, graph, online[block.node.ids], evaluating=evaluate)
        traffic = self._play()
        evaluations = {point: self._evaluate(point, evaluate_global) for point in POINTS} if evaluate else {}
        peers = self.federation.peers
        record = RoundRecord(
            self.round,
            time.perf_counter() - started,
            online[:peers],
            self._gather([block.node.train_loss for block in self.blocks]),
            evaluations,
            traffic,
            {
                name: self._gather([block.node.recorded[name] for block in self.blocks])
                for name in self.blocks[0].node.recorded
            },
        )
        self.round += 1
        return record

    def personal(self) -> Params:
        """The model of each peer now, stacked."""
        trees = [self.algorithm.personal(block.state) for block in self.blocks]
        return {name: self._gather([tree[name] for tree in trees]) for name in trees[0]}

    def _play(self) -> list[Traffic]:
        generators = [self.algorithm.round(block.state, block.node) for block in self.blocks]
        traffic: list[Traffic] = []
        answers: list[Inbox | None] = [None] * len(generators)
        for slot in range(1_000_000):
            exchanges: list[Exchange] = []
            states: list[Any] = []
            for generator, answer in zip(generators, answers, strict=True):
                try:
                    exchanges.append(generator.send(answer))  # type: ignore[arg-type]
                except StopIteration as stop:
                    states.append(stop.value)
            if not exchanges:
                break
            if states:
                raise ContractError(
                    f"round {self.round}: some rows ended the round after {slot} exchanges, others go on"
                )
            inboxes, seen = self._router.deliver(exchanges, self.round, slot)
            answers = list(inboxes)
            if seen is not None:
                traffic.append(seen)
                self.totals.add(seen)
        for block, state in zip(self.blocks, states, strict=True):
            block.state = keep_offline(block.state, state, block.node.online)
        return traffic

    def _evaluate(self, point: str, with_global: bool) -> Evaluation:
        accuracy, loss, common = [], [], []
        for block in self.blocks:
            params = block.node.shown.get(point) or self.algorithm.personal(block.state)
            scores = block.node.evaluate(params)
            accuracy.append(scores.accuracy)
            loss.append(scores.loss)
            shared = block.node.evaluate_common(params) if with_global else None
            if shared is not None:
                common.append(shared.accuracy)
        return Evaluation(
            self._gather(accuracy), self._gather(loss), self._gather(common) if common else None
        )

    def _gather(self, parts: list[Tensor]) -> Tensor:
        """Put the rows of all blocks in the order of peers; the hub is left out."""
        if self.shards is None:
            return parts[0][: self.federation.peers]
        ids = torch.cat([block.node.ids for block in self.blocks])
        return torch.cat(parts)[torch.argsort(ids)][: self.federation.peers]

    def _node(self, ids: Tensor) -> LearningNode:
        return LearningNode(
            ids=ids,
            federation=_data_of(self.federation, ids, self.topology.hub),
            module=self.module,
            executor=self.executor,
            training=self.training,
            seed=self.seed,
            rounds=self.rounds,
            hub=self.topology.hub,
            clusters=self.federation.clusters,
            own_module=self.own_module,
        )


def _data_of(federation: Federation, ids: Tensor, hub: int | None) -> Federation:
    """The data of a block of nodes; the hub, always the last node, has none."""
    has_hub = hub is not None and hub in ids
    peers = ids[ids != hub] if has_hub else ids
    if not torch.equal(peers, torch.arange(federation.peers)):
        federation = federation.take(peers)
    if not has_hub:
        return federation
    if int(ids[-1]) != hub:
        raise ContractError("the hub must be the last row of its block")
    return dataclasses.replace(
        federation,
        train=_with_empty_row(federation.train),
        validation=_with_empty_row(federation.validation),
        test=_with_empty_row(federation.test),
    )


def _with_empty_row(split: Split) -> Split:
    return Split(split.index, torch.cat((split.offsets, split.offsets[-1:])))
