"""Blocks of rows: where the nodes of a simulation live, and learn.

Whoever drives blocks sees what is defined first here: addresses, sizes and scores, and no parameters. So
blocks may be in this process or elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from coterie.checkpoints import Elsewhere
from coterie.data import Federation
from coterie.errors import DamagedRunError
from coterie.learning import CLASSIFICATION, Executor, LearningNode, Task
from coterie.learning.node import LISTED, diverged
from coterie.protocol import (
    Algorithm,
    Bundle,
    Exchange,
    Inbox,
    Links,
    Params,
    Round,
    Scores,
    SealedInbox,
    Tree,
)
from coterie.protocol.ledger import BOUND, Bound
from coterie.protocol.sealing import SEALED_INBOXES, SealingKind, Terms
from coterie.protocol.trees import (
    keep_offline,
    map_tree,
    named_tensors,
    per_row,
    rebuilt,
    row_bytes,
    take,
    without,
)
from coterie.simulation.round_records import POINTS
from coterie.topology import Topology
from coterie.training import Training

_STATE, _NODE = "state", "node"  # of what a block keeps: its algorithm's, and what its nodes remember


@dataclass(frozen=True)
class Announcement:
    """What a block tells of its exchange: addresses and sizes, no parameters."""

    to: Links | None
    sealed: bool
    counted: bool
    conserved: bool
    row_bytes: int


@dataclass(frozen=True)
class Piece:
    """Rows of what a block sends; None: all of them, as they are."""

    block: int
    rows: Tensor | None


@dataclass(frozen=True)
class Messages:
    """Which row of a table goes to which row of the receiving block."""

    source: Tensor  # (messages,) row of the table
    rows: Tensor  # (messages,) row that receives it
    senders: Tensor  # (messages,) ids
    order: Tensor | None  # (messages,) their places among all messages; None: as they come

    def where(self, mask: Tensor) -> Messages:
        order = None if self.order is None else self.order[mask]
        return Messages(self.source[mask], self.rows[mask], self.senders[mask], order)


@dataclass(frozen=True)
class Mail:
    """Messages to one block from the nodes with one network: rows of a table that is made of pieces."""

    pieces: tuple[Piece, ...]
    arrived: Messages
    missing: Messages | None  # what was sent and did not arrive, where a sealed sum must know


@dataclass(frozen=True)
class Delivery:
    """All that one block is given for its exchange."""

    mails: tuple[Mail, ...]  # one for each network
    sealed: bool
    lost: Tensor | None  # (rows,) messages of each row that were lost, if they come back to it


@dataclass(frozen=True)
class Common:
    """What blocks must know of each other, and none knows alone."""

    withheld: frozenset[str]  # names of tensors that never leave a node (BatchNorm statistics kept local)
    validates: bool  # whether any peer has validation data

    @classmethod
    def of(cls, parts: Sequence[Common]) -> Common:
        withheld = frozenset().union(*(part.withheld for part in parts))
        return cls(withheld, any(part.validates for part in parts))


@dataclass(frozen=True)
class BlockRecord:
    """What a block's rows did in a round, and how well they do."""

    train_loss: Tensor
    gradient_steps: Tensor
    samples_seen: Tensor
    recorded: dict[str, Tensor]
    mass: Tensor | None  # see `Algorithm.mass`
    scores: dict[str, dict[str, Scores]]  # by point of the round, and by what was measured on


@dataclass(frozen=True)
class SavedRows:
    """What some rows of a block kept: a part of a checkpoint."""

    rows: Tensor  # (k,) of the block
    tensors: Mapping[str, Tensor]  # (k, ...) by place, as `Block.kept` gave them


