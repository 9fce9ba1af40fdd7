"""A peer: joins the others, drives the rounds of its one row, and survives what happens around it.

The same algorithm objects as in the simulator run here; only the delivery of exchanges differs. Everything is
one asyncio program, with local training in a worker thread, and knows time only from the event loop: so
tests run this very code under a simulated clock and network.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from coterie.errors import RefusedError, RunFolderError
from coterie.learning import LearningNode
from coterie.peer.company import Company, Waiting
from coterie.peer.exchange.doubts import Doubts
from coterie.peer.exchange.journal import Holdings, Journal, ParcelId
from coterie.peer.exchange.mailbox import FreeMailbox, Mailbox, StepMailbox
from coterie.peer.exchange.membership import (
    NOT_STARTED,
    Acquaintance,
    Lending,
    Membership,
    Place,
    Position,
    Sign,
    Verify,
    stop,
)
from coterie.peer.exchange.metrics import Metrics
from coterie.peer.exchange.patience import Patience
from coterie.peer.exchange.post import Post
from coterie.peer.exchange.sealed.party import Party
from coterie.peer.exchange.sealed.sealing import Sealing
from coterie.peer.exchange.signal import Signal
from coterie.peer.gazette import MOST_NEWS, Agreement, Bulletin, Gazette, NoNews
from coterie.peer.network.calling import Transport
from coterie.peer.network.messages import (
    Body,
    Claim,
    Finding,
    Head,
    Hello,
    Inquiry,
    News,
    Parcel,
    Receipt,
    SealStep,
    Terms,
)
from coterie.peer.passage import NEVER, Passage
from coterie.peer.suspicion import Suspicion
from coterie.peer.turn import Measured, RoundReport, Turn, Work, own_thread
from coterie.protocol import Algorithm
from coterie.topology import Attendance, Topology

_log = logging.getLogger("coterie.peer")

_NO_MASS = 1e-8  # of push-sum: so little is not sent


@dataclass(frozen=True)
class Pace:
    """How long a peer waits for what, in seconds."""

    deadline: float = 60.0  # of an exchange
    join: float = 120.0  # for all others at the start
    heartbeat: float = 1.0
    suspect_after: float = 4.0  # without a sign of life
    linger: float = 10.0  # at the end, for those who are not finished
    misses: int = 3  # exchanges in a row that a member may miss before it is no longer waited for


@dataclass
class Peer:
    """One node of an experiment as a process of its own.

    node: its data and model, one row. roster: the others by number. digest: of the experiment.
    sign, verify: with the peers' identities, for secure sums; see `Sealing`. lending: for those who cannot
    be dialled; see `Membership`.
    evaluates: whether a round's models are measured. in_step: rounds together, or each at its own pace.
    alone: whether it goes on when nobody else is there. quorum: how many others are enough to go on after a
    restart, 0: all. invited: into an experiment that others may have begun. leaves: whether its operator
    wants it to leave before the end.
    """

    name: str
    address: str
    node: LearningNode
    algorithm: Algorithm[Any]
    topology: Topology
    rounds: int
    digest: str
    roster: Callable[[], Mapping[int, Acquaintance]]
    transport: Transport
    journal: Journal
    pace: Pace = Pace()
    in_step: bool = True
    alone: bool = False
    quorum: int = 0
    invited: bool = False
    leaves: Callable[[], bool] = lambda: False
    bulletin: Bulletin = field(default_factory=NoNews)  # signed news that it knows and passes on
    terms: Callable[[], Terms] | None = None  # that its operator wants, by its files as they are now
    adopted: Callable[[Terms], None] = lambda terms: None  # told of those that a quorum wants
    staleness: int = 5
    withheld: frozenset[str] = frozenset()
    sign: Sign | None = None
    verify: Verify | None = None
    lending: Lending | None = None
    evaluates: Callable[[int], bool] = lambda round: True
    keep_best: bool = False  # its model is its best so far by validation data
    work: Work = field(default_factory=own_thread)
    observer: Callable[[RoundReport], None] | None = None
    renew: Callable[[], Mapping[str, int]] | None = None  # looks for new data: how many samples came and went
    samples: Callable[[], Mapping[str, int]] = dict  # how many this peer has, by part
    parts: Mapping[str, str] = field(default_factory=dict)  # of the digest: see `experiment_parts`

    state: Any = None  # None: not loaded yet
    joined: bool = False
    finished: bool = False
    left: bool = False  # before the end, because its operator wanted so
    metrics: Metrics = field(default_factory=Metrics)

    def __post_init__(self) -> None:
        self.number = int(self.node.ids[0])
        self.topology = self.attendance = Attendance(self.topology)
        self._changed = Signal()
        self._place = Place(self.name, self.address, self.sign)
        self.suspicion = Suspicion(self.metrics, self._name)
        self.membership = Membership(
            self._hello,
            self.roster,
            self.transport,
            self._changed,
            self.metrics,
            self.pace.heartbeat,
            self.pace.suspect_after,
            self.verify,
            Patience(self.pace.deadline, self.pace.misses, self.pace.suspect_after, self._name),
            self.lending,
            self.parts,
        )
        waiting = Waiting(self.pace.join, self.alone, self.quorum)
        self.company = Company(self.membership, self._changed, waiting, self._name)
        self.journal.recover()
        since = NEVER if self.invited and self.in_step and not self.journal.round else 0
        about = (self.attendance, self.membership, self.company)
        self.passage = Passage(self.number, self.rounds, *about, self.in_step, since)
        self.holdings = Holdings(self.journal)
        self.mailbox = self._mailbox()
        self.mailbox.begin(Position(self.journal.round, 0))
        self.sealing = self._sealing()
        self.doubts = Doubts(self.name, self.journal, self.membership, self.transport, self.metrics)
        self.post = self._post()
        self.agreement = self._agreement()
        self.gazette = Gazette(self.name, self.bulletin, self.membership, self.transport)

    def _mailbox(self) -> Mailbox:
        patience = self.pace.deadline
        if self.in_step:
            return StepMailbox(self.holdings, self._changed, patience)
        return FreeMailbox(self.holdings, self._changed, patience, self.staleness, self.rounds)

    def _sealing(self) -> Sealing:
        party = Party(
            self.name,
            self.number,
            self.transport,
            self.membership,
            self._changed,
            self.metrics,
            self.sign,
            self.verify,
            lambda number, text: self.suspicion.accuse(number, self.journal.round, text),
            self.node.ledger,
            lambda round: self.topology.present(round).nonzero().flatten().tolist(),
        )
        return Sealing(party, self.pace.deadline, lambda: self.mailbox.at)

    def _post(self) -> Post:
        return Post(
            self.name,
            self.number,
            self.topology,
            self.transport,
            self.membership,
            self.mailbox,
            self.journal,
            self.doubts,
            self.sealing,
            self._changed,
            self.metrics,
            self.pace.deadline,
            self.withheld,
            self.in_step,
        )

    def _agreement(self) -> Agreement | None:
        if self.terms is None:
            return None
        now = Terms(rounds=self.rounds, lr=self.node.training.lr, deadline=self.pace.deadline)
        return Agreement(self.terms, self.membership, self._adopt, now)

    # --- the others' messages --------------------------------------------------------------------

    def admit(self, caller: str, head: Head, size: int) -> Awaitable[None] | None:
        member = self._member(caller)
        if isinstance(head, Parcel | SealStep):
            self.membership.patience.came(member.number, (head.round, head.slot))
        if isinstance(head, Parcel):
            return self.mailbox.admit(member.number, head, size)
        if isinstance(head, SealStep):
            return self.sealing.admit(member.number, head, size)
        if size > (MOST_NEWS if isinstance(head, News) else 0):
            raise RefusedError("oversized", f"a {head.kind} with {size} bytes")
        return None

    async def take(self, caller: str, head: Head, body: Body) -> tuple[Head, bytes]:
        member = self._member(caller)
        try:
            return self._answer(member, head, body)
        except RefusedError as error:
            if error.reason == "implausible":
                self.suspicion.accuse(member.number, self.journal.round, error.text)
            raise
        except RunFolderError as error:  # what must be on disk before the answer is not: the disk is full
            _log.warning("%s", error)
            raise RefusedError("disk", "this peer cannot write down what it must keep") from None

    def _answer(self, member: Acquaintance, head: Head, body: Body) -> tuple[Head, bytes]:
        if isinstance(head, Hello):
            self.membership.heard(head, member)
            said = self._hello(head.missing)
            return said.model_copy(update={"lend": self.membership.wants_loan(member)}), b""
        if isinstance(head, Parcel):
            fresh = self.mailbox.take(member.number, head, body)
            return Receipt(sender=self.name, duplicate=not fresh), b""
        if isinstance(head, Inquiry):
            if head.round >= self.rounds:
                raise RefusedError("unexpected", f"the experiment ends before round {head.round}")
            parcel = ParcelId(member.number, head.round, head.slot)
            return Finding(sender=self.name, taken=self.holdings.finding(parcel)), b""
        if isinstance(head, SealStep):
            content = body if isinstance(body, bytes) else body.read_bytes()
            return self.sealing.take(member.number, head, content)
        if isinstance(head, Claim):
            return self.sealing.vouching.answer(member.number, head, self.mailbox.at.round), b""
        if isinstance(head, News):
            return self.gazette.answer(body)
        raise RefusedError("unexpected", f"a {head.kind} is an answer, not a question")

    def _member(self, caller: str) -> Acquaintance:
        member = self.membership.member(caller)
        if member is None:
            raise RefusedError("certificate", f"{caller} is not in the roster")
        return member

    def _hello(self, wanted: Iterable[int] = ()) -> Hello:
        """wanted: whose addresses the other side would like to know."""
        position = self.post.position if self.joined else NOT_STARTED
        return Hello(
            sender=self.name,
            number=self.number,
            digest=self.digest,
            parts={} if self.joined else dict(self.parts),
            at=self._place.now(),
            round=position.round,
            slot=position.slot,
            finished=self.finished,
            since=self.passage.since,
            until=self.passage.until,
            terms=None if self.terms is None else self.terms(),
            news=self.bulletin.digest,
            missing=self.membership.missing(),
            addresses=self.membership.addresses(wanted),
        )

    # --- the rounds ------------------------------------------------------------------------------

    async def load(self) -> None:
        """The committed state, or a new one, for which an algorithm may train: so it is made in the worker.

        To be done before the peer listens: until then the others wait for it as for one that has not come.
        """
        self._begin_node(-1)
        self.state = await self.work(self._committed)

    def _committed(self) -> Any:
        state = self.journal.load(self.algorithm.init(self.node))
        if self.journal.round:  # else the node remembers its training before the first round
            self.node.recall(self.journal.remembered())
        return state

    async def run(self) -> None:
        """Join, learn, finish."""
        if self.state is None:
            await self.load()
        self.metrics.began = asyncio.get_running_loop().time()
        background = [asyncio.create_task(self.membership.beat()), asyncio.create_task(self._settle())]
        try:
            if self.journal.round < self.rounds:
                await self._join()
                while await self._goes_on():
                    await self.company.somebody(self.journal.round)
                    await self._round()
            self.joined = self.finished = True
            await self._tell()
            await self._linger()
        finally:
            for task in background:
                await stop(task)

    async def _join(self) -> None:
        """Wait for the others, and go on with those who came."""
        begun = self.journal.begun()
        fresh = self.journal.round == 0 and begun is None
        await self.company.gather(fresh)
        if begun is not None:
            self.mailbox.begin(Position(begun, 0))
        elif fresh and self.in_step and self.invited and self.company.in_round(0):
            self.mailbox.begin(Position(await self.passage.enter(0), 0))
        self.passage.begin()
        self.joined = True

    async def _goes_on(self) -> bool:
        """Whether there is another round for this peer."""
        if self.agreement is not None:
            self.agreement.look()
        return self.journal.round < self.rounds and not await self._says_goodbye()

    def _adopt(self, terms: Terms) -> None:
        """What a quorum wants is in force from the next round on."""
        self.rounds = self.node.rounds = self.passage.rounds = self.mailbox.rounds = terms.rounds
        self.node.training = replace(self.node.training, lr=terms.lr)
        self.post.deadline = self.sealing.patience = self.mailbox.patience = terms.deadline
        self.membership.patience.deadline = terms.deadline
        self.adopted(terms)

    async def _says_goodbye(self) -> bool:
        """Whether this peer has left; if it is to leave, the others are told when."""
        at = self.journal.round
        if self.passage.over(at):
            self.left = not self._holds_mass()
            if not self.left:
                await self.passage.leave_again(at)
            else:
                await self.gazette.leave(at, self.pace.suspect_after)
        elif self.passage.until is None and self.leaves():
            await self.passage.leave(at)
        return self.left

    def _holds_mass(self) -> bool:
        """Whether something would be lost to the others with this peer."""
        mass = self.algorithm.mass(self.state)
        kept = mass is not None and float(mass[0]) > _NO_MASS
        return kept or bool(self.holdings.unused()) or bool(self.doubts.open)

    def _catch_up(self) -> None:
        """Go where the others are: what they played without us is over."""
        there = self.company.ahead(self.journal.round, self.rounds - 1)
        self.metrics.skipped += there - self.journal.round
        self.mailbox.begin(Position(there, 0))

    async def _round(self) -> None:
        started = asyncio.get_running_loop().time()
        news = await self._renewed()
        turn = self._turn(self.mailbox.at.round)
        skipped = turn.round - max(self.journal.round, self.passage.since)
        if bool(self.node.online[0]):
            self.state = turn.finite(await turn.play(self.state), self._name)
        scores = await turn.scores(self.state)
        remembered = self.node.remembered()
        self.journal.commit(self.state, turn.round + 1, turn.conserved, self.doubts.open, remembered)
        self.holdings.committed(turn.conserved)
        self.metrics.rounds += 1
        self.mailbox.begin(Position(turn.round + 1, 0))
        if turn.late and self.in_step:  # others did not wait for us
            self._catch_up()
        seconds = asyncio.get_running_loop().time() - started
        alone = self._was_alone(turn)
        self.metrics.alone += alone
        self._note(turn, seconds, scores)
        if self.observer is not None:
            self.observer(turn.report(seconds, scores, skipped, alone, {**self.samples(), **news}))

    async def _renewed(self) -> Mapping[str, int]:
        """Take in new data. What the state holds of single samples starts afresh."""
        news: Mapping[str, int] = {} if self.renew is None else await self.work(self.renew)
        if news and self.algorithm.facts.per_sample:
            self._begin_node(-1)
            fresh = await self.work(partial(self.algorithm.init, self.node))
            changed = {name: getattr(fresh, name) for name in self.algorithm.facts.per_sample}
            self.state = replace(self.state, **changed)
        return news

    def _name(self, number: int) -> str:
        member = self.roster().get(number)
        return str(number) if member is None else member.name

    def _was_alone(self, turn: Turn) -> bool:
        """Whether a round that should have brought something was played while nobody else was there."""
        return turn.awaited > 0 and not turn.came and self.company.nobody

    def _turn(self, round: int) -> Turn:
        self._begin_node(round)
        repeated = self.journal.begun() == round
        return Turn(round, self.algorithm, self.node, self.post, self.work, repeated, self.keep_best)

    def _note(self, turn: Turn, seconds: float, scores: Measured) -> None:
        """For whoever looks on: learned weights, or else equal ones for those whose payloads were used."""
        self.metrics.seconds.append(seconds)
        for name, by_point in scores.items():
            self.metrics.scores.setdefault(name, {}).update(by_point)
        learned = self.algorithm.collaboration(self.state)
        if learned is not None:
            self.metrics.learned = {n: float(w) for n, w in enumerate(learned[0]) if n != self.number}
        if (far := self.node.recorded.get("far")) is not None:
            self.suspicion.watch(far[0], turn.heard, turn.round)
        if turn.heard:
            self.metrics.used = dict.fromkeys(turn.heard, 1 / len(turn.heard))

    def _begin_node(self, round: int) -> None:
        self.passage.look()
        if self.journal.begun() == round:
            self.attendance.fixed = round, *self.journal.begun_links()
        online = self.topology.online(max(round, 0))[self.number : self.number + 1]
        if round < 0:
            online = torch.ones(1, dtype=torch.bool)
        evaluating = round >= 0 and self.evaluates(round)
        self.node.begin(round, self.topology.graph(max(round, 0)), online, evaluating=evaluating)

    # --- around ----------------------------------------------------------------------------------

    async def _settle(self) -> None:
        """Clear up parcels in doubt, and pass news on, for ever."""
        while True:
            await asyncio.sleep(self.pace.heartbeat)
            if self.doubts.pending:
                await self.doubts.settle(self.pace.suspect_after)
            await self.gazette.spread(self.pace.suspect_after)

    async def _tell(self) -> None:
        """That we are finished: nobody needs to wait for the next heartbeat."""
        await asyncio.gather(*(self.membership.ask(n) for n in self.roster() if self.membership.alive(n)))

    async def _linger(self) -> None:
        """Stay while others still need answers from us."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self.pace.linger
        while loop.time() < until:
            if not self.company.busy() and not self.doubts.pending:
                return
            await self._changed.wait(min(self.pace.heartbeat, max(0.0, until - loop.time())))
