"""Carries out the exchanges of a round over a network, for the one row that a peer hosts.

An exchange ends when every expected sender has been heard, or can no longer be heard from, and what this
peer sends is settled; or when the deadline passes. Whoever is missing is not in the inbox.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from coterie.errors import RefusedError, UnreachableError
from coterie.peer.exchange.doubts import Doubts
from coterie.peer.exchange.journal import Journal, ParcelId
from coterie.peer.exchange.mailbox import Delivered, Mailbox, Wanted
from coterie.peer.exchange.membership import Membership, Position
from coterie.peer.exchange.metrics import Metrics
from coterie.peer.exchange.sealed.sealing import Allowed, Sealing, SummedInbox
from coterie.peer.exchange.signal import Signal
from coterie.peer.network.calling import Transport
from coterie.peer.network.messages import Parcel, Receipt, encode_tree, shape_of
from coterie.protocol import Bundle, Exchange, Inbox, Tree
from coterie.protocol.plausible import MOST_TIMES_IN_SUM, Check, Sized
from coterie.protocol.secure_sum import majority
from coterie.protocol.trees import flatten_row, map_tree, unflatten, without
from coterie.topology import Topology

_log = logging.getLogger("coterie.peer")

# Besides stale: refusals of a mailbox that also knows that it did not take the parcel before.
_NOT_TAKEN = {"early", "disk"}
_FIRST_LOOK = 0.1  # seconds before asking a silent peer where it is; doubled each time
_FIRST_RETRY = 0.02  # seconds before trying again to reach a peer; doubled each time


Outcome: TypeAlias = Literal["taken", "lost", "stale", "unknown"]
"""What became of a parcel. lost: certainly not taken. stale: nor that, since its round is over there."""


@dataclass
class Sent:
    """What became of the parcels of one exchange."""

    taken: set[int] = field(default_factory=set)
    lost: set[int] = field(default_factory=set)  # certainly not taken
    unknown: set[int] = field(default_factory=set)
    late: bool = False  # a receiver said that our round is over


@dataclass(frozen=True)
class Exchanged:
    """What an exchange left: the inbox, what it is read from, and whether others are ahead of this peer.

    awaited: how many others should have sent something. heard: how many did.
    """

    inbox: Inbox
    delivered: Sequence[Delivered] = ()
    late: bool = False
    awaited: int = 0
    heard: int = 0


@dataclass
class Post:
    """Carries out exchanges. It knows nothing of rounds: what they leave is returned."""

    name: str
    number: int
    topology: Topology
    transport: Transport
    membership: Membership
    mailbox: Mailbox
    journal: Journal
    doubts: Doubts
    sealing: Sealing
    changed: Signal
    metrics: Metrics
    deadline: float
    withheld: frozenset[str] = frozenset()
    in_step: bool = True
    settle_seconds: float = 1.0  # free running: how long conserved parcels may take before they are in doubt
    _satisfied: bool = False  # nothing more is wanted from the others in the open exchange
    # Unfinished sends by receiver and slot. Free running, a wish does not hold up an answer to the same peer.
    _flying: dict[tuple[int, int], asyncio.Task[Outcome]] = field(default_factory=dict)
    _asking: dict[int, asyncio.Task[None]] = field(default_factory=dict)

    @property
    def position(self) -> Position:
        """Where the others should think that this peer is.

        That is after a sealed exchange as soon as it has its sum, although it still gives others its part.
        """
        return self.mailbox.at.next if self._satisfied else self.mailbox.at

    async def exchange(self, exchange: Exchange, at: Position, *, repeated: bool) -> Exchanged:
        """Send this row's payload and gather what others sent to it.

        repeated: the round had begun before a crash, so that parcels may have been taken already.
        """
        payload = without(exchange.payload, self.withheld)
        receivers, expected = self._receivers(exchange, at), self._expected(exchange, at)
        self.membership.patience.opened(at)
        if exchange.sealed:
            check = exchange.check or Sized(payload)
            if isinstance(check, Sized):
                check = replace(check, times=MOST_TIMES_IN_SUM)
            inbox = await self._sealed(exchange, payload, receivers, expected or [], at, check)
            return Exchanged(inbox, awaited=len(expected or []), heard=int(inbox.count[0]))
        body = encode_tree(payload)
        check = exchange.check or Sized(payload)
        wanted = Wanted(shape_of(payload), len(body), exchange.conserved, check)
        if exchange.conserved:
            leaving = self.topology.graph(at.round).leaving
            absent = (~self.topology.present(at.round)).nonzero().flatten().tolist()
            last = [] if leaving is None else leaving.nonzero().flatten().tolist()
            self.journal.begin(at.round, absent, last)
        self.mailbox.open(at, wanted)
        if self.in_step:
            anyone = self._others(at.round, exchange.counted)
            nothing = anyone - set(receivers) if expected is None else set()
            waiting_for = anyone if expected is None else set(expected)
            sent = await self._in_step(
                receivers, nothing, waiting_for, body, at, exchange.conserved, repeated
            )
        else:
            sent = await self._free(receivers, body, at, exchange.conserved, repeated)
        unreached = len(self._addressed(exchange, at.round)) - len(receivers)
        delivered = self.mailbox.close(
            None if expected is None else set(expected),
            once=exchange.to is not None,
            answers=exchange.answers,
        )
        if not exchange.conserved:
            delivered = self._of_members(delivered)
        inbox = self._inbox(delivered, sent, payload, wanted, at, unreached)
        return Exchanged(inbox, delivered, sent.late, len(expected or []), len(delivered))

    def _of_members(self, delivered: list[Delivered]) -> list[Delivered]:
        """Without what those sent who were removed from the roster since."""
        roster = self.membership.roster()
        for item in delivered:
            if item.parcel.number not in roster and not self.mailbox.keeps(item):
                item.discard()
        return [item for item in delivered if item.parcel.number in roster]

    # --- who -------------------------------------------------------------------------------------

    def _addressed(self, exchange: Exchange, round: int) -> list[int]:
        if exchange.to is not None:
            return sorted(set(exchange.to.ids.tolist()))
        return self.topology.graph(round).out_neighbours(self.number).tolist()

    def _receivers(self, exchange: Exchange, at: Position) -> list[int]:
        """Whom this row sends to, without messages that the experiment's own faults take away."""
        to = torch.tensor(self._addressed(exchange, at.round), dtype=torch.long)
        if exchange.counted and len(to):
            to = to[self._arrives(at, torch.full_like(to, self.number), to)]
        leaving = self.topology.graph(at.round).leaving
        if exchange.conserved and leaving is not None:  # they take nothing that they could not hand over
            to = to[~leaving[to]]
        return to.tolist()

    def _expected(self, exchange: Exchange, at: Position) -> list[int] | None:
        """Whom this row should hear from; None: anyone may have something for us."""
        if exchange.expect is not None:
            senders = torch.tensor(sorted(set(exchange.expect.ids.tolist())), dtype=torch.long)
        elif exchange.to is None:
            senders = self.topology.graph(at.round).in_neighbours(self.number)
        else:
            return None
        leaving = self.topology.graph(at.round).leaving
        if exchange.conserved and leaving is not None and bool(leaving[self.number]):
            return []
        if exchange.counted and len(senders):
            senders = senders[self._arrives(at, senders, torch.full_like(senders, self.number))]
        return senders.tolist()

    def _arrives(self, at: Position, senders: Tensor, receivers: Tensor) -> Tensor:
        online = self.topology.online(at.round)
        return self.topology.delivers(*at, senders, receivers) & online[senders] & online[receivers]

    def _others(self, round: int, counted: bool) -> set[int]:
        there = self.topology.online(round) if counted else self.topology.present(round)
        return set(there.nonzero().flatten().tolist()) - {self.number}

    # --- in step ---------------------------------------------------------------------------------

    async def _in_step(
        self,
        receivers: Iterable[int],
        nothing: Iterable[int],
        expected: set[int],
        body: bytes,
        at: Position,
        conserved: bool,
        repeated: bool,
    ) -> Sent:
        """Whoever is not waited for gets its parcel too, if it takes it while others are waited for.

        A conserved one has a moment in any case: it should not be in doubt for nothing.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + self.deadline
        settled = loop.time() + (self.settle_seconds if conserved else 0.0)
        parcel = Parcel(sender=self.name, round=at.round, slot=at.slot)
        word = parcel.model_copy(update={"empty": True})
        free = [n for n in receivers if conserved or not self._is_flying(n)]
        sends = {n: asyncio.create_task(self._send(n, parcel, body, until, repeated)) for n in free}
        words = {n: asyncio.create_task(self._send(n, word, b"", until, repeated)) for n in nothing}
        tasks = {**words, **sends}
        look = _FIRST_LOOK
        try:
            while loop.time() < until:
                self._give_up(tasks)
                waited = self._unsettled(tasks, loop.time() < settled)
                missing = {n for n in self.mailbox.silent(expected) if self._may_come(n, at)}
                if not missing and not waited:
                    break
                look = await self._look(missing, look, settled if loop.time() < settled else until)
            else:
                self.membership.patience.missed(missing | self._unsettled(tasks, False))
        finally:
            leaving = {} if conserved else self._left_flying(sends, at.slot)
            ended = [task for number, task in tasks.items() if number not in leaving]
            for task in ended:
                task.cancel()
            await asyncio.gather(*ended, return_exceptions=True)
        for number in self.mailbox.silent(expected):
            self.metrics.missing[self._name(number)] += 1
        sent = _sorted_out({number: task for number, task in sends.items() if number not in leaving})
        sent.late |= _sorted_out(words).late
        return sent

    def _give_up(self, tasks: Mapping[int, asyncio.Task[Outcome]]) -> None:
        """Sends to those who have vanished."""
        for number, task in tasks.items():
            if not task.done() and not self.membership.alive(number):
                task.cancel()

    def _unsettled(self, tasks: Mapping[int, asyncio.Task[Outcome]], all_of_them: bool) -> set[int]:
        """Receivers whose answers are waited for."""
        return {
            number
            for number, task in tasks.items()
            if not task.done() and (all_of_them or self.membership.awaited(number))
        }

    def _left_flying(
        self, sends: Mapping[int, asyncio.Task[Outcome]], slot: int
    ) -> dict[int, asyncio.Task[Outcome]]:
        """Sends to those who are not waited for: they may end by themselves, before the deadline.

        If such a parcel is taken, its receiver is waited for again.
        """
        flying = {
            number: task
            for number, task in sends.items()
            if not task.done() and self.membership.alive(number) and not self.membership.awaited(number)
        }
        self._flying |= {(number, slot): task for number, task in flying.items()}
        return flying

    def _may_come(self, number: int, at: Position) -> bool:
        """Whether a silent peer may still send: it is waited for, and is not past this exchange."""
        return self.membership.awaited(number) and self.membership.position(number) <= at

    async def _look(self, missing: Iterable[int], pause: float, until: float) -> float:
        """Wait for news; if there is none, ask those who are silent where they are, less and less often."""
        if await self.changed.wait(min(pause, until - asyncio.get_running_loop().time())):
            return pause
        for number in missing:
            if number not in self._asking:
                self._asking[number] = asyncio.create_task(self._ask(number))
        return min(2 * pause, self.membership.heartbeat)

    async def _ask(self, number: int) -> None:
        try:
            await self.membership.ask(number)
        finally:
            self._asking.pop(number, None)

    async def _send(self, number: int, head: Parcel, body: bytes, until: float, repeated: bool) -> Outcome:
        """Tries again while nothing was sent and there is time."""
        member = self.membership.roster().get(number)
        loop = asyncio.get_running_loop()
        pause = _FIRST_RETRY
        never_sent: Outcome = "unknown" if repeated else "lost"  # it may have been sent before a crash
        try:
            while member is not None and self.membership.alive(number):
                left = until - loop.time()
                if left <= 0:
                    break
                try:
                    answer, _ = await self.transport.request(
                        member.name, self.membership.address(member), head, body, timeout=left
                    )
                except UnreachableError as error:
                    if error.sent:
                        return "unknown"
                    await asyncio.sleep(min(pause, max(0.0, until - loop.time())))
                    pause *= 2
                    continue
                except RefusedError as error:
                    self.metrics.refused_by_others[error.reason] += 1
                    if error.reason == "stale":
                        return "stale"
                    return "lost" if error.reason in _NOT_TAKEN else never_sent
                if not isinstance(answer, Receipt):
                    return "unknown"
                self.membership.patience.came(number, Position(head.round, head.slot))
                if not head.empty:
                    self.metrics.bytes_out[member.name] += len(body)
                    self.metrics.messages_out[member.name] += 1
                return "taken"
            return never_sent
        finally:
            self.changed.fire()

    # --- free running ----------------------------------------------------------------------------

    async def _free(
        self, receivers: Iterable[int], body: bytes, at: Position, conserved: bool, repeated: bool
    ) -> Sent:
        """Send and go on: nobody is waited for, only conserved parcels for a moment to be settled."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self.deadline
        parcel = Parcel(sender=self.name, round=at.round, slot=at.slot)
        sends: dict[int, asyncio.Task[Outcome]] = {}
        skipped = Sent()
        for number in receivers:
            if self._is_flying(number, at.slot):
                skipped.lost.add(number)  # back-pressure: the last one is still on its way
            else:
                sends[number] = asyncio.create_task(self._send(number, parcel, body, until, repeated))
        if conserved and sends:
            await asyncio.wait(sends.values(), timeout=self.settle_seconds)
            for task in sends.values():
                task.cancel()
            await asyncio.gather(*sends.values(), return_exceptions=True)
            result = _sorted_out(sends)
        else:
            self._flying |= {(number, at.slot): task for number, task in sends.items()}
            await asyncio.sleep(0)
            result = Sent(taken=set(sends))
        result.lost |= skipped.lost
        return result

    def _is_flying(self, number: int, slot: int | None = None) -> bool:
        """slot: of this exchange of a round; None: of any."""
        return any(
            not task.done() and (slot is None or slot == of)
            for (to, of), task in self._flying.items()
            if to == number
        )

    # --- inbox -----------------------------------------------------------------------------------

    def _inbox(
        self,
        delivered: list[Delivered],
        sent: Sent,
        payload: Tree,
        wanted: Wanted,
        at: Position,
        unreached: int,
    ) -> Inbox:
        for item in delivered:
            name = self._name(item.parcel.number)
            self.metrics.staleness[name] = at.round - item.parcel.round
            self.metrics.messages_in[name] += 1
            self.metrics.bytes_in[name] += wanted.size
        nobody = torch.empty(0, dtype=torch.long)
        # One parcel without messages, so that a sum over nobody has the names and shapes of the payload.
        messages = [Bundle(payload, nobody, nobody, nobody), *(item.messages(wanted) for item in delivered)]
        if not wanted.conserved:
            return Inbox(messages, 1)
        for number in sorted(sent.unknown):
            self.doubts.park(ParcelId(number, at.round, at.slot), encode_tree(payload))
        lost = len(sent.lost) + unreached
        return Inbox(messages, 1, self.doubts.give_back(at.slot, wanted.like, payload, lost))

    def _name(self, number: int) -> str:
        member = self.membership.roster().get(number)
        return str(number) if member is None else member.name

    # --- sealed ----------------------------------------------------------------------------------

    def _allowed(self, exchange: Exchange, round: int, collector: int) -> Allowed:
        """Which sums a collector may have in a sealed exchange: everyone knows the graph."""
        online = self.topology.online(round)
        senders = self.topology.graph(round).in_neighbours(collector)
        among = frozenset(senders[online[senders]].tolist())
        smallest, whole = self.sealing.party.ledger.bound.smallest, exchange.to is None
        threshold = max(smallest, majority(len(among))) if whole else smallest
        return Allowed(among, threshold, len(among) if exchange.most is None else exchange.most, whole)

    def _asked(self, exchange: Exchange, round: int) -> int:
        """How many should be in the sum of a sealed exchange."""
        if exchange.expect is not None:
            return len(set(exchange.expect.ids.tolist()))
        return len(self._allowed(exchange, round, self.number).among)

    async def _sealed(
        self,
        exchange: Exchange,
        payload: Tree,
        receivers: list[int],
        expected: list[int],
        at: Position,
        check: Check,
    ) -> Inbox:
        """Ask for the sum over the expected senders, and give this row's part to those who ask for it."""
        vector, like = flatten_row(payload, 0)
        loop = asyncio.get_running_loop()
        until = loop.time() + self.deadline
        self.mailbox.begin(at)
        self.sealing.open(at, vector, receivers, partial(self._allowed, exchange, at.round))
        sum = self.sealing.collect(expected, at, until, self._asked(exchange, at.round)) if expected else None
        collecting = None if sum is None else asyncio.create_task(sum)
        if collecting is not None:
            collecting.add_done_callback(lambda _: self.changed.fire())
        look = _FIRST_LOOK
        try:
            while loop.time() < until:
                self._satisfied = collecting is None or collecting.done()
                missing = {n for n in receivers if not self.sealing.served(n) and self._may_come(n, at)}
                if not missing and self._satisfied:
                    break
                look = await self._look(missing, look, until)
            else:
                self.membership.patience.missed(missing)
            found = await collecting if collecting is not None else None
        finally:
            if collecting is not None:
                collecting.cancel()
            self._satisfied = False
            self.sealing.close()
            self.mailbox.begin(at.next)
        if found is None:
            return SummedInbox(None, 0)
        total, members = found
        opened = unflatten(total, like)
        if wrong := check(
            map_tree(lambda leaf: leaf / members, opened)
        ):  # as if each had an equal part in it
            self.metrics.sealed_implausible += 1
            names = ", ".join(map(self._name, expected))
            _log.warning("round %d: the sum over %s is not used: %s", at.round, names, wrong)
            return SummedInbox(None, 0)
        return SummedInbox(opened, members)


def _sorted_out(sends: dict[int, asyncio.Task[Outcome]]) -> Sent:
    """A send that was cancelled may or may not have been taken."""
    sent = Sent()
    for number, task in sends.items():
        outcome: Outcome = "unknown" if task.cancelled() or task.exception() else task.result()
        sent.late |= outcome == "stale"
        {"taken": sent.taken, "lost": sent.lost, "stale": sent.lost, "unknown": sent.unknown}[outcome].add(
            number
        )
    return sent
