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
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from coterie.errors import RefusedError, UnreachableError
from coterie.peer.exchange.metrics import Metrics
from coterie.peer.exchange.signal import Signal
from coterie.peer.network.calling import Transport
from coterie.peer.network.messages import Hello, Whereabouts

_log = logging.getLogger("coterie.peer")

_MOVES_EVERY = 60.0  # seconds; more often nobody is followed to another address
_MOST_ADDRESSES = 100  # in one heartbeat
_MOST_ADDRESS_BYTES = 48 << 10  # so that they fit into a head

Sign: TypeAlias = Callable[[bytes], bytes]
"""From a message to a proof that this peer wrote it."""
Verify: TypeAlias = Callable[[int, bytes, bytes], bool]
"""Whether a proof shows that the peer of this number wrote a message."""


class Position(NamedTuple):
    """Where a peer is: in or before exchange `slot` of a round."""

    round: int
    slot: int

    @property
    def next(self) -> Position:
        """The exchange after this one."""
        return Position(self.round, self.slot + 1)


START, NOT_STARTED = Position(0, 0), Position(-1, 0)


@dataclass(frozen=True)
class Acquaintance:
    """A member of the roster: what the card says."""

    name: str
    number: int
    address: str


@dataclass
class Presence:
    """What is known of a member's whereabouts."""

    seen: float = float("-inf")  # when it was last heard of, by the local clock
    position: Position = NOT_STARTED
    finished: bool = False
    at: Whereabouts | None = None  # told by itself or by others; None: as on its card
    told: str = ""  # the address that it last told itself
    moved: float = float("-inf")  # when it last told another address than before
    trouble: str = ""  # why the last heartbeat failed


@dataclass
class Membership:
    """roster: the current members, without this peer itself; asked again at every heartbeat.

    verify: whether a member signed its whereabouts; None where nobody can stand in between, as in one
    process.
    """

    me: Callable[[], Hello]
    roster: Callable[[], Mapping[int, Acquaintance]]
    transport: Transport
    changed: Signal
    metrics: Metrics
    heartbeat: float
    suspect_after: float
    verify: Verify | None = None
    presences: dict[int, Presence] = field(default_factory=dict)
    _serials: dict[int, int] = field(default_factory=dict)  # of the last statement that others passed on

    def member(self, name: str) -> Acquaintance | None:
        return next((member for member in self.roster().values() if member.name == name), None)

    def presence(self, number: int) -> Presence:
        presence = self.presences.get(number)
        if presence is None:
            presence = self.presences[number] = Presence()
        return presence

    def address(self, member: Acquaintance) -> str:
        told = self.presence(member.number).at
        return member.address if told is None else told.address

    def alive(self, number: int) -> bool:
        return number in self.roster() and self._age(number) < self.suspect_after

    def position(self, number: int) -> Position:
        return self.presence(number).position

    def heard(self, hello: Hello, member: Acquaintance) -> None:
        """Take in what a member says of itself and of others; refuse one of another experiment."""
        mine = self.me()
        if hello.digest != mine.digest:
            raise RefusedError(
                "experiment",
                f"the experiment of {mine.sender} has digest {mine.digest}, that of {hello.sender} "
                f"{hello.digest}: everyone's copy of its file, and of the Python files that it names, must "
                "agree",
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
        away = self._age(member.number)
        if self.suspect_after <= away < float("inf"):
            _log.warning("%s is back after %.0f s, in round %d", member.name, away, hello.round)
        presence.seen, presence.trouble = asyncio.get_running_loop().time(), ""
        presence.position = position
        self._found(presence, hello.at)
        presence.finished |= hello.finished  # an answer from before may arrive later
        self._learn(hello.addresses)
        if news:
            self.changed.fire()

    def _found(self, presence: Presence, at: Whereabouts) -> None:
        """Where a member says that it is. Whoever moves again and again would have us dial all the world."""
        now = asyncio.get_running_loop().time()
        if at.address != presence.told:
            if now < presence.moved + _MOVES_EVERY:
                return
            presence.moved, presence.told = now, at.address
        presence.at = at

    async def beat(self) -> None:
        """Heartbeats to everyone, for ever."""
        tasks: dict[int, asyncio.Task[None]] = {}
        try:
            while True:
                for number in self.roster():
                    if number not in tasks or tasks[number].done():
                        tasks[number] = asyncio.create_task(self.ask(number))
                await asyncio.sleep(self.heartbeat)
                self.changed.fire()  # somebody may have become silent
        finally:
            for task in tasks.values():
                task.cancel()
            await asyncio.gather(*tasks.values(), return_exceptions=True)

    async def ask(self, number: int) -> None:
        """One heartbeat; a member that does not answer is only noted as such."""
        member = self.roster().get(number)
        if member is None:
            return
        presence = self.presence(number)
        try:
            answer, _ = await self.transport.request(
                member.name, self.address(member), self.me(), timeout=self.suspect_after
            )
            if not isinstance(answer, Hello):
                raise RefusedError("unexpected", f"{member.name} answered a hello with {answer.kind}")
            self.heard(answer, member)
        except RefusedError as error:
            self.metrics.refused_by_others[error.reason] += 1
            self._trouble(member, presence, error.text)
        except UnreachableError as error:
            presence.at = None  # an address that does not answer may be an old one: back to the card
            self._trouble(member, presence, str(error))

    def _trouble(self, member: Acquaintance, presence: Presence, text: str) -> None:
        if presence.trouble != text and not presence.finished:  # who has finished goes away
            presence.trouble = text
            _log.warning("%s: %s", member.name, text)

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
