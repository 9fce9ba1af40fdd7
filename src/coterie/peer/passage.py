"""Coming into a running experiment, and leaving it: in a round that everyone else knows before it begins.

A peer that comes late names a round that nobody has reached, and asks all who are there. When all have
answered from before it, they wait for this peer in that round as for everyone else; nobody has waited until
then. Leaving is the same with a last round. So all have the same graph in every round, and the numbers are
those of the simulator with `faults.joins` and `faults.leaves`.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from coterie.errors import PeerError
from coterie.peer.company import Company
from coterie.peer.exchange.membership import Membership
from coterie.topology import Attendance

_log = logging.getLogger("coterie.peer")

NEVER = 10**9  # the first round of who has not come, or does not know yet when it will
_AHEAD = 2  # rounds; doubled while others are faster
_FAREWELLS = 10  # last rounds that are tried until nothing is left to hand over


@dataclass
class Passage:
    """since, until: the first round of this peer, and the first one without it; None: it stays."""

    number: int
    rounds: int
    attendance: Attendance
    membership: Membership
    company: Company
    in_step: bool
    since: int = 0
    until: int | None = None
    _farewells: int = 0

    def look(self) -> None:
        """Take over who is there. Between rounds: within one, everyone's degree must stay what it was."""
        roster, joins, leaves = self.membership.roster(), self.attendance.joins, self.attendance.leaves
        for number in range(self.attendance.nodes):
            if number == self.number or number == self.attendance.hub:
                continue
            presence, member = self.membership.presence(number), roster.get(number)
            heard = presence.seen > float("-inf")
            joins[number] = presence.since if member and (heard or not member.invited) else NEVER
            if presence.until is not None:  # who goes at its own pace is sent nothing from now on
                leaves[number] = presence.until if self.in_step else 0
        self._own()

    def _own(self) -> None:
        self.attendance.joins[self.number] = self.since
        if self.until is not None:
            self.attendance.leaves[self.number] = self.until

    async def enter(self, at: int) -> int:
        """The first round of a peer that would begin with round `at`, while others have begun without it."""
        ahead = _AHEAD
        while True:
            first = max(self._reached(), at) + ahead
            if first >= self.rounds:
                self.since = 0
                return at  # the end is near: it goes where the others are, as who was away does
            self.since = first
            if await self._all_before(first):
                _log.warning("this peer takes part from round %d on", first + 1)
                return first
            ahead *= 2

    def begin(self) -> None:
        """Take part from the start: nobody has begun yet."""
        if self.since == NEVER:
            self.since = 0

    async def leave(self, at: int) -> None:
        """Agree on the last round of a peer that would go on with round `at`."""
        ahead = _AHEAD if self.in_step else 0
        while True:
            last = max(self._reached(), at - 1) + ahead if self.in_step else at
            self.until = min(last + 1, self.rounds)
            if await self._all_before(last) or not self.in_step:
                _log.warning("this peer leaves after round %d", self.until)
                return
            ahead *= 2

    async def leave_again(self, at: int) -> None:
        """Some of what it held came back: agree on another last round."""
        self._farewells += 1
        if self._farewells > _FAREWELLS:
            raise PeerError(
                "this peer cannot leave yet: nobody takes its push-sum mass, or it does not know whether "
                "they did; wait until others are there, and run it again"
            )
        await self.leave(at)

    def over(self, at: int) -> bool:
        """Whether the round `at` is one without this peer."""
        return self.until is not None and at >= self.until

    def _reached(self) -> int:
        return max((self.membership.position(number).round for number in self.company.busy()), default=-1)

    async def _all_before(self, round: int) -> bool:
        """Tell everyone who is there; whether they had not reached a round when they heard of it."""
        alive = [number for number in self.membership.roster() if self.membership.alive(number)]
        await asyncio.gather(*(self.membership.ask(number) for number in alive))
        return self._reached() < round
