"""A network and a clock in memory, for peers' own code: every delay, loss and crash follows from a seed."""

from __future__ import annotations

import asyncio
import random
import selectors
from collections.abc import Callable, Collection, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from coterie.errors import RefusedError, UnreachableError
from coterie.peer.network.messages import Head, check_body_size, decode_head, encode_head
from coterie.peer.network.serving import Handler

T = TypeVar("T")


class _NoWaiting(selectors.DefaultSelector):
    """Instead of waiting, moves the clock of its loop."""

    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise RuntimeError("deadlock: every task waits, and no timer is set")
        self.loop.now += max(0.0, timeout)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time passes only when nothing else can be done."""

    def __init__(self) -> None:
        selector = _NoWaiting()
        selector.loop = self
        self.now = 0.0
        super().__init__(selector)

    def time(self) -> float:
        return self.now


def run_virtually(main: Coroutine[Any, Any, T]) -> T:
    """As asyncio.run, without real time."""
    loop = VirtualLoop()
    try:
        asyncio.set_event_loop(loop)
        return loop.run_until_complete(main)
    finally:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.run_until_complete(loop.shutdown_asyncgens())
        asyncio.set_event_loop(None)
        loop.close()


@dataclass(frozen=True)
class Cut:
    """For some time nothing passes between a group of peers, by name, and all others."""

    group: Collection[str]
    start: float  # seconds
    seconds: float
    one_way: bool = False  # what the others send to the group still arrives

    def __call__(self, sender: str, receiver: str, now: float) -> bool:
        leaves, enters = sender in self.group, receiver in self.group
        between = leaves != enters and (leaves or not self.one_way)
        return between and self.start <= now < self.start + self.seconds


@dataclass
class Faults:
    """How bad the network is; all rates are probabilities of one message."""

    delay: float = 0.001  # mean seconds, one way
    slow: float = 0.0  # takes a hundred times longer
    lost_request: float = 0.0
    lost_answer: float = 0.0
    duplicated: float = 0.0
    cut: Callable[[str, str, float], bool] = lambda sender, receiver, now: False  # such as a `Cut`


@dataclass
class MemoryNetwork:
    """Everyone's handlers. A crashed peer has none, and its connections die with it."""

    seed: int = 0
    faults: Faults = field(default_factory=Faults)
    handlers: dict[str, Handler] = field(default_factory=dict)
    generations: dict[str, int] = field(default_factory=dict)
    seen: list[tuple[str, str, Head, bytes]] = field(default_factory=list)
    recording: bool = False
    unknown: set[str] = field(default_factory=set)  # whose new certificates nobody knows yet

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)

    def transport(self, name: str) -> MemoryTransport:
        return MemoryTransport(self, name)

    def attach(self, name: str, handler: Handler) -> None:
        self.handlers[name] = handler
        self.generations[name] = self.generations.get(name, 0) + 1

    def detach(self, name: str) -> None:
        self.handlers.pop(name, None)

    async def travel(self, sender: str, receiver: str) -> None:
        """One way; raises if the link is cut, after a while."""
        seconds = self.random.expovariate(1 / self.faults.delay)
        if self.random.random() < self.faults.slow:
            seconds *= 100
        await asyncio.sleep(seconds)
        if self.faults.cut(sender, receiver, asyncio.get_running_loop().time()):
            await asyncio.sleep(3600)

    def happens(self, rate: float) -> bool:
        return self.random.random() < rate


@dataclass
class MemoryTransport:
    """One peer's side of the network."""

    network: MemoryNetwork
    name: str

    async def request(
        self, to: str, address: str, head: Head, body: bytes = b"", *, timeout: float, most: int = 0
    ) -> tuple[Head, bytes]:
        progress = {"sent": False}
        try:
            async with asyncio.timeout(timeout):
                answer, content = await self._request(to, head, body, progress)
            check_body_size(len(content), most)
            return answer, content
        except TimeoutError:
            raise UnreachableError(f"{to} did not answer", sent=progress["sent"]) from None

    async def _request(
        self, to: str, head: Head, body: bytes, progress: dict[str, bool]
    ) -> tuple[Head, bytes]:
        network = self.network
        await network.travel(self.name, to)
        if to not in network.handlers:
            raise UnreachableError(f"{to} is not there", sent=False)
        if {self.name, to} & network.unknown:  # there is no connection, and so no copy of a message either
            raise RefusedError("certificate", "it is not that of the roster; is there a new card?")
        progress["sent"] = True
        if network.happens(network.faults.lost_request):
            await asyncio.sleep(3600)
        generation = network.generations[to]
        copies = 2 if network.happens(network.faults.duplicated) else 1
        tasks = [asyncio.ensure_future(self._deliver(to, generation, head, body, n)) for n in range(copies)]
        try:
            answer = await tasks[0]
        except asyncio.CancelledError:
            tasks[0].cancel()
            raise
        finally:
            if copies == 2:
                tasks[1].add_done_callback(lambda task: task.cancelled() or task.exception())
        if network.happens(network.faults.lost_answer):
            await asyncio.sleep(3600)
        await network.travel(to, self.name)
        if isinstance(answer, RefusedError):
            raise answer
        return answer

    async def _deliver(
        self, to: str, generation: int, head: Head, body: bytes, copy: int
    ) -> tuple[Head, bytes] | RefusedError:
        """What happens at the receiver, as long as the process that took the message lives."""
        if copy:
            await self.network.travel(self.name, to)
        handler = self.network.handlers.get(to)
        head = decode_head(encode_head(head))
        if handler is None or self.network.generations[to] != generation:
            raise UnreachableError(f"{to} went away")
        try:
            if (wait := handler.admit(self.name, head, len(body))) is not None:
                await wait
            if self.network.generations[to] != generation or to not in self.network.handlers:
                raise UnreachableError(f"{to} went away")
            if self.network.recording:
                self.network.seen.append((self.name, to, head, body))
            answer, content = await handler.take(self.name, head, body)
        except RefusedError as error:
            return error
        if self.network.recording:
            self.network.seen.append((to, self.name, answer, content))
        return decode_head(encode_head(answer)), content
