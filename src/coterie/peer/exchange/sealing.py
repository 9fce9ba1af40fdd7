"""Sealed exchanges between real peers: a secure sum among those who send to a collector.

The collector is the peer that will know the sum. It asks each member for one step after the other; the
members never talk to each other directly, and what passes through the collector is sealed for the member it
is meant for. Members sign their keys, so that the collector cannot put keys of its own in between. Whoever is
silent at a step has dropped out; above the threshold the sum is still found, below it nothing is. See
`coterie.protocol.secure_sum` for the steps and docs/privacy.md for who learns what.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from coterie.errors import RefusedError, SecureSumError, UnreachableError
from coterie.peer.exchange.membership import Membership, Position, Sign, Verify
from coterie.peer.exchange.metrics import Metrics
from coterie.peer.exchange.seal_bodies import (
    MOST_BYTES_PER_MEMBER,
    Advertised,
    pack,
    pack_reveal,
    pack_survivors,
    pack_words,
    statement,
    unpack,
    unpack_reveal,
    unpack_survivors,
    unpack_words,
)
from coterie.peer.exchange.signal import Signal
from coterie.peer.network.calling import Transport
from coterie.peer.network.messages import SealAnswer, SealStep
from coterie.protocol import Bundle, SealedInbox, Tree
from coterie.protocol.secure_sum import (
    FixedPoint,
    Keys,
    PairwiseCollector,
    PairwiseMember,
    Plan,
    magnitude_exponent,
    majority,
)
from coterie.protocol.secure_sum.masks import KeyPair

_log = logging.getLogger("coterie.peer")

# By when a step must be answered, as parts of the time for the whole exchange: whoever is silent at one step
# must not use up the time of the next.
_DUE = {"measure": 0.5, "advertise": 0.6, "share": 0.7, "mask": 0.9, "unmask": 1.0}


A = TypeVar("A")
B = TypeVar("B")
_NOTHING = -64  # the exponent of a vector of zeros
_WIDER = 12  # by how many powers of two a member's values may be larger than one's own


@dataclass
class _Part:
    """This peer's part in the sum of one collector."""

    session: str
    exponent: int  # of one's own values
    member: PairwiseMember | None = None
    done: bool = False


@dataclass
class _Offer:
    """A sealed exchange that is open: what this peer gives, and to whom."""

    at: Position
    vector: Tensor
    collectors: set[int]
    parts: dict[int, _Part] = field(default_factory=dict)


