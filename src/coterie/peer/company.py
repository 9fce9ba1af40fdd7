"""Who is there to learn with: waiting for the others, going where they are, and being alone."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from coterie.errors import PeerError
from coterie.peer.exchange.membership import Membership
from coterie.peer.exchange.signal import Signal

_log = logging.getLogger("coterie.peer")
_WITNESSES = 2  # members who must say that they are far ahead, if there are as many


@dataclass(frozen=True)
class Waiting:
    """How long a peer waits for others, and for whom.

    seconds: for all, at the start; for anybody, later. alone: whether it goes on when nobody is there, after
    its first round. quorum: how many others are enough to go on after a restart, 0: all.
    """

    seconds: float
    alone: bool = False
    quorum: int = 0


@dataclass(frozen=True)
class Company:
    """name: of a member, by its number."""

    membership: Membership
    changed: Signal
    waiting: Waiting
    name: Callable[[int], str]

    @property
    def others(self) -> frozenset[int]:
        """All other members, but for those who have left, and those invited who are not there."""
        return frozenset(
            number
            for number, member in self.membership.roster().items()
            if self.membership.presence(number).until is None
            and (not member.invited or self.membership.alive(number))
        )

    async def gather(self, fresh: bool) -> None:
        """Wait for everyone at the start, fresh or after a restart; PeerError if nobody comes.

        Whoever comes late begins where it stopped; if the others did not wait, it hears so from the first
        that it sends to, and goes where they are.
        """
        enough = min(self.waiting.quorum, len(self.others)) or len(self.others)
        await self._until(
            lambda: len(self._alive()) >= (len(self.others) if fresh else enough) or self.in_round(1)
        )
        if self.others and not self._alive() and (fresh or not self.waiting.alone):
            raise PeerError(self._nobody())
        if missing := self.others - self._alive():
            _log.warning("going on without %s", self._names(missing))

    async def somebody(self, round: int) -> None:
        """Wait until anybody is there, unless the operator said that this peer may be alone.

        Who has finished does not come back: the last rounds of the slowest are its own.
        """
        if self.waiting.alone or not self.nobody:
            return
        _log.warning("nobody else is there: waiting %g s before round %d", self.waiting.seconds, round + 1)
        await self._until(lambda: bool(self._alive()))
        if not self._alive():
            raise PeerError(self._nobody())

    @property
    def nobody(self) -> bool:
        """Whether there are others, of whom none is there, and not because all have finished."""
        return bool(self.others) and not self._alive() and not self._all_finished()

    def ahead(self, round: int, last: int) -> int:
        """The round to go on with, so as to meet the others: `round`, or a later one, at most `last`.

        One member alone is not believed where another could say the same: it might lie.
        """
        there_before = [n for n in self.busy() if self.membership.presence(n).since <= round]
        said = sorted(((self.membership.position(n).round, n) for n in there_before), reverse=True)
        witnesses = said[:_WITNESSES]
        there = max(round, min(witnesses[-1][0] - 1, last)) if witnesses else round
        if there > round:
            who = self._names(number for _, number in witnesses)
            _log.warning("from round %d to %d, where %s are", round + 1, there + 1, who)
        elif said and said[0][0] - 1 > round:
            far, who = said[0][0], self.name(said[0][1])
            _log.warning("%s alone says that it is in round %d, and is not followed", who, far + 1)
        return there

    def busy(self) -> list[int]:
        """The living who are not finished."""
        alive = filter(self.membership.alive, self.membership.roster())
        return [number for number in alive if not self.membership.presence(number).finished]

    def _alive(self) -> frozenset[int]:
        return frozenset(filter(self.membership.alive, self.others))

    def in_round(self, round: int) -> bool:
        """Whether others have come to this round without us."""
        return any(self.membership.position(number).round >= round for number in self._alive())

    def _all_finished(self) -> bool:
        return all(self.membership.presence(number).finished for number in self.membership.roster())

    async def _until(self, condition: Callable[[], bool]) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + self.waiting.seconds
        while loop.time() < until and not condition():
            await self.changed.wait(until - loop.time())

    def _names(self, numbers: Iterable[int]) -> str:
        return ", ".join(sorted(map(self.name, numbers)))

    def _nobody(self) -> str:
        members = self.membership.roster().items()
        trouble = {member.name: self.membership.presence(number).trouble for number, member in members}
        said = "; ".join(f"{name}: {text}" for name, text in trouble.items() if text)
        return (
            f"none of the {len(trouble)} members of the roster answered in {self.waiting.seconds:g} s "
            f"({said or 'no address answered'}); check their addresses and that they run. With alone = true "
            "in peer.toml this peer would go on by itself after its first round"
        )
