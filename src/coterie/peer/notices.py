"""What members tell each other about the sums that collectors had: no collector can hide one from a member.

A member's own sums are in its ledger. Sums without it matter, too: sum{a,b,c,d} - sum{b,c,d} = a, and a was
not asked the second time. So everyone says in its heartbeats which sums it took part in. What two members of
a group say about it is believed: one alone could put a sum into an honest collector's account.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from coterie.peer.exchange.membership import Position
from coterie.peer.network.messages import SumNotice
from coterie.protocol.ledger import Ledger

_log = logging.getLogger("coterie.peer")

_MOST, _MOST_NUMBERS = 100, 3000  # notices in a heartbeat, and members in all of these
_OF_A_TELLER = 400  # notices that are remembered of one member
_ENOUGH = 2  # members who must say so


@dataclass
class Notices:
    """number: this peer's. now: its round. names: of members, for the log."""

    number: int
    ledger: Ledger
    now: Callable[[], int]
    names: Callable[[int], str] = str
    _mine: dict[SumNotice, bool] = field(default_factory=dict)  # whether nobody was missing
    _tellers: dict[SumNotice, set[int]] = field(default_factory=dict)
    _told: Counter[int] = field(default_factory=Counter)  # by teller, how many of these
    _warned: set[tuple[int, int, int]] = field(default_factory=set)
    _oldest: int | None = None  # up to this round everything is forgotten

    def took_part(self, collector: int, at: Position, members: Iterable[int], whole: bool) -> None:
        """This peer lifts the masks of a sum. whole: of a known group, of which nobody is missing."""
        notice = SumNotice(collector=collector, round=at.round, slot=at.slot, members=tuple(sorted(members)))
        self._mine[notice] = whole
        self._compare(notice)

    def to_tell(self) -> tuple[SumNotice, ...]:
        """Of the rounds that still count: first what others cannot know, then the newest."""
        self._forget()
        told: list[SumNotice] = []
        numbers = 0
        for notice in sorted(self._mine, key=lambda one: (self._mine[one], -one.round, one.collector)):
            numbers += len(notice.members)
            if len(told) == _MOST or numbers > _MOST_NUMBERS:
                break
            told.append(notice)
        return tuple(told)

    def told(self, teller: int, notices: Iterable[SumNotice]) -> None:
        """What a member says that it took part in."""
        self._forget()
        for notice in notices:
            group = set(notice.members)
            if teller not in group or self.number in group or notice.collector in group:
                continue  # what it cannot know, and what this peer knows itself
            if notice.collector == self.number or not self._counts(notice):
                continue
            if teller in self._tellers.get(notice, ()) or self._told[teller] >= _OF_A_TELLER:
                continue
            self._told[teller] += 1
            tellers = self._tellers.setdefault(notice, set())
            tellers.add(teller)
            if len(tellers) == _ENOUGH:
                self.ledger.note(notice.collector, notice.round, notice.members)
                self._compare(notice)

    def _compare(self, notice: SumNotice) -> None:
        """An honest collector has one sum in an exchange."""
        where = (notice.collector, notice.round, notice.slot)
        other = [
            one
            for one in (*self._mine, *(n for n, tellers in self._tellers.items() if len(tellers) >= _ENOUGH))
            if (one.collector, one.round, one.slot) == where and one != notice
        ]
        if other and where not in self._warned:
            self._warned.add(where)
            _log.warning(
                "round %d: %s had two sums in one exchange, over %s and over %s; its account has both",
                notice.round,
                self.names(notice.collector),
                ", ".join(map(self.names, other[0].members)),
                ", ".join(map(self.names, notice.members)),
            )

    def _counts(self, notice: SumNotice) -> bool:
        return self.now() - self.ledger.bound.rounds < notice.round <= self.now() + 1

    def _forget(self) -> None:
        oldest = self.now() - self.ledger.bound.rounds
        if oldest == self._oldest:
            return
        self._oldest = oldest
        self._mine = {one: whole for one, whole in self._mine.items() if one.round > oldest}
        self._tellers = {one: tellers for one, tellers in self._tellers.items() if one.round > oldest}
        self._told = Counter(teller for tellers in self._tellers.values() for teller in tellers)
        self._warned = {where for where in self._warned if where[1] > oldest}
