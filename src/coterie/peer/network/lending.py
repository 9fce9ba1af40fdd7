"""Connections on which the other side asks: for peers that cannot be dialled, behind a firewall or a router.

Such a peer opens connections to those whom it can dial, and lends them: the roles change, and from then on
the one that was dialled sends requests and the one that dialled answers them. TLS, certificates and limits
are those of any other connection.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field

from coterie.errors import RefusedError, UnreachableError
from coterie.peer.network.connection import Frames, Limits, TlsStream
from coterie.peer.network.serving import log

_LENT = 4  # connections to each: a parcel, another one that waits, a heartbeat, a question
_WANTED = 60.0  # seconds for which a connection is lent again, unless somebody says that it is still wanted
_AGAIN = 1.0  # seconds from one attempt to the next, if the connection does not last


@dataclass(eq=False)
class Loan:
    """A connection that another peer opened for us to ask on."""

    stream: TlsStream
    frames: Frames
    used: float
    idle: bool = True
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class Borrowed:
    """The asking side: what others have lent, by their names."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._loans: defaultdict[str, list[Loan]] = defaultdict(list)
        self._freed = asyncio.Event()

    def of(self, owner: str) -> int:
        """How many connections a peer has lent."""
        return len(self._loans.get(owner, ()))

    async def hold(self, owner: str, stream: TlsStream, frames: Frames) -> None:
        """Keep a lent connection until it breaks, or is not used any more."""
        loan = Loan(stream, frames, asyncio.get_running_loop().time())
        self._loans[owner].append(loan)
        self._freed.set()
        try:
            while not loan.ended.is_set():
                with suppress(TimeoutError):
                    await asyncio.wait_for(loan.ended.wait(), self._limits.idle / 4)
                if loan.idle and not self._usable(loan):
                    return
        finally:
            self._loans[owner].remove(loan)
            self._freed.set()

    async def take(self, owner: str) -> Loan | None:
        """An idle one, as soon as there is one; None if the peer has lent none."""
        while self.of(owner):
            for loan in self._loans[owner]:
                if loan.idle and not loan.ended.is_set():
                    loan.idle = False
                    if self._usable(loan):
                        return loan
                    loan.ended.set()
            self._freed.clear()
            await self._freed.wait()
        return None

    def give_back(self, loan: Loan, good: bool) -> None:
        loan.idle, loan.used = True, asyncio.get_running_loop().time()
        if not good or not loan.frames.in_step:
            loan.ended.set()
        self._freed.set()

    def _usable(self, loan: Loan) -> bool:
        """Half the time after which the other side closes it: no request meets a closing connection."""
        fresh = asyncio.get_running_loop().time() - loan.used < self._limits.idle / 2
        return fresh and loan.stream.quiet


class Lender:
    """The lending side. serve: opens a connection to a peer, lends it, and answers on it until it ends."""

    def __init__(self, serve: Callable[[str, str], Awaitable[None]]) -> None:
        self._serve = serve
        self._wanted: dict[
            str, tuple[str, float]
        ] = {}  # by name: the address, and when it was last asked for
        self._tasks: dict[str, list[asyncio.Task[None]]] = {}

    def lend(self, to: str, address: str) -> None:
        """Keep connections to this peer on which it can ask; to be said again and again while it holds."""
        self._wanted[to] = address, asyncio.get_running_loop().time()
        tasks = [task for task in self._tasks.get(to, ()) if not task.done()]
        tasks += [asyncio.create_task(self._keep(to)) for _ in range(_LENT - len(tasks))]
        self._tasks[to] = tasks

    async def stop(self) -> None:
        tasks = [task for kept in self._tasks.values() for task in kept]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._tasks, self._wanted = {}, {}

    async def _keep(self, to: str) -> None:
        loop = asyncio.get_running_loop()
        while (began := loop.time()) < self._wanted[to][1] + _WANTED:
            try:
                await self._serve(to, self._wanted[to][0])
            except (OSError, RefusedError, UnreachableError) as error:
                log.debug("a connection that was lent to %s ended: %s", to, error)
            await asyncio.sleep(max(0.0, began + _AGAIN - loop.time()))
