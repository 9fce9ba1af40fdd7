"""Who is there: heartbeats, where everyone can be reached, and how far they are.

A peer needs one member of its roster that it can reach, and asks it for the addresses of those whom it
misses. An address counts if its owner signed it: nobody can send a peer to any other host. Times are of the
local monotonic clock only, so that wrong wall clocks have no effect.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, Protocol, TypeAlias

from coterie.errors import RefusedError, UnreachableError, printable
from coterie.peer.exchange.metrics import Metrics
from coterie.peer.exchange.patience import Patience
from coterie.peer.exchange.signal import Signal
from coterie.peer.network.calling import Transport
from coterie.peer.network.messages import Hello, Terms, Whereabouts
from coterie.peer.trust.names import is_dialled

_log = logging.getLogger("coterie.peer")

_SIGN_EVERY = 60.0  # seconds
_MOVES_EVERY = 60.0  # seconds; more often nobody is followed to another address
_CLOCK = 180.0  # seconds by which the clocks of two peers may differ: a statement is at most a minute old
_MOST_NAMED = 10  # parts of an experiment in a refusal
_MOST_ADDRESSES = 100  # in one heartbeat
_MOST_ADDRESS_BYTES = 48 << 10  # so that they fit into a head

Sign: TypeAlias = Callable[[bytes], bytes]
"""From a message to a proof that this peer wrote it."""
Verify: TypeAlias = Callable[[int, bytes, bytes], bool]
"""Whether a proof shows that the peer of this number wrote a message."""


class Lending(Protocol):
    """A `TlsTransport`: connections that one side opens for the other one to ask on."""

    def lend(self, to: str, address: str) -> None: ...

    def borrows(self, owner: str) -> bool: ...


class Position(NamedTuple):
    """Where a peer is: in or before exchange `slot` of a round."""

    round: int
    slot: int

    @property
    def next(self) -> Position:
        """The exchange after this one."""
        return Position(self.round, self.slot + 1)


@dataclass
class Place:
    """This peer's own address, signed; again after a while, since a key may have been rotated."""

    name: str
    address: str
    sign: Sign | None
    _said: Whereabouts | None = None
    _signed: float = 0.0  # when

    def now(self) -> Whereabouts:
        now = asyncio.get_running_loop().time()
        if self._said is None or now >= self._signed + _SIGN_EVERY:
            at = Whereabouts(address=self.address, serial=int(time.time()))
            proof = self.sign(at.statement(self.name)) if self.sign else b""
            self._said = at.model_copy(update={"proof": base64.b64encode(proof).decode()})
            self._signed = now
        return self._said


START, NOT_STARTED = Position(0, 0), Position(-1, 0)


@dataclass(frozen=True)
class Acquaintance:
    """A member of the roster: what the card says.

    left: the first round without it; None: it stays. invited: it comes later than the others did.
    """

    name: str
    number: int
    address: str
    left: int | None = None
    invited: bool = False


@dataclass
class Presence:
    """What is known of a member's whereabouts."""

    seen: float = float("-inf")  # when it was last heard of, by the local clock
    position: Position = NOT_STARTED
    finished: bool = False
    since: int = 0  # the first round that it takes part in
    until: int | None = None  # the first round without it; None: it stays
    terms: Terms | None = None  # that it would like
    news: str = ""  # a digest of those it knows
    at: Whereabouts | None = None  # told by itself or by others; None: as on its card
    told: str = ""  # the address that it last told itself
    moved: float = float("-inf")  # when it last told another address than before
    trouble: str = ""  # why the last heartbeat failed
    kind: str = ""  # of that trouble: refused, not valid, or unreachable
    clock: float = 0.0  # seconds by which its clock is ahead of ours, if it is worth a word


class Reason(NamedTuple):
    """Why a member does not take part as it should: a word for alarms, and a sentence."""

    kind: str  # slow, silent, unreachable, refused, not valid, clock; empty: nothing is wrong
    text: str


