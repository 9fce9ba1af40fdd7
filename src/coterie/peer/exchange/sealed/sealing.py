"""Sealed exchanges between real peers: a secure sum among those who send to a collector.

The collector is the peer that will know the sum. It asks each member for one step after the other (see
`collecting`); the members never talk to each other directly, and what passes through the collector is sealed
for the member it is meant for. Members sign their keys, so that the collector cannot put keys of its own in
between. See `coterie.protocol.secure_sum` for the steps and docs/privacy.md for who learns what.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from coterie.errors import RefusedError, SecureSumError
from coterie.peer.exchange.membership import Position
from coterie.peer.exchange.sealed.bodies import (
    MOST_BYTES_PER_MEMBER,
    Advertised,
    pack_reveal,
    pack_shared,
    pack_words,
    statement,
    unpack,
    unpack_claim,
    unpack_letters,
)
from coterie.peer.exchange.sealed.collecting import MOST_ATTEMPTS, Collecting
from coterie.peer.exchange.sealed.party import Party
from coterie.peer.exchange.sealed.vouching import Vouching
from coterie.peer.network.messages import LARGEST_HEAD, Claim, SealAnswer, SealStep
from coterie.protocol import Bundle, SealedInbox, Tree
from coterie.protocol.ledger import too_small
from coterie.protocol.secure_sum import FixedPoint, PairwiseMember, Plan, magnitude_exponent

_log = logging.getLogger("coterie.peer")

_NOTHING = -64  # the exponent of a vector of zeros
_WIDER = 12  # by how many powers of two a member's values may be larger than one's own
_MANY = 3  # failures in a row that are no accident


class _OverdrawnError(SecureSumError):
    """A collector asks for a sum that it must not have."""


@dataclass
class _Part:
    """This peer's part in the sum of one collector.

    before: the plan of the sum that this one repeats, if there was one.
    """

    session: str
    exponent: int  # of one's own values
    member: PairwiseMember | None = None
    done: bool = False
    sessions: int = 1
    before: Plan | None = None

    def again(self, session: str) -> _Part:
        """The part in another sum of the same collector in the same exchange, in the place of this one.

        The masks of this one were not lifted, and never will be by this peer. Those of the other are lifted
        only if as many members as its threshold say so, and they have all given up this one: then too few are
        left for its threshold, which is the same. So one of the two sums is opened at most.
        """
        if self.done:
            raise SecureSumError("one exchange has one secure sum, and its masks were lifted already")
        if self.sessions >= MOST_ATTEMPTS:
            raise SecureSumError(f"a sum was begun {MOST_ATTEMPTS} times in this exchange")
        before = self.before if self.member is None else self.member.plan
        return _Part(session, self.exponent, sessions=self.sessions + 1, before=before)


@dataclass(frozen=True)
class Allowed:
    """Which sums the experiment allows a collector in an exchange.

    among: whom it may ask. threshold: how many must answer. most: how many it asks at most. whole: it asks
    all of them, so that everyone knows the group.
    """

    among: frozenset[int]
    threshold: int
    most: int
    whole: bool

    def refusal(self, members: Collection[int], threshold: int) -> str:
        """Why a plan is not one of them; empty if it is."""
        if strangers := set(members) - self.among:
            return f"this collector cannot ask {sorted(strangers)} in this round"
        if threshold < self.threshold:
            return f"a threshold of {threshold}, where the experiment has {self.threshold}"
        if len(members) > self.most:
            return f"a sum over {len(members)}, where the experiment has {self.most} at most"
        return ""


@dataclass
class _Offer:
    """A sealed exchange that is open: what this peer gives, to whom, and in which sums."""

    at: Position
    vector: Tensor
    collectors: set[int]
    allowed: Callable[[int], Allowed] | None = None
    parts: dict[int, _Part] = field(default_factory=dict)


@dataclass
class Sealing:
    """Both roles of one peer. patience: how long a step may wait for its exchange to open."""

    party: Party
    patience: float
    at: Callable[[], Position]
    collecting: Collecting = field(init=False)
    vouching: Vouching = field(init=False)
    _offer: _Offer | None = None
    _failed_in_a_row: int = 0

    def __post_init__(self) -> None:
        self.collecting, self.vouching = Collecting(self.party), Vouching(self.party)

    # --- member ----------------------------------------------------------------------------------

    def open(
        self,
        at: Position,
        vector: Tensor,
        collectors: Iterable[int],
        allowed: Callable[[int], Allowed] | None = None,
    ) -> None:
        """allowed: for each collector, which sums it may have; None: any over enough members."""
        self._offer = _Offer(at, vector, set(collectors), allowed)
        self.party.changed.fire()

    def close(self) -> None:
        self._offer = None
        self.party.changed.fire()

    def served(self, collector: int) -> bool:
        """Whether a collector has all that it needs from this peer."""
        part = self._offer.parts.get(collector) if self._offer else None
        return part is not None and part.done

    async def admit(self, number: int, head: SealStep, size: int) -> None:
        """Wait until the exchange is open here too, or refuse."""
        place = Position(head.round, head.slot)
        until = asyncio.get_running_loop().time() + self.patience
        while place > self.at() or (place == self.at() and self._offer is None):
            left = until - asyncio.get_running_loop().time()
            if left <= 0:
                raise RefusedError(
                    "early", f"this peer is in round {self.at().round}, not yet in {head.round}"
                )
            await self.party.changed.wait(left)
        self._open_for(number, place)
        most = MOST_BYTES_PER_MEMBER * (1 + len(head.members))
        if head.step == "unmask":  # with the claim, and signatures of more than the members of this sum
            most += LARGEST_HEAD + MOST_BYTES_PER_MEMBER * len(self.party.membership.roster())
        if size > most:
            raise RefusedError("oversized", f"{size} bytes for step {head.step} of a secure sum")

    def take(self, number: int, head: SealStep, body: bytes) -> tuple[SealAnswer, bytes]:
        """One step for a collector."""
        offer = self._open_for(number, Position(head.round, head.slot))
        try:
            answer, content = self._step(offer, number, head, body)
        except SecureSumError as error:
            if isinstance(error, _OverdrawnError):
                name = self.party.called(number)
                _log.warning("round %d: %s gets no sum: %s", head.round, name, error)
                self.party.metrics.overdrawn[name] += 1
            raise RefusedError("sealing", str(error)) from None
        collector = self.party.membership.roster().get(number)
        if collector is not None:
            self.party.metrics.bytes_in[collector.name] += len(body)
            self.party.metrics.bytes_out[collector.name] += len(content)
        self.party.changed.fire()
        return answer, content

    def _open_for(self, number: int, place: Position) -> _Offer:
        offer = self._offer
        if offer is None or offer.at != place:
            raise RefusedError("stale", f"exchange {place.slot} of round {place.round} is over")
        if number not in offer.collectors:
            raise RefusedError("sealing", "this peer gives nothing to you in this exchange")
        return offer

    def _step(self, offer: _Offer, number: int, head: SealStep, body: bytes) -> tuple[SealAnswer, bytes]:
        part = offer.parts.get(number)
        if head.step == "measure":
            if part is None:
                part = _Part(head.session, magnitude_exponent(offer.vector))
            elif part.session != head.session:
                part = part.again(head.session)
            offer.parts[number] = part
            return SealAnswer(sender=self.party.name, exponent=part.exponent), b""
        if part is None or part.session != head.session:
            raise SecureSumError(f"step {head.step} of a session that has not begun, or was given up")
        try:
            return SealAnswer(sender=self.party.name), self._answer(offer, number, part, head, body)
        except SecureSumError as error:
            if not error.accused:
                raise
            return SealAnswer(sender=self.party.name, accused=tuple(sorted(error.accused))), b""

    def _answer(self, offer: _Offer, number: int, part: _Part, head: SealStep, body: bytes) -> bytes:
        if head.step == "advertise":
            if part.member is not None:  # other keys would allow a second sum, over other members
                raise SecureSumError("this member has advertised its keys already")
            part.member = PairwiseMember(
                self.party.number, offer.vector, self._plan(offer, number, part, head)
            )
            keys = part.member.advertise()
            said = statement(head.round, head.slot, number, part.member.plan, self.party.number, keys)
            return Advertised(keys, self.party.signed(said)).pack()
        if part.member is None:
            raise SecureSumError(f"step {head.step} before advertise")
        if head.step == "share":
            roster = {n: Advertised.unpack(content) for n, content in unpack(body).items()}
            self._check(roster, head, number, part.member.plan)
            boxes = part.member.share({n: each.keys for n, each in roster.items()})
            return pack_shared(boxes, part.member.promise())
        if head.step == "mask":
            return pack_words(part.member.mask(*unpack_letters(body)))
        return self._unmask(number, part, head, *unpack_claim(body))

    def _unmask(
        self, number: int, part: _Part, head: SealStep, claim: Claim, proofs: Mapping[int, bytes]
    ) -> bytes:
        """Lift the masks of a sum, unless it would say too much beside what the collector had before."""
        assert part.member is not None
        part.done = True
        reveal = part.member.unmask(claim.members)
        about = head.sender, head.round, head.slot, head.session
        if (claim.sender, claim.round, claim.slot, claim.session) != about:
            raise SecureSumError("the claim is to another sum")
        had, ledger = self.vouching.check(number, claim, proofs), self.party.ledger
        if text := ledger.refusal(number, claim.round, claim.members, had):
            raise _OverdrawnError(text)
        ledger.note(number, claim.round, claim.members)
        return pack_reveal(reveal)

    def _plan(self, offer: _Offer, number: int, part: _Part, head: SealStep) -> Plan:
        if self.party.number not in head.members or head.exponent < part.exponent:
            raise SecureSumError("the plan leaves out this member or the range of its values")
        if text := self.party.ledger.bound.beyond(head.exponent):
            raise SecureSumError(text)
        if part.exponent > _NOTHING and head.exponent > part.exponent + 2 * _WIDER:
            raise SecureSumError(f"a range of 2^{head.exponent} would round this member's values to nothing")
        if number in head.members:
            raise SecureSumError("a collector that is a member could subtract its own part from the sum")
        encoding = FixedPoint.within(head.exponent)
        plan = Plan(bytes.fromhex(head.session), head.members, head.threshold, encoding)
        if min(len(head.members), head.threshold) < (smallest := self.party.ledger.bound.smallest):
            raise _OverdrawnError(f"the smallest group is {smallest}, and so is the smallest threshold")
        if offer.allowed and (text := offer.allowed(number).refusal(head.members, head.threshold)):
            raise _OverdrawnError(text)
        if part.before is not None and (
            not set(plan.members) < set(part.before.members) or plan.threshold != part.before.threshold
        ):
            raise SecureSumError("a repeated sum has fewer members than the first, and the same threshold")
        return plan

    def _check(self, roster: Mapping[int, Advertised], head: SealStep, collector: int, plan: Plan) -> None:
        """Whether the keys are those of the members themselves, for this very sum."""
        for number, each in roster.items():
            said = statement(head.round, head.slot, collector, plan, number, each.keys)
            if number != self.party.number and not self.party.is_signed(number, said, each.proof):
                raise SecureSumError(f"the keys of member {number} are not signed by it for this sum")

    # --- collector -------------------------------------------------------------------------------

    async def collect(
        self, members: list[int], at: Position, until: float, group: int | None = None
    ) -> tuple[Tensor, int] | None:
        """The sum of the members' vectors, and how many; None, with the reason logged, if there is none.

        group: how many should be in it, if some of them are known to be away.
        """
        try:
            if len(members) < (smallest := self.party.ledger.bound.smallest):
                raise SecureSumError(too_small(len(members), smallest))
            assert self._offer is not None  # whoever collects also offers, if only to nobody
            result = await self.collecting.sum(members, at, until, self._offer.vector, group or len(members))
        except SecureSumError as error:
            self.party.metrics.sealed_failures += 1
            self._failed_in_a_row += 1
            _log.warning("round %d: no sealed sum: %s", at.round, error)
            self._warn(at.round)
            return None
        self.party.metrics.sealed_sums += 1
        self._failed_in_a_row = 0
        return result

    def _warn(self, round: int) -> None:
        """That nothing is learned from others: after three failures in a row, and whenever they doubled."""
        times, metrics = self._failed_in_a_row, self.party.metrics
        if times % _MANY == 0 and (times // _MANY).bit_count() == 1:
            _log.warning(
                "round %d: the last %d sealed sums could not be opened, in all %d of %d were: this peer "
                "learns nothing from the others",
                round,
                times,
                metrics.sealed_sums,
                metrics.sealed_sums + metrics.sealed_failures,
            )


class SummedInbox(SealedInbox):
    """A sealed inbox that never held more than the sum."""

    def __init__(self, total: Tree | None, members: int) -> None:
        row = torch.zeros(1, dtype=torch.long)
        parcels = [] if total is None else [Bundle(total, row, row, row)]
        super().__init__(parcels, 1)
        self._members = members

    def _counts(self) -> Tensor:
        return torch.tensor([self._members])
