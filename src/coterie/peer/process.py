"""A peer: joins the others, drives the rounds of its one row, and survives what happens around it.

The same algorithm objects as in the simulator run here; only the delivery of exchanges differs. Everything is
one asyncio program, with local training in a worker thread, and knows time only from the event loop: so
tests run this very code under a simulated clock and network.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from coterie.errors import DivergedError, RefusedError, RunFolderError
from coterie.learning import LearningNode
from coterie.peer.company import Company, Waiting
from coterie.peer.exchange.doubts import Doubts
from coterie.peer.exchange.journal import Holdings, Journal, ParcelId
from coterie.peer.exchange.mailbox import FreeMailbox, Mailbox, StepMailbox
from coterie.peer.exchange.membership import (
    NOT_STARTED,
    Acquaintance,
    Membership,
    Position,
    Sign,
    Verify,
    stop,
)
from coterie.peer.exchange.metrics import Metrics
from coterie.peer.exchange.post import Post
from coterie.peer.exchange.sealing import Sealing
from coterie.peer.exchange.signal import Signal
from coterie.peer.network.calling import Transport
from coterie.peer.network.messages import (
    Body,
    Finding,
    Head,
    Hello,
    Inquiry,
    Parcel,
    Receipt,
    SealStep,
    Whereabouts,
)
from coterie.peer.suspicion import Suspicion
from coterie.peer.turn import Measured, Turn, Work, own_thread
from coterie.protocol import Algorithm
from coterie.topology import Topology

_log = logging.getLogger("coterie.peer")

_SIGN_EVERY = 60.0  # seconds


@dataclass(frozen=True)
class Pace:
    """How long a peer waits for what, in seconds."""

    deadline: float = 60.0  # of an exchange
    join: float = 120.0  # for all others at the start
    heartbeat: float = 1.0
    suspect_after: float = 4.0  # without a sign of life
    linger: float = 10.0  # at the end, for those who are not finished


@dataclass(frozen=True)
class RoundReport:
    """What a peer knows after a round."""

    round: int
    seconds: float
    train_loss: float
    scores: Measured  # no points of the round if it was not measured
    diagnostics: Mapping[str, Tensor]
    gradient_steps: int = 0  # mini-batches of local work
    samples_seen: int = 0  # in these mini-batches
    skipped: int = 0  # rounds that the others played without this peer since its last one
    alone: bool = False  # nobody else was there, although somebody should have been heard


@dataclass
class Peer:
    """One node of an experiment as a process of its own.

    node: its data and model, one row. roster: the others by number. digest: of the experiment.
    sign, verify: with the peers' identities, for secure sums; see `Sealing`.
    evaluates: whether a round's models are measured. in_step: rounds together, or each at its own pace.
    alone: whether it goes on when nobody else is there. quorum: how many others are enough to go on after a
    restart, 0: all.
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
    staleness: int = 5
    withheld: frozenset[str] = frozenset()
    sign: Sign | None = None
    verify: Verify | None = None
    evaluates: Callable[[int], bool] = lambda round: True
    keep_best: bool = False  # its model is its best so far by validation data
    work: Work = field(default_factory=own_thread)
    observer: Callable[[RoundReport], None] | None = None

    state: Any = None  # None: not loaded yet
    joined: bool = False
    finished: bool = False
    metrics: Metrics = field(default_factory=Metrics)

    def __post_init__(self) -> None:
        self.number = int(self.node.ids[0])
        self._changed = Signal()
        self._at: Whereabouts | None = None  # as last signed
        self._signed = 0.0  # when
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
        )
        self.company = self._company()
        self.journal.recover()
        self.holdings = Holdings(self.journal)
        self.mailbox = self._mailbox()
        self.mailbox.begin(Position(self.journal.round, 0))
        self.sealing = self._sealing()
        self.doubts = Doubts(self.name, self.journal, self.membership, self.transport, self.metrics)
        self.post = self._post()

    def _mailbox(self) -> Mailbox:
        patience = self.pace.deadline
        if self.in_step:
            return StepMailbox(self.holdings, self._changed, patience)
        return FreeMailbox(self.holdings, self._changed, patience, self.staleness, self.rounds)

    def _company(self) -> Company:
        others = frozenset(range(self.topology.nodes)) - {self.number}
        waiting = Waiting(self.pace.join, self.alone, self.quorum)
        return Company(self.membership, self._changed, others, waiting, self._name)

    def _sealing(self) -> Sealing:
        return Sealing(
            self.name,
            self.number,
            self.transport,
            self.membership,
            self._changed,
            self.metrics,
            self.pace.deadline,
            lambda: self.mailbox.at,
            self.sign,
            self.verify,
            lambda number, text: self.suspicion.accuse(number, self.journal.round, text),
        )

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

    # --- the others' messages --------------------------------------------------------------------

    def admit(self, caller: str, head: Head, size: int) -> Awaitable[None] | None:
        member = self._member(caller)
        if isinstance(head, Parcel):
            return self.mailbox.admit(member.number, head, size)
        if isinstance(head, SealStep):
            return self.sealing.admit(member.number, head, size)
        if size:
            raise RefusedError("oversized", f"a {head.kind} has no body")
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
            return self._hello(head.missing), b""
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
            at=self._whereabouts(),
            round=position.round,
            slot=position.slot,
            finished=self.finished,
            missing=self.membership.missing(),
            addresses=self.membership.addresses(wanted),
        )

    def _whereabouts(self) -> Whereabouts:
        """This peer's address, signed; again after a while, since a key may have been rotated."""
        now = asyncio.get_running_loop().time()
        if self._at is None or now >= self._signed + _SIGN_EVERY:
            at = Whereabouts(address=self.address, serial=int(time.time()))
            proof = self.sign(at.statement(self.name)) if self.sign else b""
            self._at, self._signed = at.model_copy(update={"proof": base64.b64encode(proof).decode()}), now
        return self._at

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
                while self.journal.round < self.rounds:
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
        self.joined = True

    def _catch_up(self) -> None:
        """Go where the others are: rounds that they played without us are over."""
        there = self.company.ahead(self.journal.round, self.rounds - 1)
        self.metrics.skipped += there - self.journal.round
        self.mailbox.begin(Position(there, 0))

    async def _round(self) -> None:
        started = asyncio.get_running_loop().time()
        turn = self._turn(self.mailbox.at.round)
        skipped = turn.round - self.journal.round
        if bool(self.node.online[0]):
            self.state = self._finite(await turn.play(self.state), turn)
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
            self.observer(self._reported(turn.round, seconds, scores, skipped, alone))

    def _finite(self, state: Any, turn: Turn) -> Any:
        """The new state, unless its model is ruined: then the committed one stays what it is."""
        if all(bool(leaf.isfinite().all()) for leaf in self.algorithm.personal(state).values()):
            return state
        heard = ", ".join(map(self._name, turn.heard)) or "nobody"
        raise DivergedError(
            f"round {turn.round}: the model holds NaN or infinity after mixing with {heard}; the state "
            "before this round is kept. If it happens again, find out whose model is bad, or use a smaller "
            "learning rate. `coterie peer rollback` goes further back"
        )

    def _name(self, number: int) -> str:
        member = self.roster().get(number)
        return str(number) if member is None else member.name

    def _was_alone(self, turn: Turn) -> bool:
        """Whether a round that should have brought something was played while nobody else was there."""
        return turn.awaited > 0 and not turn.came and self.company.nobody

    def _reported(
        self, round: int, seconds: float, scores: Measured, skipped: int, alone: bool
    ) -> RoundReport:
        node = self.node
        steps, samples = int(node.work.gradient_steps[0]), int(node.work.samples_seen[0])
        loss = float(node.train_loss[0])
        recorded = dict(node.recorded)
        return RoundReport(round, seconds, loss, scores, recorded, steps, samples, skipped, alone)

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
        online = self.topology.online(max(round, 0))[self.number : self.number + 1]
        if round < 0:
            online = torch.ones(1, dtype=torch.bool)
        evaluating = round >= 0 and self.evaluates(round)
        self.node.begin(round, self.topology.graph(max(round, 0)), online, evaluating=evaluating)

    # --- around ----------------------------------------------------------------------------------

    async def _settle(self) -> None:
        """Clear up parcels in doubt, for ever."""
        while True:
            await asyncio.sleep(self.pace.heartbeat)
            if self.doubts.pending:
                await self.doubts.settle(self.pace.suspect_after)

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
