"""The collector of a sealed exchange: it asks the members step by step, and names those who lie.

Whoever is silent at a step, or answers nonsense, has dropped out; above the threshold the sum is still found.
Where a member's shares are of no use to others, these would be lost with it: so the sum is begun again
without it, in the same exchange. Members allow that as long as they have not lifted the masks of the first
(see `Sealing`). Who lied is left out of this peer's sums for a while, next time for twice as long.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from torch import Tensor

from coterie.errors import RefusedError, SecureSumError, UnreachableError
from coterie.peer.exchange.membership import Position
from coterie.peer.exchange.sealed.bodies import (
    MOST_BYTES_PER_MEMBER,
    Advertised,
    pack,
    pack_claim,
    pack_letters,
    statement,
    unpack_proof,
    unpack_reveal,
    unpack_shared,
    unpack_words,
)
from coterie.peer.exchange.sealed.party import Party
from coterie.peer.exchange.sealed.vouching import listed, sums_of
from coterie.peer.exchange.signal import Signal
from coterie.peer.network.messages import Claim, Had, Head, SealAnswer, SealStep, Voucher
from coterie.protocol.ledger import Sum
from coterie.protocol.secure_sum import (
    FixedPoint,
    Keys,
    PairwiseCollector,
    Plan,
    magnitude_exponent,
    majority,
)
from coterie.protocol.secure_sum.masks import KeyPair

_log = logging.getLogger("coterie.peer")

MOST_ATTEMPTS = 3
"""How often a sum may be begun in one exchange."""

# By when a step must be answered, as parts of the time that is left when a sum begins: whoever is silent at
# one step must not use up the time of the next.
_DUE = {"measure": 0.5, "advertise": 0.6, "share": 0.7, "mask": 0.85, "claim": 0.95, "unmask": 1.0}
_NOTHING = -64  # the exponent of a vector of zeros
_WIDER = 12  # by how many powers of two a member's values may be larger than one's own
_LONGEST = 64  # rounds for which somebody is left out at most
_BELIEVED = 2  # members who must say that this peer had a sum of which it does not know

A = TypeVar("A")
B = TypeVar("B")


class _SpoiledError(SecureSumError):
    """Some members cannot use what others sent them; without the accused the sum may be had."""


@dataclass
class LeftOut:
    """Who is left out of this peer's sealed sums, and for how long: twice as long each time.

    shortest: in rounds. It is as long as sums count: whoever came back earlier would be in some sums and not
    in others, which together say too much about its model, so that honest members would refuse them.
    """

    shortest: int
    _times: Counter[int] = field(default_factory=Counter)
    _until: dict[int, int] = field(default_factory=dict)  # the last round without it

    def now(self, number: int, round: int) -> bool:
        return round <= self._until.get(number, -1)

    def lied(self, number: int, round: int) -> int:
        """For how many rounds after this one it is left out; 0 if it is so already."""
        if self._until.get(number, -1) > round:
            return 0
        rounds = max(self.shortest, min(self.shortest << self._times[number], _LONGEST))
        self._times[number] += 1
        self._until[number] = round + rounds
        return rounds


@dataclass
class Collecting:
    """One peer as a collector."""

    party: Party
    left_out: LeftOut = field(init=False)
    _later: set[asyncio.Future[Any]] = field(default_factory=set)  # vouchers that are no longer needed

    def __post_init__(self) -> None:
        self.left_out = LeftOut(self.party.ledger.bound.rounds)

    async def sum(
        self, members: list[int], at: Position, until: float, own: Tensor, group: int
    ) -> tuple[Tensor, int]:
        """The sum of the members' vectors, of those who answer, and how many these are.

        own: this peer's vector, whose length and size tell what is plausible. group: how many members there
        should be.
        """
        asked = [number for number in members if not self.left_out.now(number, at.round)]
        threshold = max(self.party.ledger.bound.smallest, majority(group))
        for _ in range(MOST_ATTEMPTS):
            attempt = _Attempt(self, at, asked, group, threshold, until, own)
            try:
                return await attempt.sum()
            except _SpoiledError as error:
                asked = [number for number in asked if number not in error.accused]
                if len(asked) < threshold:
                    raise
        raise SecureSumError(f"members spoiled it {MOST_ATTEMPTS} times")

    def book(self, at: Position, members: Collection[int]) -> tuple[Had, ...]:
        """Enter a sum into the ledger before its masks are lifted, or do without it; what it had before."""
        ledger, number = self.party.ledger, self.party.number
        if text := ledger.refusal(number, at.round, members):
            raise SecureSumError(text)
        had = listed(ledger.had(number, at.round))
        ledger.note(number, at.round, members)
        return had

    def good(self, at: Position, answers: Mapping[int, A], read: Callable[[int, A], B]) -> dict[int, B]:
        """What the members answered. Whose answer makes no sense is named, and counts as silent."""
        good = {}
        for number, answer in answers.items():
            try:
                good[number] = read(number, answer)
            except SecureSumError as error:
                self.accuse(number, at, str(error))
        return good

    def accuse(self, number: int, at: Position, text: str) -> None:
        self.party.blame(number, text)
        if rounds := self.left_out.lied(number, at.round):
            _log.warning("%s is left out of sealed sums for %d rounds", self.party.called(number), rounds)

    async def ask_all(
        self, asked: dict[int, tuple[SealStep, bytes]], until: float, most: int
    ) -> dict[int, tuple[SealAnswer, bytes]]:
        """The answers, of at most so many bytes, of those who gave one in time."""
        results = await asyncio.gather(*(self._ask(n, *what, until, most) for n, what in asked.items()))
        found = {}
        for number, result in zip(asked, results, strict=True):
            if result is not None and isinstance(result[0], SealAnswer):
                found[number] = result[0], result[1]
        return found

    async def vouchers(self, claim: Claim, until: float) -> tuple[dict[int, bytes], set[Sum]]:
        """Who signed a claim, as soon as these are enough; and what two members say that it does not say.

        Who answers later is let do so: to break off a question would cost its connection.
        """
        others, statement = self.party.others(self.party.number, claim.round), claim.statement()
        asking = {asyncio.ensure_future(self._ask(n, claim, b"", until, 0)): n for n in others}
        proofs: dict[int, bytes] = {}
        missing: Counter[Sum] = Counter()
        while asking and len(proofs) < majority(len(others)):
            done, _ = await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                number, answer = asking.pop(task), task.result()
                if answer is None or not isinstance(answer[0], Voucher):
                    continue
                missing.update(sums_of(answer[0].missing))
                proof = unpack_proof(answer[0].proof)
                if not answer[0].missing and self.party.is_signed(number, statement, proof):
                    proofs[number] = proof
        self._later |= asking.keys()
        for task in asking:
            task.add_done_callback(self._later.discard)
        return proofs, {one for one, times in missing.items() if times >= _BELIEVED}

    async def _ask(
        self, number: int, head: SealStep | Claim, body: bytes, until: float, most: int
    ) -> tuple[Head, bytes] | None:
        membership = self.party.membership
        member = membership.roster().get(number)
        if member is None:
            return None
        request = self._request(member.name, membership.address(member), head, body, until, most)
        return await _unless(request, lambda: not membership.awaited(number), self.party.changed)

    async def _request(
        self, name: str, address: str, head: SealStep | Claim, body: bytes, until: float, most: int
    ) -> tuple[Head, bytes] | None:
        loop, metrics = asyncio.get_running_loop(), self.party.metrics
        while (left := until - loop.time()) > 0:
            try:
                answer, content = await self.party.transport.request(
                    name, address, head, body, timeout=left, most=most
                )
            except UnreachableError as error:
                if error.sent:
                    return None
                await asyncio.sleep(min(0.05, left))
                continue
            except RefusedError as error:
                metrics.refused_by_others[error.reason] += 1
                return None
            metrics.bytes_in[name] += len(content)
            metrics.bytes_out[name] += len(body)
            return answer, content
        return None


@dataclass
class _Attempt:
    """One secure sum. asked: of whom. group: how many should be in it."""

    collecting: Collecting
    at: Position
    asked: list[int]
    group: int
    threshold: int
    until: float
    own: Tensor
    _head: SealStep = field(init=False)
    _start: float = field(init=False)

    def __post_init__(self) -> None:
        self._start = asyncio.get_running_loop().time()
        self._head = SealStep(
            sender=self.collecting.party.name,
            round=self.at.round,
            slot=self.at.slot,
            step="measure",
            session=secrets.token_hex(16),
        )

    async def sum(self) -> tuple[Tensor, int]:
        collector = PairwiseCollector(await self._agree())
        keys, cards = await self._keys(collector)
        answers = self._good(
            await self._step("share", dict.fromkeys(keys, pack(cards))),
            lambda number, answer: unpack_shared(answer[1], keys, number),
        )
        routed = collector.route(
            {n: boxes for n, (boxes, _) in answers.items()},
            {n: promise for n, (_, promise) in answers.items()},
        )
        letters = {n: pack_letters(boxes, collector.promised(n)) for n, boxes in routed.items()}
        masked = await self._step("mask", letters)
        self._judge(masked, set(letters))
        survivors = collector.survivors(
            self._good(masked, lambda number, answer: unpack_words(answer[1], len(self.own)))
        )
        vouched = await self._vouched(survivors)
        reveals = await self._step("unmask", dict.fromkeys(survivors, vouched))
        shares = self._good(
            reveals, lambda number, answer: collector.checked(number, unpack_reveal(answer[1]))
        )
        try:
            return collector.total(shares), len(survivors)
        except SecureSumError as error:  # too late for another sum: the masks of this one may be lifted
            for number in sorted(error.accused):
                self.collecting.accuse(number, self.at, str(error))
            raise

    async def _vouched(self, survivors: Collection[int]) -> bytes:
        """The claim to the sum over these members, with the signatures of more than half of all."""
        me, head, asked = self.collecting.party, self._head, sorted(survivors)
        claim = Claim(
            sender=me.name,
            round=head.round,
            slot=head.slot,
            session=head.session,
            members=tuple(asked),
            had=self.collecting.book(self.at, asked),
        )
        until = self._start + _DUE["claim"] * (self.until - self._start)
        proofs, forgotten = await self.collecting.vouchers(claim, until)
        others = len(me.others(me.number, head.round))
        if forgotten and len(proofs) < majority(others):  # before a restart
            for one in forgotten:
                me.ledger.note(me.number, one.round, one.members)
            claim = claim.model_copy(update={"had": self.collecting.book(self.at, asked)})
            proofs, _ = await self.collecting.vouchers(claim, until)
        if len(proofs) < majority(others):
            raise SecureSumError(
                f"only {len(proofs)} of {others} members vouch for it, and {majority(others)} must: nothing "
                "is revealed"
            )
        return pack_claim(claim, proofs)

    async def _agree(self) -> Plan:
        """The plan for those who answer, within the largest of their ranges."""
        answered = self._good(
            await self._step("measure", dict.fromkeys(self.asked, b"")),
            lambda number, answer: self._within(answer[0].exponent),
        )
        if len(answered) < self.threshold:
            raise SecureSumError(
                f"only {len(answered)} of {self.group} members answered, and the threshold is "
                f"{self.threshold}: nothing is revealed"
            )
        exponent, present = max(answered.values()), tuple(sorted(answered))
        more = {"members": present, "threshold": self.threshold, "exponent": exponent}
        self._head = self._head.model_copy(update=more)
        session = bytes.fromhex(self._head.session)
        return Plan(session, present, self.threshold, FixedPoint.within(exponent))

    async def _keys(self, collector: PairwiseCollector) -> tuple[dict[int, Keys], dict[int, bytes]]:
        """The members' keys, and the signed cards with them, for all members."""
        answers = await self._step("advertise", dict.fromkeys(collector.plan.members, b""))
        keys = self._good(answers, lambda number, answer: self._signed(number, answer[1], collector.plan))
        seen = Counter(public for each in keys.values() for public in (each.sealing, each.masking))
        keys = self._good(keys, lambda number, each: _its_own(each, seen))
        return collector.roster(keys), {number: answers[number][1] for number in keys}

    def _signed(self, number: int, card: bytes, plan: Plan) -> Keys:
        """A member's keys, if it signed them for this sum and they are keys; the others would refuse them."""
        said = Advertised.unpack(card)
        for public in (said.keys.sealing, said.keys.masking):
            KeyPair.fresh().agree(public, b"tried")
        head, me = self._head, self.collecting.party
        about = statement(head.round, head.slot, me.number, plan, number, said.keys)
        if not me.is_signed(number, about, said.proof):
            raise SecureSumError("its keys are not signed by it for this sum")
        return said.keys

    def _judge(self, masked: dict[int, tuple[SealAnswer, bytes]], sharers: set[int]) -> None:
        """Begin again without the guilty, if somebody complains about shares that it cannot use."""
        complaints = self._good(
            {n: answer for n, (answer, _) in masked.items() if answer.accused},
            lambda number, answer: _accused(answer, sharers - {number}),
        )
        guilty = judged(complaints)
        for number, text in guilty.items():
            self.collecting.accuse(number, self.at, text)
        if guilty:
            names = ", ".join(map(str, sorted(guilty)))
            raise _SpoiledError(f"members {names} spoiled it, and too few are left", guilty)

    def _within(self, exponent: int) -> int:
        """A member's range, if it is not far beyond one's own: it would round everybody else to nothing."""
        own = magnitude_exponent(self.own)
        if text := self.collecting.party.ledger.bound.beyond(exponent):
            raise SecureSumError(text)
        if own > _NOTHING and exponent > own + _WIDER:
            raise SecureSumError(f"its values are within 2^{exponent}, and this peer's own within 2^{own}")
        return exponent

    def _good(self, answers: Mapping[int, A], read: Callable[[int, A], B]) -> dict[int, B]:
        return self.collecting.good(self.at, answers, read)

    async def _step(self, name: str, bodies: Mapping[int, bytes]) -> dict[int, tuple[SealAnswer, bytes]]:
        due = self._start + _DUE[name] * (self.until - self._start)
        head = self._head.model_copy(update={"step": name})
        most = 4 * len(self.own) + MOST_BYTES_PER_MEMBER * (1 + len(self.asked))
        return await self.collecting.ask_all({n: (head, body) for n, body in bodies.items()}, due, most)