@dataclass
class Sealing:
    """Both roles of one peer.

    patience: how long a step may wait for its exchange to open. sign, verify: with the peers' identities;
    None where nobody can stand in between, as in one process. blame: told of members whose answers make no
    sense.
    """

    name: str
    number: int
    transport: Transport
    membership: Membership
    changed: Signal
    metrics: Metrics
    patience: float
    at: Callable[[], Position]
    sign: Sign | None = None
    verify: Verify | None = None
    blame: Callable[[int, str], None] = lambda number, text: None
    _offer: _Offer | None = None

    # --- member ----------------------------------------------------------------------------------

    def open(self, at: Position, vector: Tensor, collectors: Iterable[int]) -> None:
        self._offer = _Offer(at, vector, set(collectors))
        self.changed.fire()

    def close(self) -> None:
        self._offer = None
        self.changed.fire()

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
            await self.changed.wait(left)
        self._open_for(number, place)
        if size > MOST_BYTES_PER_MEMBER * (1 + len(head.members)):
            raise RefusedError("oversized", f"{size} bytes for step {head.step} of a secure sum")

    def take(self, number: int, head: SealStep, body: bytes) -> tuple[SealAnswer, bytes]:
        """One step for a collector."""
        offer = self._open_for(number, Position(head.round, head.slot))
        try:
            answer, content = self._step(offer, number, head, body)
        except SecureSumError as error:
            raise RefusedError("sealing", str(error)) from None
        collector = self.membership.roster().get(number)
        if collector is not None:
            self._count(collector.name, received=body, sent=content)
        self.changed.fire()
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
            if part is not None and part.session != head.session:
                raise SecureSumError("one exchange has one secure sum, and another session has begun")
            part = offer.parts.setdefault(number, _Part(head.session, magnitude_exponent(offer.vector)))
            return SealAnswer(sender=self.name, exponent=part.exponent), b""
        if part is None or part.session != head.session:
            raise SecureSumError(f"step {head.step} of a session that has not begun")
        content = self._answer(offer, number, part, head, body)
        return SealAnswer(sender=self.name), content

    def _answer(self, offer: _Offer, number: int, part: _Part, head: SealStep, body: bytes) -> bytes:
        if head.step == "advertise":
            if part.member is not None:  # other keys would allow a second sum, over other members
                raise SecureSumError("this member has advertised its keys already")
            part.member = PairwiseMember(self.number, offer.vector, self._plan(number, part, head))
            keys = part.member.advertise()
            said = statement(head.round, head.slot, number, part.member.plan, self.number, keys)
            return Advertised(keys, self.sign(said) if self.sign else b"").pack()
        if part.member is None:
            raise SecureSumError(f"step {head.step} before advertise")
        if head.step == "share":
            roster = {n: Advertised.unpack(content) for n, content in unpack(body).items()}
            self._check(roster, head, number, part.member.plan)
            return pack(part.member.share({n: each.keys for n, each in roster.items()}))
        if head.step == "mask":
            return pack_words(part.member.mask(unpack(body)))
        part.done = True
        return pack_reveal(part.member.unmask(unpack_survivors(body)))

    def _plan(self, number: int, part: _Part, head: SealStep) -> Plan:
        if self.number not in head.members or head.exponent < part.exponent:
            raise SecureSumError("the plan leaves out this member or the range of its values")
        if part.exponent > _NOTHING and head.exponent > part.exponent + 2 * _WIDER:
            raise SecureSumError(f"a range of 2^{head.exponent} would round this member's values to nothing")
        if number in head.members:
            raise SecureSumError("a collector that is a member could subtract its own part from the sum")
        encoding = FixedPoint.within(head.exponent)
        return Plan(bytes.fromhex(head.session), head.members, head.threshold, encoding)

    def _check(self, roster: Mapping[int, Advertised], head: SealStep, collector: int, plan: Plan) -> None:
        """Whether the keys are those of the members themselves, for this very sum."""
        for number, each in roster.items():
            said = statement(head.round, head.slot, collector, plan, number, each.keys)
            if self.verify and number != self.number and not self.verify(number, said, each.proof):
                raise SecureSumError(f"the keys of member {number} are not signed by it for this sum")

    # --- collector -------------------------------------------------------------------------------

    async def collect(self, members: list[int], at: Position, until: float) -> tuple[Tensor, int] | None:
        """The sum of the members' vectors, and how many; None, with the reason logged, if there is none."""
        try:
            if len(members) < 2:
                raise SecureSumError(f"a sum over {len(members)} members would open a single model")
            result = await self._collect(members, at, until)
        except SecureSumError as error:
            self.metrics.sealed_failures += 1
            _log.warning("round %d: no sealed sum: %s", at.round, error)
            return None
        self.metrics.sealed_sums += 1
        return result

    async def _collect(self, members: list[int], at: Position, until: float) -> tuple[Tensor, int]:
        session, start = secrets.token_hex(16), asyncio.get_running_loop().time()
        blank = SealStep(sender=self.name, round=at.round, slot=at.slot, step="measure", session=session)

        async def ask(head: SealStep, bodies: Mapping[int, bytes]) -> dict[int, tuple[SealAnswer, bytes]]:
            due = start + _DUE[head.step] * (until - start)
            return await self._ask_all({n: (head, body) for n, body in bodies.items()}, due)

        measured = await ask(blank, dict.fromkeys(members, b""))
        answered = {n: head.exponent for n, (head, _) in measured.items()}
        plan, exponent = _agreed(session, members, self._good(answered, self._within))
        more = {"members": plan.members, "threshold": plan.threshold, "exponent": exponent}

        async def step(name: str, bodies: Mapping[int, bytes]) -> dict[int, bytes]:
            answers = await ask(blank.model_copy(update={"step": name, **more}), bodies)
            return {n: body for n, (_, body) in answers.items()}

        collector = PairwiseCollector(plan)
        cards = await step("advertise", dict.fromkeys(plan.members, b""))
        signed = partial(self._signed, head=blank, plan=plan)
        keys = collector.roster(self._good(cards, signed))
        cards = {n: cards[n] for n in keys}
        boxes = self._good(
            await step("share", dict.fromkeys(cards, pack(cards))), partial(_for_all, set(keys))
        )
        routed = collector.route(boxes)
        masked = await step("mask", {n: pack(letters) for n, letters in routed.items()})
        length = len(self._offer.vector) if self._offer else 0
        vectors = self._good(masked, lambda number, body: unpack_words(body, length))
        survivors = collector.survivors(vectors)
        reveals = await step("unmask", dict.fromkeys(survivors, pack_survivors(survivors)))
        total = collector.total(self._good(reveals, lambda number, body: unpack_reveal(body)))
        return total, len(survivors)

    def _good(self, answers: Mapping[int, A], read: Callable[[int, A], B]) -> dict[int, B]:
        """What the members answered. Whose answer makes no sense is named, and counts as silent."""
        good = {}
        for number, answer in answers.items():
            try:
                good[number] = read(number, answer)
            except SecureSumError as error:
                self.blame(number, str(error))
        return good

    def _within(self, number: int, exponent: int) -> int:
        """A member's range, if it is not far beyond one's own: it would round everybody else to nothing."""
        own = magnitude_exponent(self._offer.vector) if self._offer is not None else exponent
        if own > _NOTHING and exponent > own + _WIDER:
            raise SecureSumError(f"its values are within 2^{exponent}, and this peer's own within 2^{own}")
        return exponent

    def _signed(self, number: int, card: bytes, head: SealStep, plan: Plan) -> Keys:
        """A member's keys, if it signed them for this sum and they are keys; the others would refuse them."""
        said = Advertised.unpack(card)
        for public in (said.keys.sealing, said.keys.masking):
            KeyPair.fresh().agree(public, b"tried")
        about = statement(head.round, head.slot, self.number, plan, number, said.keys)
        if self.verify is not None and not self.verify(number, about, said.proof):
            raise SecureSumError("its keys are not signed by it for this sum")
        return said.keys

    async def _ask_all(
        self, asked: dict[int, tuple[SealStep, bytes]], until: float
    ) -> dict[int, tuple[SealAnswer, bytes]]:
        """The answers of those who gave one in time."""
        results = await asyncio.gather(*(self._ask(n, *what, until) for n, what in asked.items()))
        return {n: result for n, result in zip(asked, results, strict=True) if result is not None}

    async def _ask(
        self, number: int, head: SealStep, body: bytes, until: float
    ) -> tuple[SealAnswer, bytes] | None:
        member = self.membership.roster().get(number)
        if member is None:
            return None
        request = self._request(member.name, self.membership.address(member), head, body, until)
        return await _unless(request, lambda: not self.membership.alive(number), self.changed)

    async def _request(
        self, name: str, address: str, head: SealStep, body: bytes, until: float
    ) -> tuple[SealAnswer, bytes] | None:
        loop = asyncio.get_running_loop()
        while (left := until - loop.time()) > 0:
            try:
                answer, content = await self.transport.request(
                    name, address, head, body, timeout=left, most=self._largest_answer(head)
                )
            except UnreachableError as error:
                if error.sent:
                    return None
                await asyncio.sleep(min(0.05, left))
                continue
            except RefusedError as error:
                self.metrics.refused_by_others[error.reason] += 1
                return None
            self._count(name, received=content, sent=body)
            return (answer, content) if isinstance(answer, SealAnswer) else None
        return None

    def _largest_answer(self, head: SealStep) -> int:
        """Bytes that a member may answer: its masked vector, or a few for each member."""
        words = 4 * len(self._offer.vector) if self._offer is not None else 0
        return words + MOST_BYTES_PER_MEMBER * (1 + len(head.members))

    def _count(self, name: str, received: bytes, sent: bytes) -> None:
        self.metrics.bytes_in[name] += len(received)
        self.metrics.bytes_out[name] += len(sent)