@dataclass
class Block:
    """Rows that are hosted together: their state, and their part of a round."""

    node: LearningNode
    algorithm: Algorithm[Any]
    topology: Topology
    local_buffers: bool
    sealing: SealingKind
    keep_best: bool

    common: Common = field(init=False)
    state: Any = field(init=False)
    sent: Tree = field(init=False, default_factory=dict)  # in the exchange that goes on
    _round: Round[Any] = field(init=False)
    _expect: Links | None = field(init=False, default=None)

    def about(self) -> Common:
        """What others must know of it."""
        return Common(
            self.node.withheld(self.local_buffers), bool(self.node.federation.validation.sizes.any())
        )

    def settle(self, common: Common) -> None:
        """Make the state before the first round."""
        self.common = common
        self.node.begin(-1, self.topology.graph(0), torch.ones(self.node.rows, dtype=torch.bool))
        self.state = self.algorithm.init(self.node)

    def begin(self, round: int, evaluating: bool) -> Announcement | None:
        """Start a round, up to its first exchange; None if it has none."""
        online = self.topology.online(round)[self.node.ids]
        self.node.begin(round, self.topology.graph(round), online, evaluating=evaluating)
        self._round = self.algorithm.round(self.state, self.node)
        return self._go_on(None)

    def receive(self, delivery: Delivery, pieces: Sequence[Sequence[Tree]]) -> Announcement | None:
        """End an exchange and go on to the next; None: the round is over. pieces: of each mail's table."""
        return self._go_on(self.open(delivery, pieces))

    def _go_on(self, inbox: Inbox | None) -> Announcement | None:
        try:
            exchange: Exchange = self._round.send(inbox)  # type: ignore[arg-type]
        except StopIteration as stop:
            self.state, self.sent = keep_offline(self.state, stop.value, self.node.online), {}
            return None
        self._expect = exchange.expect
        self.sent = without(exchange.payload, self.common.withheld)
        return Announcement(
            exchange.to, exchange.sealed, exchange.counted, exchange.conserved, row_bytes(self.sent)
        )

    def piece(self, rows: Tensor | None) -> Tree:
        """Some rows of what it sends, or all of it."""
        return self.sent if rows is None else take(self.sent, rows)

    def open(self, delivery: Delivery, pieces: Sequence[Sequence[Tree]]) -> Inbox:
        """The inbox of what was delivered. pieces: of each mail's table."""
        arrived: list[Bundle] = []
        missing: list[Bundle] = []
        for mail, parts in zip(delivery.mails, pieces, strict=True):
            table = parts[0] if len(parts) == 1 else map_tree(_stacked, parts[0], *parts[1:])
            home = self.sent if parts[0] is self.sent else None  # its own rows, if any, come first
            arrived.append(_bundle(table, mail.arrived, home))
            missing += [] if mail.missing is None else [_bundle(table, mail.missing)]
        spread = self.node.executor.workers.map
        if delivery.sealed and self.sealing != "plain":
            kind: Callable[..., Inbox] = partial(
                SEALED_INBOXES[self.sealing], missing=missing, terms=self._terms()
            )
        elif delivery.sealed:
            kind = partial(SealedInbox, spread=spread)
        else:
            orders = [mail.arrived.order for mail in delivery.mails if mail.arrived.order is not None]
            kind = partial(Inbox, spread=spread, order=torch.cat(orders) if orders else None)
        inbox = kind(arrived, self.node.rows, _returned(self.sent, delivery.lost))
        assert inbox.count is not None  # sums are opened, and noted, whether or not anybody looks at them
        return inbox

    def _terms(self) -> Terms:
        """On which the sums of this exchange are opened, as a real peer that collects one does."""
        ledger, round = self.node.ledger, self.node.round
        ids, asked = self.node.ids.tolist(), None
        if self._expect is not None:
            asked = torch.bincount(self._expect.rows, minlength=self.node.rows)

        def allows(row: int, members: frozenset[int]) -> bool:
            if ledger.refusal(ids[row], round, members):
                return False
            ledger.note(ids[row], round, members)
            return True

        return Terms(ledger.bound.smallest, asked, allows)

    def record(self, evaluate: bool, with_global: bool) -> BlockRecord:
        """Of the round that is over."""
        node, work = self.node, self.node.work
        known: dict[tuple[int, ...], tuple[Params, dict[str, Scores]]] = {}
        scores = {}
        for point in POINTS if evaluate else ():
            params = node.shown.get(point) or self.algorithm.personal(self.state)
            same = tuple(map(id, params.values()))  # Local, for one, has the same models at both points
            if same not in known:
                known[same] = params, self._scores(params, with_global)
            scores[point] = known[same][1]
            if self.keep_best and point == self.algorithm.facts.measured:
                node.keep_best(params, scores[point]["validation"])
        mass = self.algorithm.mass(self.state)
        return BlockRecord(
            node.train_loss, work.gradient_steps, work.samples_seen, node.recorded, mass, scores
        )

    def _scores(self, params: Params, with_global: bool) -> dict[str, Scores]:
        """Of each row's model on all that there is to measure it on."""
        scores = {"test": _measured(self.node, params)}
        if self.common.validates:
            scores["validation"] = self.node.evaluate(params, "validation")
        shared = self.node.evaluate_common(params) if with_global else None
        return scores if shared is None else {**scores, "common": shared}

    def personal(self) -> Params:
        """The models that its nodes would use now."""
        return self.node.best_or(self.algorithm.personal(self.state))

    def collaboration(self) -> Tensor | None:
        """(rows, peers) how much each row learned to trust every peer, if the algorithm learns that."""
        return self.algorithm.collaboration(self.state)

    def seen_in_clear(self) -> Tensor | None:
        """(rows,) how many models of others each row has seen one by one, if the algorithm counts them."""
        return self.algorithm.seen_in_clear(self.state)

    def kept(self) -> dict[str, Tensor]:
        """All that the remaining rounds depend on, by place; every tensor has a line for each row."""
        remembered = {f"{_NODE}/{name}": tensor for name, tensor in self.node.remembered().items()}
        return dict(named_tensors(self.state, _STATE)) | remembered

    def restore(self, saved: Sequence[SavedRows]) -> None:
        """Put a fresh block into the state that its rows were in, in whichever blocks they were."""
        self.state = rebuilt(self.state, partial(_filled, saved), _STATE)
        remembered = {}
        for name in {name for part in saved for name in part.tensors if name.startswith(f"{_NODE}/")}:
            found = [part for part in saved if name in part.tensors]
            like = found[0].tensors[name]
            if is_listed(name):
                remembered[name.removeprefix(f"{_NODE}/")] = torch.cat([part.tensors[name] for part in found])
                continue
            blank = like.new_zeros(self.node.rows, *like.shape[1:])
            remembered[name.removeprefix(f"{_NODE}/")] = _filled(found, name, blank)
        self.node.recall(remembered)


