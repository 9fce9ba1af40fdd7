"""Delivers exchanges between blocks of rows in memory, and counts what was sent: the one seam."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from coterie.errors import ContractError
from coterie.protocol import Bundle, Exchange, Inbox, SealedInbox, Tree
from coterie.protocol.inbox import Spread, one_after_another
from coterie.protocol.sealing import SEALED_INBOXES, SealingKind
from coterie.protocol.trees import map_tree, per_row, row_bytes, without
from coterie.topology import Topology


@dataclass(frozen=True)
class Traffic:
    """The messages of one exchange."""

    senders: Tensor  # (messages,) ids
    receivers: Tensor  # (messages,) ids
    bytes: Tensor  # (messages,) size of each payload
    delivered: Tensor  # (messages,) bool


class Router:
    """Knows which block hosts each node.

    withheld: names of tensors that never leave a node (BatchNorm statistics kept local).
    sealing: how sealed exchanges are added up; whichever it is, a message counts as the bytes of its payload.
    spread: how inboxes share out the summing of models, over worker threads for example.
    """

    def __init__(
        self,
        topology: Topology,
        blocks: Sequence[Tensor],
        withheld: frozenset[str],
        sealing: SealingKind = "plain",
        spread: Spread = one_after_another,
    ) -> None:
        self._topology = topology
        self._spread = spread
        self._sealing = sealing
        self._blocks = blocks
        self._withheld = withheld
        self._block_of = torch.empty(topology.nodes, dtype=torch.long)
        self._row_of = torch.empty(topology.nodes, dtype=torch.long)
        for number, ids in enumerate(blocks):
            self._block_of[ids] = number
            self._row_of[ids] = torch.arange(len(ids))

    def deliver(
        self, exchanges: Sequence[Exchange], round: int, slot: int
    ) -> tuple[list[Inbox], Traffic | None]:
        """One inbox per block, and what went over the links (None if it does not count)."""
        if len({(exchange.sealed, exchange.counted) for exchange in exchanges}) != 1:
            raise ContractError(
                f"round {round}: blocks disagree whether exchange {slot} is sealed or counted"
            )
        sealed, counted = exchanges[0].sealed, exchanges[0].counted
        payloads = [without(exchange.payload, self._withheld) for exchange in exchanges]
        links = [self._links(exchange, number, round) for number, exchange in enumerate(exchanges)]
        senders = torch.cat([pair[0] for pair in links])
        receivers = torch.cat([pair[1] for pair in links])
        sizes = torch.tensor([row_bytes(payload) for payload in payloads])[self._block_of[senders]]
        if counted:
            online = self._topology.online(round)
            sent = online[senders]
            senders, receivers, sizes = senders[sent], receivers[sent], sizes[sent]
            arrives = self._topology.delivers(round, slot, senders, receivers) & online[receivers]
        else:
            arrives = torch.ones(len(senders), dtype=torch.bool)
        parcels = self._parcels(payloads, senders[arrives], receivers[arrives])
        kind = partial(SealedInbox if sealed else Inbox, spread=self._spread)
        kinds: Sequence[Callable[..., Inbox]] = [kind] * len(self._blocks)
        if sealed and self._sealing != "plain":
            missing = self._parcels(payloads, senders[~arrives], receivers[~arrives])
            kinds = [partial(SEALED_INBOXES[self._sealing], missing=part) for part in missing]
        lost = torch.bincount(senders[~arrives], minlength=self._topology.nodes)
        inboxes = []
        for number, ids in enumerate(self._blocks):
            returned = _returned(exchanges[number], payloads[number], lost[ids])
            inboxes.append(kinds[number](parcels[number], len(ids), returned))
        return inboxes, Traffic(senders, receivers, sizes, arrives) if counted else None

    def _links(self, exchange: Exchange, block: int, round: int) -> tuple[Tensor, Tensor]:
        """Ids of senders in this block and of their receivers."""
        ids = self._blocks[block]
        if exchange.to is not None:
            if len(exchange.to) and not 0 <= int(exchange.to.ids.min()) <= int(exchange.to.ids.max()) < len(
                self._block_of
            ):
                raise ContractError(f"round {round}: an exchange is addressed to a node that does not exist")
            return ids[exchange.to.rows], exchange.to.ids
        graph = self._topology.graph(round)
        if len(self._blocks) == 1:
            return graph.senders, graph.receivers
        here = self._block_of[graph.senders] == block
        return graph.senders[here], graph.receivers[here]

    def _parcels(self, payloads: Sequence[Tree], senders: Tensor, receivers: Tensor) -> list[list[Bundle]]:
        """For each receiving block, one parcel per sending block."""
        result: list[list[Bundle]] = []
        for target in range(len(self._blocks)):
            parcels = []
            for origin, payload in enumerate(payloads):
                s, r = senders, receivers
                if len(self._blocks) > 1:
                    between = (self._block_of[senders] == origin) & (self._block_of[receivers] == target)
                    s, r = senders[between], receivers[between]
                parcels.append(Bundle(payload, self._row_of[s], self._row_of[r], s))
            result.append(parcels)
        return result


def _returned(exchange: Exchange, payload: Tree, lost: Tensor) -> Callable[[], Tree] | None:
    """What comes back to each row: its payload, as often as a message of it was lost."""
    if not exchange.conserved or not bool(lost.any()):
        return None
    return lambda: map_tree(lambda leaf: leaf * per_row(lost, leaf).to(leaf), payload)
