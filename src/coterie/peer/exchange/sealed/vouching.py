"""No collector has a sealed sum of which the others do not know: more than half of them vouch for it before.

A member's own sums are in its ledger. Sums without it matter, too: sum{a,b,c,d} - sum{b,c,d} = a, and a was
not asked the second time. So a collector claims a sum before its masks are lifted, and says which ones it had
in the rounds that count. A member that vouches for the claim signs that it knows of no other sum of this
collector, and of no other one in this exchange. The masks are lifted if more than half of all members have
signed. Any two majorities have somebody in common. So a collector that lies by itself has one sum in an
exchange, and its claim says all that it had: that is what the ledger of each member judges by.

A collector that was restarted may have forgotten a sum. It is told, and believes what two members tell.
"""

from __future__ import annotations

import base64
import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from coterie.errors import RefusedError, SecureSumError
from coterie.peer.exchange.sealed.party import Party
from coterie.peer.network.messages import Claim, Had, Voucher
from coterie.protocol.ledger import Sum
from coterie.protocol.secure_sum import majority

_log = logging.getLogger("coterie.peer")

MOST_IN_A_ROUND = 8  # sums of one collector: no algorithm has more sealed exchanges


def listed(sums: Iterable[Sum]) -> tuple[Had, ...]:
    """As messages say it: each group once."""
    rounds = defaultdict[tuple[int, ...], list[int]](list)
    for one in sums:
        rounds[tuple(sorted(one.members))].append(one.round)
    return tuple(Had(members=group, rounds=tuple(sorted(rounds[group]))) for group in sorted(rounds))


def sums_of(had: Iterable[Had]) -> set[Sum]:
    return {Sum(round, frozenset(one.members)) for one in had for round in one.rounds}


@dataclass
class Vouching:
    """One peer that vouches for others' sums, or does not."""

    party: Party
    _signed: dict[tuple[int, int, int], Claim] = field(default_factory=dict)  # by collector, round and slot
    _named: set[tuple[int, int, int]] = field(default_factory=set)  # where a collector did not say all

    def answer(self, collector: int, claim: Claim, now: int) -> Voucher:
        """now: the round in which this peer is."""
        ledger, where = self.party.ledger, (collector, claim.round, claim.slot)
        if not now - ledger.bound.rounds < claim.round <= now + 1:
            raise RefusedError("sealing", f"this peer is in round {now}, and cannot vouch for {claim.round}")
        self._forget(now - ledger.bound.rounds)
        before = self._signed.get(where)
        if before is not None and (before.session, before.members) != (claim.session, claim.members):
            raise self._second(collector, before, claim)
        if (
            before is None
            and sum(at[:2] == where[:2] for at in {*self._signed, *self._named}) >= MOST_IN_A_ROUND
        ):
            raise RefusedError("sealing", f"more than {MOST_IN_A_ROUND} sums in round {claim.round}")
        known = set(ledger.had(collector, claim.round)) - {Sum(claim.round, frozenset(claim.members))}
        if missing := known - sums_of(claim.had):
            self._name(where, max(missing))
            return Voucher(sender=self.party.name, missing=listed(missing))
        self._signed[where] = claim
        ledger.note(collector, claim.round, claim.members)
        proof = base64.b64encode(self.party.signed(claim.statement())).decode()
        return Voucher(sender=self.party.name, proof=proof)

    def _forget(self, until: int) -> None:
        self._signed = {at: one for at, one in self._signed.items() if at[1] > until}
        self._named = {at for at in self._named if at[1] > until}

    def _name(self, where: tuple[int, int, int], one: Sum) -> None:
        """Whoever was restarted may have forgotten a sum. Or it lies."""
        if where not in self._named:
            self._named.add(where)
            _log.warning(
                "round %d: %s does not say that it had the sum over %s in round %d",
                where[1],
                self.party.called(where[0]),
                ", ".join(map(self.party.called, sorted(one.members))),
                one.round,
            )

    def _second(self, collector: int, before: Claim, claim: Claim) -> RefusedError:
        """Whoever crashes repeats its round, and may ask again. That, too, would be a second sum."""
        name = self.party.called(collector)
        groups = [", ".join(map(self.party.called, one.members)) for one in (before, claim)]
        self.party.metrics.overdrawn[name] += 1
        _log.warning(
            "round %d: %s wants a second sum in one exchange, over %s after one over %s, and does not get it",
            claim.round,
            name,
            groups[1],
            groups[0],
        )
        return RefusedError("sealing", "one exchange has one secure sum, and another one was claimed in it")

    def check(self, collector: int, claim: Claim, proofs: Mapping[int, bytes]) -> set[Sum]:
        """What the collector had before, as more than half of all members have signed."""
        everyone, statement = self.party.others(collector, claim.round), claim.statement()
        own = self._signed.get((collector, claim.round, claim.slot)) == claim
        signed = [
            number
            for number in everyone & proofs.keys()
            if (
                own
                if number == self.party.number
                else self.party.is_signed(number, statement, proofs[number])
            )
        ]
        if len(signed) < (enough := majority(len(everyone))):
            raise SecureSumError(
                f"{len(signed)} of {len(everyone)} members vouch for this sum, and {enough} must"
            )
        bound, had = self.party.ledger.bound, sums_of(claim.had)
        if len(had) > MOST_IN_A_ROUND * bound.rounds:
            raise SecureSumError(f"{len(had)} sums in {bound.rounds} rounds")
        return {one for one in had if claim.round - bound.rounds < one.round <= claim.round}
