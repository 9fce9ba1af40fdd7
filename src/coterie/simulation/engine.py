"""The simulator: drives an algorithm's rounds over all nodes and measures what they learn."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from coterie.data import Federation
from coterie.errors import ContractError
from coterie.learning import CLASSIFICATION, Executor, LearningNode, Task
from coterie.learning.node import diverged
from coterie.protocol import Algorithm, Exchange, Inbox, Params, Scores
from coterie.protocol.sealing import SealingKind
from coterie.protocol.trees import keep_offline
from coterie.simulation.router import Router, Traffic
from coterie.topology import Topology
from coterie.training import Training

POINTS = ("after_local", "after_mixing")
_Known: TypeAlias = dict[tuple[int, ...], tuple[Params, dict[str, Scores]]]
"""Scores of models of this round by data set, by the identity of their tensors, which must live as long."""


@dataclass(frozen=True)
class HostedNetwork:
    """Nodes that have another network than the others."""

    ids: Tensor
    executor: Executor


@dataclass(frozen=True)
class PeerModels:
    """The personal models of peers with the same network."""

    peers: Tensor  # (k,) ids, sorted
    params: Params  # (k, ...)
    module: nn.Module  # the network, with its initial weights


@dataclass(frozen=True)
class Evaluation:
    """The personal models of all peers at one point of a round, each on its own test data."""

    metrics: dict[str, Tensor]  # (peers,) by the names of the task's metrics
    loss: Tensor  # (peers,)
    on_common: dict[str, Tensor]  # likewise on the common test set, where there is one and it was asked for
    validation: dict[
        str, Tensor
    ]  # likewise, and `loss`, on each peer's own validation data; empty without any


@dataclass(frozen=True)
class RoundRecord:
    """What happened in one round."""

    round: int
    seconds: float
    online: Tensor  # (peers,)
    train_loss: Tensor  # (peers,) NaN for those that did not train
    gradient_steps: Tensor  # (peers,) mini-batches of local work
    samples_seen: Tensor  # (peers,) in these mini-batches
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

    shared: patterns of what travels of a model; empty: whatever the algorithm sends.
    sealing: how sealed exchanges are added up.
    keep_best: each peer's model is its best so far by validation data, where it is measured.
    shards: how to cut the nodes into blocks; one block of all nodes is fastest.
    architectures: nodes that have another network than `module`; they are in blocks of their own.
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
    shared: str = ""
    sealing: SealingKind = "plain"
    keep_best: bool = False
    shards: Sequence[Tensor] | None = None
    architectures: Sequence[HostedNetwork] = ()
    task: Task = CLASSIFICATION

    round: int = 0  # the next one
    blocks: list[_Block] = field(init=False)
    totals: Totals = field(init=False)

    def __post_init__(self) -> None:
        shards = self.shards or [torch.arange(self.topology.nodes)]
        nodes = [self._node(part) for part in cut(shards, self.executor, self.architectures)]
        withheld = frozenset().union(*(node.withheld(self.local_buffers) for node in nodes))
        ids, spread = [node.ids for node in nodes], self.executor.workers.map
        self._router = Router(self.topology, ids, withheld, self.sealing, spread)
        self.totals = Totals.zero(self.topology.nodes)
        for node in nodes:
            node.begin(-1, self.topology.graph(0), torch.ones(node.rows, dtype=torch.bool))
        self.blocks = [_Block(node, self.algorithm.init(node)) for node in nodes]

    def step(self, *, evaluate: bool = True, evaluate_global: bool = False) -> RoundRecord:
        """Simulate the next round."""
        started = time.perf_counter()
        graph, online = self.topology.graph(self.round), self.topology.online(self.round)
        for block in self.blocks:
            block.node.begin(self.round, graph, online[block.node.ids], evaluating=evaluate)
        traffic = self._drive()
        self.algorithm.check([block.state for block in self.blocks], self.topology.nodes, self.round)
        known: _Known = {}
        points = POINTS if evaluate else ()
        evaluations = {point: self._evaluate(point, evaluate_global, known) for point in points}
        peers = self.federation.peers
        record = RoundRecord(
            self.round,
            time.perf_counter() - started,
            online[:peers],
            self._gather([block.node.train_loss for block in self.blocks]),
            self._gather([block.node.work.gradient_steps for block in self.blocks]),
            self._gather([block.node.work.samples_seen for block in self.blocks]),
            evaluations,
            traffic,
            {
                name: self._gather([block.node.recorded[name] for block in self.blocks])
                for name in self.blocks[0].node.recorded
            },
        )
        self.round += 1
        return record

    def collaboration(self) -> Tensor | None:
        """(peers, peers) how much each peer learned to trust every other, if the algorithm learns that."""
        learned = [self.algorithm.collaboration(block.state) for block in self.blocks]
        known = [weights for weights in learned if weights is not None]
        return self._gather(known) if known else None

    def personal(self) -> Params:
        """The model of each peer now, stacked; only where all have the same network."""
        (everyone,) = self.models()
        return everyone.params

    def models(self) -> list[PeerModels]:
        """The model of each peer now, stacked for each network."""
        return [
            PeerModels(ids, params, module)
            for module in dict.fromkeys(block.node.module for block in self.blocks)
            for ids, params in [self._personal([b for b in self.blocks if b.node.module is module])]
            if len(ids)
        ]

    def _personal(self, blocks: list[_Block]) -> tuple[Tensor, Params]:
        """Ids, sorted, and models of the peers in blocks with the same network; the hub is left out."""
        ids = torch.cat([block.node.ids for block in blocks])
        trees = [block.node.best_or(self.algorithm.personal(block.state)) for block in blocks]
        if len(blocks) == 1 and bool((ids.diff() > 0).all()):  # as they are, without a copy
            count = int((ids < self.federation.peers).sum())
            return ids[:count], {name: value[:count] for name, value in trees[0].items()}
        order = torch.argsort(ids)
        order = order[ids[order] < self.federation.peers]
        return ids[order], {name: torch.cat([tree[name] for tree in trees])[order] for name in trees[0]}

    def _drive(self) -> list[Traffic]:
        """Drive the algorithm from exchange to exchange, to the end of the round."""
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

    def _evaluate(self, point: str, with_global: bool, known: _Known) -> Evaluation:
        found: dict[str, list[Scores]] = {}
        for block in self.blocks:
            params = block.node.shown.get(point) or self.algorithm.personal(block.state)
            same = tuple(map(id, params.values()))  # Local, for one, has the same models at both points
            if same not in known:
                known[same] = params, self._scores(block.node, params, with_global)
            for split, scores in known[same][1].items():
                found.setdefault(split, []).append(scores)
            if self.keep_best and point == self.algorithm.facts.measured:
                block.node.keep_best(params, known[same][1]["validation"])
        metrics = {split: self._metrics(scores) for split, scores in found.items()}
        losses = {split: self._gather([one.loss for one in scores]) for split, scores in found.items()}
        validation = metrics.get("validation", {})
        if validation:
            validation["loss"] = losses["validation"]
        return Evaluation(metrics["test"], losses["test"], metrics.get("common", {}), validation)

    def _scores(self, node: LearningNode, params: Params, with_global: bool) -> dict[str, Scores]:
        """Of each row's model on all that there is to measure it on."""
        scores = {"test": _measured(node, params)}
        if self.has_validation:
            scores["validation"] = node.evaluate(params, "validation")
        shared = node.evaluate_common(params) if with_global else None
        return scores if shared is None else {**scores, "common": shared}

    def _metrics(self, scores: list[Scores]) -> dict[str, Tensor]:
        return {m.name: self._gather([one.metrics[m.name] for one in scores]) for m in self.task.metrics}

    @property
    def has_validation(self) -> bool:
        """Whether any peer has validation data."""
        return bool(self.federation.validation.sizes.any())

    def _gather(self, parts: list[Tensor]) -> Tensor:
        """Put the rows of all blocks in the order of peers; the hub is left out."""
        if self.shards is None and len(parts) == 1:
            return parts[0][: self.federation.peers]
        ids = torch.cat([block.node.ids for block in self.blocks])
        return torch.cat(parts)[torch.argsort(ids)][: self.federation.peers]

    def _node(self, part: HostedNetwork) -> LearningNode:
        executors = (self.executor, *(other.executor for other in self.architectures))
        return LearningNode(
            ids=part.ids,
            federation=self.federation.of_nodes(part.ids, self.topology.hub),
            module=part.executor.module,
            executor=part.executor,
            training=self.training,
            seed=self.seed,
            rounds=self.rounds,
            hub=self.topology.hub,
            clusters=self.federation.clusters,
            own_module=self.own_module,
            other_executors=[executor for executor in executors if executor is not part.executor],
            shared=self.shared,
            task=self.task,
        )


def cut(shards: Sequence[Tensor], usual: Executor, unusual: Sequence[HostedNetwork]) -> list[HostedNetwork]:
    """Blocks of nodes with one network each, out of shards with any."""
    nodes = 1 + max(int(ids.max()) for ids in shards)
    which = torch.zeros(nodes, dtype=torch.long)
    for number, architecture in enumerate(unusual):
        which[architecture.ids] = number + 1
    executors = [usual, *(architecture.executor for architecture in unusual)]
    parts = [(ids[which[ids] == kind], executors[kind]) for ids in shards for kind in range(len(executors))]
    return [HostedNetwork(ids, executor) for ids, executor in parts if len(ids)]


def _measured(node: LearningNode, params: Params) -> Scores:
    """Scores on each row's own test data.

    What the last local step of a round did to a model shows in no training loss before the next round.
    """
    scores = node.evaluate(params)
    lost = scores.loss.isnan() & (node.federation.test.sizes > 0) & node.online
    if bool(lost.any()):
        raise diverged(node.ids[lost], node.round, node.training, "test loss")
    return scores