@dataclass
class Membership:
    """roster: the current members, without this peer itself; asked again at every heartbeat.

    verify: whether a member signed its whereabouts; None where nobody can stand in between, as in one
    process. patience: for whom this peer still waits. lending: of this peer's connections to members who
    cannot dial it, and of theirs; None where everyone can be reached. told: what members say of sealed sums.
    """

    me: Callable[[], Hello]
    roster: Callable[[], Mapping[int, Acquaintance]]
    transport: Transport
    changed: Signal
    metrics: Metrics
    heartbeat: float
    suspect_after: float
    verify: Verify | None = None
    patience: Patience = field(default_factory=Patience)
    lending: Lending | None = None
    parts: Mapping[str, str] = field(
        default_factory=dict
    )  # digests of what this peer's experiment consists of
    presences: dict[int, Presence] = field(default_factory=dict)
    _serials: dict[int, int] = field(default_factory=dict)  # of the last statement that others passed on

    def member(self, name: str) -> Acquaintance | None:
        return next((member for member in self.roster().values() if member.name == name), None)

    def presence(self, number: int) -> Presence:
        presence = self.presences.get(number)
        if presence is None:
            presence = self.presences[number] = Presence()
        member = self.roster().get(number)
        if member is not None and member.left is not None and presence.until is None:
            presence.until, presence.finished = member.left, True
        return presence

    def address(self, member: Acquaintance) -> str:
        told = self.presence(member.number).at
        return member.address if told is None else told.address

    def alive(self, number: int) -> bool:
        return number in self.roster() and self._age(number) < self.suspect_after

    def awaited(self, number: int) -> bool:
        """Whether exchanges wait for a member: it lives, keeps up, and can be reached."""
        return self.alive(number) and self.patience.lasts(number)

    def reason(self, number: int) -> Reason:
        """Why a member is not waited for; or else what is wrong with its clock."""
        presence = self.presence(number)
        if presence.finished:
            return Reason("", "")
        if presence.kind in ("refused", "not valid"):
            return Reason(presence.kind, presence.trouble)
        if not self.alive(number):
            since = "" if presence.seen == float("-inf") else f" for {self._age(number):.0f} s"
            return Reason("silent", presence.trouble or f"silent{since}")
        if unreached := self.patience.conduct(number).unreached:
            return Reason("unreachable", unreached)
        if not self.patience.lasts(number):
            text = self.patience.slowness(number)
            return Reason(text.partition(" ")[0], text)
        if presence.clock:
            ahead = "ahead of" if presence.clock > 0 else "behind"
            return Reason("clock", f"its clock is {abs(presence.clock):.0f} s {ahead} ours")
        return Reason("", presence.trouble)

    def position(self, number: int) -> Position:
        return self.presence(number).position

    def heard(self, hello: Hello, member: Acquaintance) -> None:
        """Take in what a member says of itself and of others; refuse one of another experiment."""
        mine = self._self
        if hello.digest != mine.digest:
            raise RefusedError(
                "experiment",
                f"the experiment of {mine.sender} has digest {mine.digest}, that of {hello.sender} "
                f"{hello.digest}: everyone's copy of its file, and of the Python files that it names, must "
                f"agree{self._different(hello.parts)}",
            )
        if hello.number != member.number:
            raise RefusedError(
                "sender", f"{hello.sender} says it is number {hello.number}; its card says {member.number}"
            )
        presence = self.presence(member.number)
        position = Position(hello.round, hello.slot)
        news = not self.alive(member.number) or (presence.position, presence.finished) != (
            position,
            hello.finished,
        )
        if not self.alive(member.number):
            self.patience.answered(member.number)
        away = self._age(member.number)
        if self.suspect_after <= away < float("inf"):
            _log.warning("%s is back after %.0f s, in round %d", member.name, away, hello.round)
        presence.seen, presence.trouble, presence.kind = asyncio.get_running_loop().time(), "", ""
        self._compare_clocks(member, presence, hello.at)
        presence.position = position
        presence.since, presence.until = hello.since, hello.until
        presence.terms, presence.news = hello.terms, hello.news
        self._found(presence, hello.at)
        presence.finished |= hello.finished  # an answer from before may arrive later
        self._learn(hello.addresses)
        self._lend(member, hello.lend or not is_dialled(mine.at.address))
        if news:
            self.changed.fire()

    @cached_property
    def _self(self) -> Hello:
        """What this peer says of itself that never changes: its name, address and experiment."""
        return self.me()

    def _different(self, theirs: Mapping[str, str]) -> str:
        """Which parts of an experiment are not as this peer has them, if the other side says so much."""
        if not theirs or not self.parts:
            return ""
        named = [name for name in {**self.parts, **theirs} if self.parts.get(name) != theirs.get(name)]
        shown = ", ".join(map(printable, named[:_MOST_NAMED])) + (", ..." if len(named) > _MOST_NAMED else "")
        return f"; different: {shown}" if named else ""

    def _found(self, presence: Presence, at: Whereabouts) -> None:
        """Where a member says that it is. Whoever moves again and again would have us dial all the world."""
        now = asyncio.get_running_loop().time()
        if at.address != presence.told:
            if now < presence.moved + _MOVES_EVERY:
                return
            presence.moved, presence.told = now, at.address
        presence.at = at

    def wants_loan(self, member: Acquaintance) -> bool:
        """Whether this peer asks a member to open connections to it: it cannot reach it otherwise."""
        if self.lending is None:
            return False
        return bool(self.patience.conduct(member.number).unreached) or self.lending.borrows(member.name)

    def _lend(self, member: Acquaintance, wanted: bool) -> None:
        """Open connections to a member that cannot dial us, if we can dial it."""
        address = self.address(member)
        if wanted and self.lending is not None and is_dialled(address):
            self.lending.lend(member.name, address)

    def _compare_clocks(self, member: Acquaintance, presence: Presence, at: Whereabouts) -> None:
        """By the time at which it signed its address, if it says so. Only certificates depend on clocks."""
        ahead = at.serial - time.time() if at.serial else 0.0
        wrong = ahead if not -_CLOCK < ahead < _CLOCK else 0.0
        if wrong and not presence.clock:
            _log.warning("%s: its clock and ours differ by %.0f s", member.name, abs(wrong))
        presence.clock = wrong

    async def beat(self) -> None:
        """Heartbeats to everyone, for ever."""
        tasks: dict[int, asyncio.Task[None]] = {}
        try:
            while True:
                for number in filter(self._may_answer, self.roster()):
                    if number not in tasks or tasks[number].done():
                        tasks[number] = asyncio.create_task(self.ask(number))
                await asyncio.sleep(self.heartbeat)
                self.changed.fire()  # somebody may have become silent
        finally:
            for task in tasks.values():
                task.cancel()
            await asyncio.gather(*tasks.values(), return_exceptions=True)

    def _may_answer(self, number: int) -> bool:
        """Who has left and is silent does not come back."""
        presence = self.presence(number)
        return self.alive(number) or not presence.finished or presence.until is None

    def hello(self, member: Acquaintance) -> Hello:
        """What this peer says to a member."""
        return self.me().model_copy(update={"lend": self.wants_loan(member)})

    async def ask(self, number: int) -> None:
        """One heartbeat; a member that does not answer is only noted as such."""
        member = self.roster().get(number)
        if member is None:
            return
        presence = self.presence(number)
        try:
            answer, _ = await self.transport.request(
                member.name, self.address(member), self.hello(member), timeout=self.suspect_after
            )
            if not isinstance(answer, Hello):
                raise RefusedError("unexpected", f"{member.name} answered a hello with {answer.kind}")
            self.heard(answer, member)
            self.patience.answered(number)
        except RefusedError as error:
            self.metrics.refused_by_others[error.reason] += 1
            self._trouble(
                member, presence, "not valid" if "not valid" in error.text else "refused", error.text
            )
        except UnreachableError as error:
            presence.at = None  # an address that does not answer may be an old one: back to the card
            self._trouble(member, presence, "unreachable", str(error))
            if self.patience.unanswered(number, str(error)) and self.alive(number):
                _log.warning("%s is heard of, but no longer waited for: %s", member.name, error)

    def _trouble(self, member: Acquaintance, presence: Presence, kind: str, text: str) -> None:
        if presence.trouble != text and not presence.finished:  # who has finished goes away
            _log.warning("%s: %s", member.name, text)
        if not presence.finished:
            presence.trouble, presence.kind = text, kind

    def _learn(self, addresses: Mapping[str, Whereabouts]) -> None:
        for member in self.roster().values():
            told = addresses.get(member.name)
            presence = self.presence(member.number)
            if told and not self.alive(member.number) and presence.at is None and self._signed(told, member):
                presence.at = told

    def _signed(self, told: Whereabouts, member: Acquaintance) -> bool:
        """Whether it is the member's own word, and not an older one than is known."""
        if told.serial < self._serials.get(member.number, 0):
            return False
        if self.verify is not None:
            try:
                proof = base64.b64decode(told.proof, validate=True)
            except ValueError:
                return False
            if not self.verify(member.number, told.statement(member.name), proof):
                return False
        self._serials[member.number] = told.serial
        return True

    def missing(self) -> tuple[int, ...]:
        """Whose addresses this peer would like to know; of many, others at each heartbeat."""
        silent = [number for number in self.roster() if not self.alive(number)]
        start = int(asyncio.get_running_loop().time()) % max(1, len(silent))
        return tuple((silent[start:] + silent[:start])[:_MOST_ADDRESSES])

    def addresses(self, wanted: Iterable[int]) -> dict[str, Whereabouts]:
        """Where those of the wanted who live can be reached, in their own words."""
        found: dict[str, Whereabouts] = {}
        size = 0
        for number in wanted:
            member, at = self.roster().get(number), self.presence(number).at
            if member is None or at is None or not self.alive(number):
                continue
            size += len(at.model_dump_json()) + len(member.name) + 4
            if size > _MOST_ADDRESS_BYTES:
                break
            found[member.name] = at
        return found

    def _age(self, number: int) -> float:
        return asyncio.get_running_loop().time() - self.presence(number).seen


async def stop(task: asyncio.Task[None]) -> None:
    """Cancel a background task and wait for its end; if it ended with an error, raise that."""
    task.cancel()
    await asyncio.wait({task})
    with contextlib.suppress(asyncio.CancelledError):
        task.result()