def judged(complaints: Mapping[int, Collection[int]]) -> dict[int, str]:
    """Who is guilty, and why, when members say that others' shares are of no use.

    complaints: by who complains, about whom. Two complaints weigh more than one word. Where one stands
    against one, nobody can tell which of the two lies, and both are left out.
    """
    pairs = {(plaintiff, other) for plaintiff, others in complaints.items() for other in others}
    guilty: dict[int, str] = {}
    for side, text in ((1, "its shares are of no use to several members"), (0, "it complains about several")):
        often = {number for number, times in Counter(pair[side] for pair in pairs).items() if times > 1}
        guilty |= dict.fromkeys(sorted(often), text)
        pairs = {pair for pair in pairs if not often & set(pair)}
    for plaintiff, other in sorted(pairs):
        text = f"member {plaintiff} says that the shares of member {other} are of no use; one of them lies"
        guilty |= {plaintiff: text, other: text}
    return guilty


def _accused(answer: SealAnswer, others: set[int]) -> tuple[int, ...]:
    if not set(answer.accused) <= others:
        raise SecureSumError("it complains about members that sent it nothing")
    return answer.accused


def _its_own(keys: Keys, seen: Mapping[bytes, int]) -> Keys:
    """A member's keys, if no key is there twice. Nobody knows another's before all have answered."""
    if seen[keys.sealing] > 1 or seen[keys.masking] > 1:
        raise SecureSumError("two of its keys are equal, or equal to those of another member")
    return keys


async def _unless(
    request: Awaitable[tuple[Head, bytes] | None], hopeless: Callable[[], bool], changed: Signal
) -> tuple[Head, bytes] | None:
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
