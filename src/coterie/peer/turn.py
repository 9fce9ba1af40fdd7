"""One round of one peer: it drives the algorithm's generator and keeps what belongs to this round alone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

from torch import Tensor

from coterie.errors import DivergedError, PeerError
from coterie.learning import LearningNode
from coterie.metric import VALIDATION
from coterie.peer.exchange.journal import ParcelId
from coterie.peer.exchange.mailbox import Delivered
from coterie.peer.exchange.membership import Position
from coterie.peer.exchange.post import Post
from coterie.protocol import Algorithm, Exchange, Inbox

Work: TypeAlias = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Runs something that takes long without stopping the event loop."""

Measured: TypeAlias = dict[str, dict[str, float]]
"""By the names of the task's metrics, the main one first, and by point of the round."""

POINTS = ("after_local", "after_mixing")
_MOST_EXCHANGES = 1_000_000


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
    samples: Mapping[str, int] = field(
        default_factory=dict
    )  # in each part of its data, new ones and lost ones


def own_thread() -> Work:
    """Work in a thread of its own: names that are looked up slowly, in asyncio's threads, do not delay it."""
    threads = ThreadPoolExecutor(1, thread_name_prefix="training")

    async def work(task: Callable[[], Any]) -> Any:
        return await asyncio.get_running_loop().run_in_executor(threads, task)

    return work


@dataclass
class Turn:
    """A round from its first step to the state that it leaves.

    repeated: it had begun before a crash, so that others may have taken its parcels already.
    """

    round: int
    algorithm: Algorithm[Any]
    node: LearningNode
    post: Post
    work: Work
    repeated: bool = False
    keep_best: bool = False  # remember the best model so far by validation data

    late: bool = False  # a receiver said that this round is over
    awaited: int = 0  # messages that should have come
    came: int = 0  # messages that did
    heard: list[int] = field(default_factory=list)  # whose payloads the last exchange brought
    conserved: list[ParcelId] = field(default_factory=list)  # shares of others that went into the state
    _used: list[Delivered] = field(default_factory=list)  # what the inboxes are read from

    async def play(self, state: Any) -> Any:
        """The state after the round. Training happens inside the generator, in the worker."""
        generator = self.algorithm.round(state, self.node)
        inbox: Inbox | None = None
        for slot in range(_MOST_EXCHANGES):
            step = await self.work(partial(_advance, generator, inbox))
            if not isinstance(step, Exchange):
                self._tidy()
                return step.state
            inbox = await self._exchange(step, Position(self.round, slot))
        raise PeerError(f"round {self.round} does not end")

    async def _exchange(self, exchange: Exchange, at: Position) -> Inbox:
        started = asyncio.get_running_loop().time()
        done = await self.post.exchange(exchange, at, repeated=self.repeated)
        self.post.metrics.waiting += asyncio.get_running_loop().time() - started
        self.late |= done.late
        if exchange.counted:
            self.awaited += done.awaited
            self.came += done.heard
        self._used += done.delivered
        if done.delivered and exchange.counted:
            self.heard = [item.parcel.number for item in done.delivered]
        if exchange.conserved:
            self.conserved += [item.parcel for item in done.delivered]
        return done.inbox

    async def scores(self, state: Any) -> Measured:
        """On the peer's own test data at both points of the round; no points if it is not measured.

        Also `validation_...` on its validation data, if it has any.
        """
        if not self.node.evaluating or not int(self.node.federation.test.sizes[0]):
            return {metric.name: {} for metric in self.node.task.metrics}
        measured: Measured = await self.work(partial(self._measured, state))
        return measured

    def _measured(self, state: Any) -> Measured:
        shown = {point: self.node.shown.get(point) or self.algorithm.personal(state) for point in POINTS}
        measured: Measured = {}
        for split, prefix in (("test", ""), ("validation", VALIDATION)):
            if split == "validation" and not int(self.node.federation.validation.sizes[0]):
                continue
            scores = {point: self.node.evaluate(params, split) for point, params in shown.items()}
            for name in (metric.name for metric in self.node.task.metrics):
                by_point = {point: float(found.metrics[name][0]) for point, found in scores.items()}
                measured[prefix + name] = by_point
            if self.keep_best and split == "validation":
                own = self.algorithm.facts.measured
                self.node.keep_best(shown[own], scores[own])
        return measured

    def finite(self, state: Any, name: Callable[[int], str]) -> Any:
        """The new state, unless its model is ruined: then the committed one stays what it is."""
        if all(bool(leaf.isfinite().all()) for leaf in self.algorithm.personal(state).values()):
            return state
        heard = ", ".join(map(name, self.heard)) or "nobody"
        raise DivergedError(
            f"round {self.round}: the model holds NaN or infinity after mixing with {heard}; the state "
            "before this round is kept. If it happens again, find out whose model is bad, or use a smaller "
            "learning rate. `coterie peer rollback` goes further back"
        )

    def report(
        self, seconds: float, scores: Measured, skipped: int, alone: bool, samples: Mapping[str, int]
    ) -> RoundReport:
        """What is known after the round."""
        work, loss = self.node.work, float(self.node.train_loss[0])
        steps, seen = int(work.gradient_steps[0]), int(work.samples_seen[0])
        recorded = dict(self.node.recorded)
        return RoundReport(self.round, seconds, loss, scores, recorded, steps, seen, skipped, alone, samples)

    def _tidy(self) -> None:
        """The inboxes are no longer needed, nor are the files that they were read from."""
        for item in self._used:
            if not self.post.mailbox.keeps(item):
                item.discard()


@dataclass(frozen=True)
class _Finished:
    state: Any


def _advance(generator: Generator[Exchange, Any, Any], inbox: Inbox | None) -> Exchange | _Finished:
    try:
        return generator.send(inbox)
    except StopIteration as stopped:
        return _Finished(stopped.value)