class Blocks(Protocol):
    """All blocks of a simulation, wherever they are.

    networks: which each block has; the blocks of one network follow each other.
    by_reference: whether blocks see each other's memory.
    """

    @property
    def ids(self) -> Sequence[Tensor]: ...

    @property
    def networks(self) -> Sequence[int]: ...

    @property
    def by_reference(self) -> bool: ...

    @property
    def memory(self) -> Sequence[int]:
        """Bytes that each process uses, where there are several."""

    def ask(self, method: str, *arguments: Any) -> list[Any]:
        """What a method of every block returns."""

    def exchange(self, deliveries: Sequence[Delivery]) -> list[Announcement | None]:
        """Carry what was sent to where it goes, and let every block go on."""

    def kept(self) -> Sequence[Mapping[str, Tensor | Elsewhere]]:
        """All that the remaining rounds of each block depend on, by place."""

    def restore(self, saved: Sequence[Sequence[SavedRows]]) -> None:
        """Put fresh blocks into the state that their rows were in."""


class LocalBlocks:
    """Blocks in this process."""

    by_reference = True
    memory = ()

    def __init__(self, blocks: Sequence[Block], networks: Sequence[int]) -> None:
        self.blocks, self.networks = blocks, networks
        self.ids = [block.node.ids for block in blocks]

    def ask(self, method: str, *arguments: Any) -> list[Any]:
        return [getattr(block, method)(*arguments) for block in self.blocks]

    def exchange(self, deliveries: Sequence[Delivery]) -> list[Announcement | None]:
        given = [
            [[self.blocks[piece.block].piece(piece.rows) for piece in mail.pieces] for mail in one.mails]
            for one in deliveries
        ]
        parts = zip(self.blocks, deliveries, given, strict=True)
        return [block.receive(delivery, pieces) for block, delivery, pieces in parts]

    def kept(self) -> Sequence[Mapping[str, Tensor | Elsewhere]]:
        return [block.kept() for block in self.blocks]

    def restore(self, saved: Sequence[Sequence[SavedRows]]) -> None:
        for block, parts in zip(self.blocks, saved, strict=True):
            block.restore(parts)


@dataclass(frozen=True)
class HostedNetwork:
    """Nodes that have another network than the others."""

    ids: Tensor
    executor: Executor


