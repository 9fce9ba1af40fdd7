"""What members tell each other beside models: signed news, and terms that change when a quorum wants it."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Protocol

from coterie.errors import ConfigError, RefusedError, UnreachableError
from coterie.peer.exchange.membership import Acquaintance, Membership
from coterie.peer.network.calling import Transport
from coterie.peer.network.messages import Body, News, Terms

_log = logging.getLogger("coterie.peer")

MOST_NEWS = 1 << 20  # bytes


class Bulletin(Protocol):
    """What a peer knows and believes: `trust.news.News`, or nothing in one process."""

    @property
    def digest(self) -> str: ...

    def text(self) -> bytes: ...

    def read(self, text: bytes) -> None:
        """Take in what others know; ConfigError if it is no news."""

    def leave(self, round: int) -> None:
        """Tell that this peer has left: the first round without it."""

    def told(self, members: Collection[str], everyone: Collection[str]) -> None:
        """These have what this peer knows, of everyone who is there."""


class NoNews:
    """Where nothing needs to be signed, as in one process: a `Bulletin` on which nothing stands."""

    digest = ""

    def text(self) -> bytes:
        return b""

    def read(self, text: bytes) -> None: ...

    def leave(self, round: int) -> None: ...

    def told(self, members: Collection[str], everyone: Collection[str]) -> None: ...


@dataclass
class Gazette:
    """Passes news on to whoever has other news."""

    name: str
    bulletin: Bulletin
    membership: Membership
    transport: Transport
    _tried: dict[int, tuple[str, str]] = field(default_factory=dict)  # by member: our news and its own
    _has: dict[int, str] = field(default_factory=dict)  # by member: of our news, what it has got

    async def spread(self, timeout: float) -> None:
        """Once, to all who are there."""
        alive = {n: m for n, m in self.membership.roster().items() if self.membership.alive(n)}
        for number, member in alive.items():
            ours, theirs = self.bulletin.digest, self.membership.presence(number).news
            if ours == theirs:
                self._has[number] = ours
            elif self._tried.get(number) != (ours, theirs):
                self._tried[number] = ours, theirs
                await self._exchange(member, timeout)
        ours = self.bulletin.digest
        has = [member.name for number, member in alive.items() if self._has.get(number) == ours]
        self.bulletin.told(has, [member.name for member in alive.values()])

    async def _exchange(self, member: Acquaintance, timeout: float) -> None:
        ours = self.bulletin.digest
        try:
            answer, body = await self.transport.request(
                member.name,
                self.membership.address(member),
                News(sender=self.name),
                self.bulletin.text(),
                timeout=timeout,
                most=MOST_NEWS,
            )
            if isinstance(answer, News):
                self._has[member.number] = ours
                self.bulletin.read(body)
        except UnreachableError:
            self._tried.pop(member.number, None)
        except (RefusedError, ConfigError) as error:
            _log.warning("news of %s: %s", member.name, error)

    async def leave(self, round: int, timeout: float) -> None:
        """Tell all who are there that this peer has left."""
        self.bulletin.leave(round)
        await self.spread(timeout)

    def answer(self, body: Body) -> tuple[News, bytes]:
        try:
            self.bulletin.read(body if isinstance(body, bytes) else body.read_bytes())
        except ConfigError as error:
            raise RefusedError("malformed", str(error)) from None
        return News(sender=self.name), self.bulletin.text()


@dataclass
class Agreement:
    """Terms in force. They change when more than half of all members, this peer included, want another value.

    wanted: by this peer's own files. adopt: puts new terms in force.
    """

    wanted: Callable[[], Terms]
    membership: Membership
    adopt: Callable[[Terms], None]
    now: Terms

    def look(self) -> None:
        """Between rounds."""
        own, roster = self.wanted(), self.membership.roster()
        members = {number: self.membership.presence(number) for number in roster}
        staying = [presence for presence in members.values() if presence.until is None]
        votes = [own, *(presence.terms for presence in staying if presence.terms is not None)]
        new = {}
        for name in ("rounds", "lr", "deadline"):
            value, count = Counter(getattr(terms, name) for terms in votes).most_common(1)[0]
            if 2 * count > len(staying) + 1 and value != getattr(self.now, name):
                new[name] = value
        if new:
            said = ", ".join(
                f"{name} {getattr(self.now, name):g} -> {value:g}" for name, value in new.items()
            )
            _log.warning("a quorum of members wants another experiment: %s", said)
            self.now = self.now.model_copy(update=new)
            self.adopt(self.now)
