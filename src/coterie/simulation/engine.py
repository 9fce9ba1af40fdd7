"""The simulator: drives an algorithm's rounds over all nodes, and records what they learn.

Nodes are cut into blocks of rows, here or elsewhere. The engine sees addresses, sizes, scores and records.
What is sent goes from block to block. `Router` is the one seam: it says which message goes where, and counts
it. Messages have one order, however the nodes are cut: that in which a single block of all nodes would have
sent them, those of one network after those of another. So every sum adds up the same numbers in the same
order, and comes out the same to the last bit.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from coterie.algorithms.parts.push_sum import check_total
from coterie.errors import ContractError
from coterie.protocol import Params, Scores
from coterie.simulation.blocks import (
    Announcement,
    Block,
    BlockRecord,
    Blocks,
    Common,
    Delivery,
    Hosting,
    LocalBlocks,
    Mail,
    Messages,
    Piece,
)
from coterie.simulation.round_records import Evaluation, PeerModels, RoundRecord, Traffic
from coterie.topology import Topology


@dataclass
class Totals:
    """Traffic since the first round."""

    bytes_sent: Tensor  # (nodes,)
    bytes_received: Tensor
    messages_sent: Tensor
    links: Tensor  # (links,) receiver * nodes + sender of every link over which a payload arrived
    link_messages: Tensor  # (links,) how many
    link_bytes: Tensor  # (links,) of what arrived

    @classmethod
    def zero(cls, nodes: int) -> Totals:
        def empty(n: int) -> Tensor:
            return torch.zeros(n, dtype=torch.long)

        return cls(empty(nodes), empty(nodes), empty(nodes), empty(0), empty(0), empty(0))

    def add(self, traffic: Traffic) -> None:
        self.bytes_sent.index_add_(0, traffic.senders, traffic.bytes)
        self.bytes_received.index_add_(0, traffic.receivers, traffic.bytes * traffic.delivered)
        self.messages_sent.index_add_(0, traffic.senders, torch.ones_like(traffic.senders))
        arrived = traffic.delivered & (traffic.bytes > 0)
        keys = traffic.receivers[arrived] * len(self.bytes_sent) + traffic.senders[arrived]
        self.links, place = torch.cat((self.links, keys)).unique(return_inverse=True)

        def summed(before: Tensor, added: Tensor) -> Tensor:
            return torch.zeros_like(self.links).index_add_(0, place, torch.cat((before, added)))

        self.link_messages = summed(self.link_messages, torch.ones_like(keys))
        self.link_bytes = summed(self.link_bytes, traffic.bytes[arrived])


@dataclass(kw_only=True)
class Simulation(Hosting):
    """N peers (and a hub if the topology has one) under one algorithm.

    shards: how to cut the nodes into blocks; one block of all nodes is fastest.
    hosts: blocks that are elsewhere; None: they are made here.
    """

    shards: Sequence[Tensor] | None = None
    hosts: Blocks | None = None

    round: int = 0  # the next one
    totals: Totals = field(init=False)

    def __post_init__(self) -> None:
        shards = self.shards or [torch.arange(self.topology.nodes)]
        self._blocks: Blocks = self.host(shards) if self.hosts is None else self.hosts
        self.totals = Totals.zero(self.topology.nodes)
        self.settle()

    def settle(self) -> None:
        """Put all blocks into the state before the first round."""
        self._common = Common.of(self._blocks.ask("about"))
        self._blocks.ask("settle", self._common)
        self._order = torch.argsort(torch.cat(list(self._blocks.ids)))
        self._router = Router(
            self.topology,
            self._blocks.ids,
            self._blocks.networks,
            by_reference=self._blocks.by_reference,
            counts_missing=self.sealing != "plain",
        )

    def move(self, hosts: Blocks) -> None:
        """Go on in other blocks, from the state before the first round."""
        self._blocks, self.round, self.totals = hosts, 0, Totals.zero(self.topology.nodes)
        self.settle()

    @property
    def hosted(self) -> Blocks:
        """All blocks, wherever they are."""
        return self._blocks

    @property
    def blocks(self) -> Sequence[Block]:
        """Those in this process."""
        return self._blocks.blocks if isinstance(self._blocks, LocalBlocks) else ()

    def step(self, *, evaluate: bool = True, evaluate_global: bool = False) -> RoundRecord:
        """Simulate the next round."""
        started = time.perf_counter()
        traffic = self._drive(evaluate)
        found: list[BlockRecord] = self._blocks.ask("record", evaluate, evaluate_global)
        masses = [one.mass for one in found if one.mass is not None]
        if masses:
            check_total(masses, self.topology.nodes, self.round)
        record = RoundRecord(
            self.round,
            time.perf_counter() - started,
            self.topology.online(self.round)[: self.federation.peers],
            self._gather([one.train_loss for one in found]),
            self._gather([one.gradient_steps for one in found]),
            self._gather([one.samples_seen for one in found]),
            {point: self._evaluation([one.scores[point] for one in found]) for point in found[0].scores},
            traffic,
            {name: self._gather([one.recorded[name] for one in found]) for name in found[0].recorded},
            tuple(self._blocks.memory),
        )
        self.round += 1
        for one in traffic:
            self.totals.add(one)
        return record

    def collaboration(self) -> Tensor | None:
        """(peers, peers) how much each peer learned to trust every other, if the algorithm learns that."""
        known = [weights for weights in self._blocks.ask("collaboration") if weights is not None]
        return self._gather(known) if known else None

    def seen_in_clear(self) -> Tensor | None:
        """(peers,) how many models of others each peer has seen one by one, if the algorithm counts them."""
        known = [seen for seen in self._blocks.ask("seen_in_clear") if seen is not None]
        return self._gather(known) if known else None

    def personal(self) -> Params:
        """The model of each peer now, stacked; only where all have the same network."""
        (everyone,) = self.models()
        return everyone.params

    def models(self) -> list[PeerModels]:
        """The model of each peer now, stacked for each network."""
        trees: list[Params] = self._blocks.ask("personal")
        found = []
        for kind, executor in enumerate(self.executors):
            own = [number for number, network in enumerate(self._blocks.networks) if network == kind]
            ids, params = self._models([self._blocks.ids[n] for n in own], [trees[n] for n in own])
            if len(ids):
                found.append(PeerModels(ids, params, executor.module))
        return found

    def _models(self, blocks: list[Tensor], trees: list[Params]) -> tuple[Tensor, Params]:
        """Ids, sorted, and models of the peers in blocks with the same network; the hub is left out."""
        ids = torch.cat(blocks) if blocks else torch.empty(0)
        if len(blocks) == 1 and bool((ids.diff() > 0).all()):  # as they are, without a copy
            count = int((ids < self.federation.peers).sum())
            return ids[:count], {name: value[:count] for name, value in trees[0].items()}
        order = torch.argsort(ids)
        order = order[ids[order] < self.federation.peers]
        names = trees[0] if trees else {}
        return ids[order], {name: torch.cat([tree[name] for tree in trees])[order] for name in names}

    def _drive(self, evaluate: bool) -> list[Traffic]:
        """Drive the algorithm from exchange to exchange, to the end of the round."""
        traffic: list[Traffic] = []
        told: list[Announcement | None] = self._blocks.ask("begin", self.round, evaluate)
        for slot in range(1_000_000):
            sent = [one for one in told if one is not None]
            if not sent:
                break
            if len(sent) < len(told):
                raise ContractError(
                    f"round {self.round}: some rows ended the round after {slot} exchanges, others go on"
                )
            deliveries, seen = self._router.deliver(sent, self.round, slot)
            traffic += [] if seen is None else [seen]
            told = self._blocks.exchange(deliveries)
        return traffic

    def _evaluation(self, scores: list[dict[str, Scores]]) -> Evaluation:
        """Of all peers at one point of the round."""

        def gathered(split: str) -> tuple[dict[str, Tensor], Tensor | None]:
            parts = [one[split] for one in scores if split in one]
            if not parts:
                return {}, None
            names = [metric.name for metric in self.task.metrics]
            metrics = {name: self._gather([part.metrics[name] for part in parts]) for name in names}
            return metrics, self._gather([part.loss for part in parts])

        metrics, loss = gathered("test")
        assert loss is not None
        validation, validation_loss = gathered("validation")
        if validation_loss is not None:
            validation["loss"] = validation_loss
        return Evaluation(metrics, loss, gathered("common")[0], validation)

    def _gather(self, parts: list[Tensor]) -> Tensor:
        """Put the rows of all blocks in the order of peers; the hub is left out."""
        if self.shards is None and len(parts) == 1:
            return parts[0][: self.federation.peers]
        return torch.cat(parts)[self._order][: self.federation.peers]


class Router:
    """Knows which block hosts each node.

    networks: that of each block; the blocks of one network follow each other, as their ids do if results
    are to be those of a single block.
    by_reference: blocks see each other's memory, and need not copy what they send.
    counts_missing: what a message would have held matters although it is lost (secure sums).
    """

    def __init__(
        self,
        topology: Topology,
        blocks: Sequence[Tensor],
        networks: Sequence[int] | None = None,
        *,
        by_reference: bool = True,
        counts_missing: bool = False,
    ) -> None:
        self._topology = topology
        self._blocks = blocks
        self._network = list(networks or [0] * len(blocks))
        self._hosts = [[b for b, n in enumerate(self._network) if n == k] for k in sorted(set(self._network))]
        self._whole = by_reference and all(len(hosts) == 1 for hosts in self._hosts)
        self._counts_missing = counts_missing
        self._block_of = torch.empty(topology.nodes, dtype=torch.long)
        self._row_of = torch.empty(topology.nodes, dtype=torch.long)
        for number, ids in enumerate(blocks):
            self._block_of[ids] = number
            self._row_of[ids] = torch.arange(len(ids))

    def deliver(
        self, sent: Sequence[Announcement], round: int, slot: int
    ) -> tuple[list[Delivery], Traffic | None]:
        """What each block is given, and what went over the links (None if it does not count)."""
        if len({(one.sealed, one.counted) for one in sent}) != 1:
            raise ContractError(
                f"round {round}: blocks disagree whether exchange {slot} is sealed or counted"
            )
        sealed, counted = sent[0].sealed, sent[0].counted
        senders, receivers = self._links(sent, round)
        sizes = torch.tensor([one.row_bytes for one in sent])[self._block_of[senders]]
        if counted:
            online = self._topology.online(round)
            going = online[senders]
            senders, receivers, sizes = senders[going], receivers[going], sizes[going]
            arrives = self._topology.delivers(round, slot, senders, receivers) & online[receivers]
            leaving = self._topology.graph(round).leaving
            if leaving is not None and any(one.conserved for one in sent):
                arrives &= ~leaving[receivers]  # they take nothing that they could not hand over
        else:
            arrives = torch.ones(len(senders), dtype=torch.bool)
        lost = torch.bincount(senders[~arrives], minlength=self._topology.nodes)
        deliveries = []
        for number, ids in enumerate(self._blocks):
            mails = tuple(
                self._mail(hosts, number, senders, receivers, arrives, sealed) for hosts in self._hosts
            )
            back = lost[ids] if sent[number].conserved else None
            deliveries.append(Delivery(mails, sealed, back))
        return deliveries, Traffic(senders, receivers, sizes, arrives) if counted else None

    def _links(self, sent: Sequence[Announcement], round: int) -> tuple[Tensor, Tensor]:
        """Ids of all senders and of their receivers, in the order of a single block for each network."""
        links = [self._links_of(one, number, round) for number, one in enumerate(sent)]
        if len(links) == 1:
            return links[0][:2]
        senders, receivers = (torch.cat([link[end] for link in links]) for end in (0, 1))
        if len(self._hosts) < len(links):  # blocks of one network: their messages are interleaved
            place = torch.cat([link[2] for link in links])
            network = torch.tensor(self._network)[self._block_of[senders]]
            order = torch.argsort(place, stable=True)
            order = order[torch.argsort(network[order], stable=True)]
            senders, receivers = senders[order], receivers[order]
        return senders, receivers

    def _links_of(self, sent: Announcement, block: int, round: int) -> tuple[Tensor, Tensor, Tensor]:
        """Ids of senders in this block and of their receivers, and their places among all messages."""
        ids = self._blocks[block]
        if sent.to is not None:
            to = sent.to
            if len(to) and not 0 <= int(to.ids.min()) <= int(to.ids.max()) < len(self._block_of):
                raise ContractError(f"round {round}: an exchange is addressed to a node that does not exist")
            place = torch.zeros(len(to), dtype=torch.long) if to.order is None else to.order
            return ids[to.rows], to.ids, place
        graph = self._topology.graph(round)
        if len(self._blocks) == 1:
            return graph.senders, graph.receivers, torch.empty(0)
        here = (self._block_of[graph.senders] == block).nonzero().flatten()
        return graph.senders[here], graph.receivers[here], here

    def _mail(
        self, hosts: list[int], target: int, senders: Tensor, receivers: Tensor, arrives: Tensor, sealed: bool
    ) -> Mail:
        """From the blocks of one network to one block."""
        keeps_missing, place = sealed and self._counts_missing, None
        if len(self._blocks) > 1:
            origin = self._block_of[senders]
            ours = (origin >= hosts[0]) & (origin <= hosts[-1]) & (self._block_of[receivers] == target)
            place = (ours if keeps_missing else ours & arrives).nonzero().flatten()
            senders, receivers, arrives = senders[place], receivers[place], arrives[place]
        pieces, source = self._pieces(hosts, target, senders)
        found = Messages(source, self._row_of[receivers], senders, place)
        missing = found.where(~arrives) if keeps_missing else None
        return Mail(pieces, found if bool(arrives.all()) else found.where(arrives), missing)

    def _pieces(self, hosts: list[int], target: int, senders: Tensor) -> tuple[tuple[Piece, ...], Tensor]:
        """What makes up the table, the target's own rows first, and each sender's row in it."""
        if self._whole:
            return (Piece(hosts[0], None),), self._row_of[senders]
        source, first = torch.empty_like(senders), 0
        pieces: list[Piece] = []
        for block in sorted(hosts, key=lambda block: block != target):
            mine = self._block_of[senders] == block
            rows, used = self._row_of[senders[mine]], None
            if block != target:
                used, rows = rows.unique(return_inverse=True)
            source[mine] = first + rows
            first += len(self._blocks[block]) if used is None else len(used)
            pieces.append(Piece(block, used))
        some = [piece for piece in pieces if piece.rows is None or len(piece.rows)]
        return tuple(some or pieces[:1]), source  # of no messages there are at least the names
