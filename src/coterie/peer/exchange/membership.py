"""Who is there: heartbeats, where everyone can be reached, and how far they are.

A peer needs one member of its roster that it can reach; the addresses of the others spread with the
heartbeats. Times are of the local monotonic clock only, so that wrong wall clocks have no effect.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from coterie.errors import RefusedError, UnreachableError
from coterie.peer.exchange.metrics import Metrics
from coterie.peer.exchange.signal import Signal
from coterie.peer.network.calling import Transport
from coterie.peer.network.messages import Hello

_log = logging.getLogger("coterie.peer")

_MOST_ADDRESSES = 150  # in one heartbeat


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
    address: str | None = None  # told by itself or by others; None: as on its card
    trouble: str = ""  # why the last heartbeat failed


@dataclass
class Membership:
    """roster: the current members, without this peer itself; asked again at every heartbeat."""

    me: Callable[[], Hello]
    roster: Callable[[], Mapping[int, Acquaintance]]
    transport: Transport
    changed: Signal
    metrics: Metrics
    heartbeat: float
    suspect_after: float
    presences: dict[int, Presence] = field(default_factory=dict)

    def member(self, name: str) -> Acquaintance | None:
        return next((member for member in self.roster().values() if member.name == name), None)

    def presence(self, number: int) -> Presence:
        presence = self.presences.get(number)
        if presence is None:
            presence = self.presences[number] = Presence()
        return presence

    def address(self, member: Acquaintance) -> str:
        return self.presence(member.number).address or member.address

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
        presence.seen, presence.trouble = asyncio.get_running_loop().time(), ""
        presence.position, presence.address = position, hello.address
        presence.finished |= hello.finished  # an answer from before may arrive later
        self._learn(hello.addresses)
        if news:
            self.changed.fire()

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
            presence.address = None  # an address that does not answer may be an old one: back to the card
            self._trouble(member, presence, str(error))

    def _trouble(self, member: Acquaintance, presence: Presence, text: str) -> None:
        if presence.trouble != text and not presence.finished:  # who has finished goes away
            presence.trouble = text
            _log.warning("%s: %s", member.name, text)

    def _learn(self, addresses: Mapping[str, str]) -> None:
        for member in self.roster().values():
            told = addresses.get(member.name)
            presence = self.presence(member.number)
            if told and not self.alive(member.number) and presence.address is None:
                presence.address = told

    def addresses(self) -> dict[str, str]:
        """Where the living can be reached, for the others; not more than a message may hold."""
        living = [member for member in self.roster().values() if self.alive(member.number)]
        return {member.name: self.address(member) for member in living[:_MOST_ADDRESSES]}

    def _age(self, number: int) -> float:
        return asyncio.get_running_loop().time() - self.presence(number).seen


async def stop(task: asyncio.Task[None]) -> None:
    """Cancel a background task and wait for its end; if it ended with an error, raise that."""
    task.cancel()
    await asyncio.wait({task})
    with contextlib.suppress(asyncio.CancelledError):
        task.result()
