"""Conserved parcels of which the sender does not know whether they were taken.

Nobody can tell a lost parcel from a lost receipt. So the parcel is parked, neither the sender's nor gone, and
the receiver is asked until it answers: taken, and the parcel is forgotten; or not taken, and it comes back
with the next exchange. The receiver writes its answer down before it gives it, so the total never changes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from coterie.errors import RefusedError, UnreachableError
from coterie.peer.exchange.journal import Journal, ParcelId
from coterie.peer.exchange.membership import Membership
from coterie.peer.exchange.metrics import Metrics
from coterie.peer.network.calling import Transport
from coterie.peer.network.messages import Finding, Inquiry, TreeShape, decode_tree
from coterie.protocol import Tree
from coterie.protocol.trees import map_tree

_log = logging.getLogger("coterie.peer")


@dataclass
class Doubts:
    name: str
    journal: Journal
    membership: Membership
    transport: Transport
    metrics: Metrics
    pending: set[ParcelId] = field(default_factory=set)
    returned: set[ParcelId] = field(default_factory=set)  # known not to be taken, not given back yet

    def __post_init__(self) -> None:
        self.pending |= self.journal.doubts

    def park(self, parcel: ParcelId, body: bytes) -> None:
        self.journal.doubt(parcel, body)
        self.pending.add(parcel)
        self.metrics.shares_in_doubt += 1

    @property
    def open(self) -> set[ParcelId]:
        """What the next checkpoint must remember."""
        return self.pending | self.returned

    def give_back(self, slot: int, like: TreeShape, payload: Tree, lost: int) -> Callable[[], Tree] | None:
        """The sum of `lost` times the payload just sent and of older parcels that were not taken."""
        due = sorted(parcel for parcel in self.returned if parcel.slot == slot)
        parts = [decode_tree(self.journal.doubted(parcel), like) for parcel in due]
        self.returned -= set(due)
        self.metrics.shares_returned += lost + len(due)
        if not lost and not parts:
            return None

        def total() -> Tree:
            result = map_tree(lambda leaf: leaf * lost, payload)
            for part in parts:
                result = map_tree(lambda a, b: a + b, result, part)
            return result

        return total

    async def settle(self, timeout: float) -> None:
        """Ask the living about every parcel in doubt, once."""
        for parcel in sorted(self.pending):
            member = self.membership.roster().get(parcel.number)
            if member is None or not self.membership.alive(parcel.number):
                continue
            question = Inquiry(sender=self.name, round=parcel.round, slot=parcel.slot)
            try:
                answer, _ = await self.transport.request(
                    member.name, self.membership.address(member), question, timeout=timeout
                )
            except (UnreachableError, RefusedError):
                continue
            if isinstance(answer, Finding):
                self._settled(parcel, answer.taken)

    def _settled(self, parcel: ParcelId, taken: bool | None) -> None:
        self.pending.discard(parcel)
        if taken is False:
            self.returned.add(parcel)
        elif taken is None:
            self.metrics.shares_forgotten += 1
            _log.warning("peer %d no longer knows whether it took a share of round %d", *parcel[:2])