class SummedInbox(SealedInbox):
    """A sealed inbox that never held more than the sum."""

    def __init__(self, total: Tree | None, members: int) -> None:
        row = torch.zeros(1, dtype=torch.long)
        parcels = [] if total is None else [Bundle(total, row, row, row)]
        super().__init__(parcels, 1)
        self._members = members

    def _counts(self) -> Tensor:
        return torch.tensor([self._members])


async def _unless(
    request: Awaitable[tuple[SealAnswer, bytes] | None], hopeless: Callable[[], bool], changed: Signal
) -> tuple[SealAnswer, bytes] | None:
    """The answer, or None as soon as the other side is known to be gone."""
    task = asyncio.ensure_future(request)
    try:
        while not task.done():
            if hopeless():
                return None
            waker = asyncio.ensure_future(changed.wait(1.0))
            await asyncio.wait({task, waker}, return_when=asyncio.FIRST_COMPLETED)
            waker.cancel()
        return task.result()
    finally:
        task.cancel()


def _for_all(roster: set[int], number: int, body: bytes) -> dict[int, bytes]:
    """A member's boxes, one for every other."""
    boxes = unpack(body)
    if boxes.keys() != roster - {number}:
        raise SecureSumError("it did not send shares to all others")
    return boxes


def _agreed(session: str, members: list[int], exponents: Mapping[int, int]) -> tuple[Plan, int]:
    """The plan for those who answered. The threshold is a majority of all who should be in the sum."""
    threshold = max(2, majority(len(members)))
    if len(exponents) < threshold:
        raise SecureSumError(
            f"only {len(exponents)} of {len(members)} members answered, and the threshold is "
            f"{threshold}: nothing is revealed"
        )
    exponent = max(exponents.values())
    present = tuple(sorted(exponents))
    return Plan(bytes.fromhex(session), present, threshold, FixedPoint.within(exponent)), exponent