@dataclass(kw_only=True)
class Hosting:
    """What all blocks of a simulation have in common, and are made of.

    shared: patterns of what travels of a model; empty: whatever the algorithm sends.
    sealing: how sealed exchanges are added up. bound: which of these sums are opened, unless it is plainly.
    keep_best: each peer's model is its best so far by validation data, where it is measured.
    architectures: nodes that have another network than `module`; they are in blocks of their own.
    held: bytes of samples that a block may hold although they could be made when needed.
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
    architectures: Sequence[HostedNetwork] = ()
    task: Task = CLASSIFICATION
    bound: Bound = BOUND
    held: int = 1 << 30

    @property
    def executors(self) -> list[Executor]:
        """Of each network, the usual one first."""
        return [self.executor, *(other.executor for other in self.architectures)]

    def host(self, shards: Sequence[Tensor]) -> LocalBlocks:
        """Blocks of nodes with one network each, out of shards with any."""
        which = torch.zeros(self.topology.nodes, dtype=torch.long)
        for number, architecture in enumerate(self.architectures):
            which[architecture.ids] = number + 1
        kinds = range(len(self.executors))
        parts = [(ids[which[ids] == kind], kind) for kind in kinds for ids in shards]
        parts = [(ids, kind) for ids, kind in parts if len(ids)]
        blocks = [
            Block(
                self._node(ids, self.executors[kind]),
                self.algorithm,
                self.topology,
                self.local_buffers,
                self.sealing,
                self.keep_best,
            )
            for ids, kind in parts
        ]
        return LocalBlocks(blocks, [kind for _, kind in parts])

    def _node(self, ids: Tensor, executor: Executor) -> LearningNode:
        return LearningNode(
            ids=ids,
            federation=self.federation.of_nodes(ids, self.topology.hub).holding(self.held),
            module=executor.module,
            executor=executor,
            training=self.training,
            seed=self.seed,
            rounds=self.rounds,
            hub=self.topology.hub,
            clusters=self.federation.clusters,
            own_module=self.own_module,
            other_executors=[other for other in self.executors if other is not executor],
            shared=self.shared,
            task=self.task,
            bound=replace(self.bound, smallest=2) if self.sealing == "plain" else self.bound,
        )


def _bundle(table: Tree, messages: Messages, home: Tree | None = None) -> Bundle:
    return Bundle(table, messages.source, messages.rows, messages.senders, home)


def _stacked(*parts: Tensor) -> Tensor:
    return torch.cat(parts)


def _returned(sent: Tree, lost: Tensor | None) -> Callable[[], Tree] | None:
    """What comes back to each row: its payload, as often as a message of it was lost."""
    if lost is None or not bool(lost.any()):
        return None
    return lambda: map_tree(lambda leaf: leaf * per_row(lost, leaf).to(leaf), sent)


def _measured(node: LearningNode, params: Params) -> Scores:
    """Scores on each row's own test data.

    What the last local step of a round did to a model shows in no training loss before the next round.
    """
    scores = node.evaluate(params)
    lost = scores.loss.isnan() & (node.federation.test.sizes > 0) & node.online
    if bool(lost.any()):
        raise diverged(node.ids[lost], node.round, node.training, "test loss")
    return scores


def is_listed(name: str) -> bool:
    """Whether something that a block keeps has no line for each row."""
    return name.startswith(f"{_NODE}/{LISTED}")


def _filled(saved: Sequence[SavedRows], name: str, fresh: Tensor) -> Tensor:
    """What was saved under this name, of all rows.

    Tables over samples or neighbours are as wide as the longest row of their block: in another block, what
    is beyond the end of a row is as it was made.
    """
    result = fresh
    for part in saved:
        tensor, whole = part.tensors.get(name), len(part.rows) == len(fresh)
        fits = tensor is not None and tensor.dtype == fresh.dtype and tensor.dim() == fresh.dim()
        if tensor is None or not fits or (whole and tensor.shape != fresh.shape):
            raise DamagedRunError(
                f"the checkpoint does not fit this experiment: {name!r} is missing or has another shape"
            )
        if whole:
            return tensor.to(fresh.device)
        result = fresh.clone() if result is fresh else result
        shared = tuple(slice(min(a, b)) for a, b in zip(tensor.shape[1:], fresh.shape[1:], strict=True))
        target = result[(slice(None), *shared)]
        target[part.rows] = tensor[(slice(None), *shared)].to(fresh.device)
    return result
