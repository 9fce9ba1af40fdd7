"""What a peer brings into sealed sums: as a member, as a collector, and as one who vouches for others'."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from coterie.peer.exchange.membership import Membership, Sign, Verify
from coterie.peer.exchange.metrics import Metrics
from coterie.peer.exchange.signal import Signal
from coterie.peer.network.calling import Transport
from coterie.protocol.ledger import Ledger


@dataclass
class Party:
    """sign, verify: with the peers' identities; None where nobody can stand in between, as in one process.

    blame: told of members whose answers make no sense. ledger: the sums that this peer had, and those of
    others that it knows of. present: who takes part in a round; None: everyone of the roster.
    """

    name: str
    number: int
    transport: Transport
    membership: Membership
    changed: Signal
    metrics: Metrics
    sign: Sign | None = None
    verify: Verify | None = None
    blame: Callable[[int, str], None] = lambda number, text: None
    ledger: Ledger = field(default_factory=Ledger)
    present: Callable[[int], Collection[int]] | None = None

    def called(self, number: int) -> str:
        """The name of a member."""
        member = self.membership.roster().get(number)
        return str(number) if member is None else member.name

    def others(self, collector: int, round: int) -> set[int]:
        """All who can vouch for a sum of a collector: the members of this round, without itself."""
        everyone = {*self.membership.roster(), self.number} - {collector}
        return everyone if self.present is None else everyone & set(self.present(round))

    def signed(self, statement: bytes) -> bytes:
        return b"" if self.sign is None else self.sign(statement)

    def is_signed(self, number: int, statement: bytes, proof: bytes) -> bool:
        """Whether it was this member who said so."""
        return self.verify is None or self.verify(number, statement, proof)
