"""Stands between a peer and its transport, and writes down what goes and comes: see `audit`."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from pathlib import Path

from coterie.errors import RefusedError, UnreachableError
from coterie.peer.network.calling import Transport
from coterie.peer.network.messages import Body, Head, Parcel, Receipt, SealStep
from coterie.peer.network.serving import Handler
from coterie.peer.watch.audit import Audit

_LARGE = 1 << 20  # bytes from which a hash is computed beside the event loop
_SESSIONS = 256  # secure sums whose groups are remembered
_UNWANTED, _SECONDS = 20, 60.0  # lines about what one member sent in vain, in so many seconds


class Witness:
    """A `Transport` that writes down what became of each message with a payload; heartbeats have none.

    name: of a member, by its number.
    """

    def __init__(self, transport: Transport, audit: Audit, name: Callable[[int], str]) -> None:
        self._transport, self._audit, self._name = transport, audit, name
        self._hashing: dict[
            int, tuple[asyncio.Future[str], int]
        ] = {}  # of bodies on their way, and to how many
        self._groups: dict[str, list[str]] = {}  # of secure sums, by session
        self._unwanted: dict[str, deque[float]] = {}  # by member, when lines about it were written
        self._left_out: Counter[str] = Counter()  # by member, since the last line about it

    async def request(
        self, to: str, address: str, head: Head, body: bytes = b"", *, timeout: float, most: int = 0
    ) -> tuple[Head, bytes]:
        """As of the transport that it stands before."""
        asked = self._transport.request(to, address, head, body, timeout=timeout, most=most)
        if isinstance(head, Parcel) and not head.empty:
            return await self._sent(to, head, body, asked)
        if isinstance(head, SealStep):
            return await self._collected(to, head, asked)
        return await asked

    def before(self, handler: Handler) -> Handler:
        """The handler, with a look at what it takes."""
        return _WitnessedHandler(handler, self)

    async def _sent(
        self, to: str, head: Parcel, body: bytes, asked: Awaitable[tuple[Head, bytes]]
    ) -> tuple[Head, bytes]:
        digest = await self._shared_digest(body)
        try:
            answer = await asked
        except (RefusedError, UnreachableError) as error:
            event = "refused there" if isinstance(error, RefusedError) else "no answer"
            self._audit.write(
                event, round=head.round, peer=to, digest=digest, bytes=len(body), reason=str(error)
            )
            raise
        finally:
            self._release(body)
        if isinstance(answer[0], Receipt):
            again = "it was there already" if answer[0].duplicate else ""
            self._audit.write("sent", round=head.round, peer=to, digest=digest, bytes=len(body), reason=again)
        return answer

    async def _collected(
        self, to: str, head: SealStep, asked: Awaitable[tuple[Head, bytes]]
    ) -> tuple[Head, bytes]:
        """A step of a secure sum that this peer collects."""
        group = self._group(head)
        try:
            answer, body = await asked
        except (RefusedError, UnreachableError) as error:
            event = "refused there" if isinstance(error, RefusedError) else "no answer"
            reason = f"sealed sum, {head.step}: {error}"
            self._audit.write(event, round=head.round, peer=to, group=group, reason=reason)
            raise
        await self._step("received", to, head, body, group)
        return answer, body

    async def took(self, caller: str, head: Head, digest: str, size: int, answer: tuple[Head, bytes]) -> None:
        """The handler has taken a message."""
        if isinstance(head, SealStep):
            await self._step("sent", caller, head, answer[1], self._group(head))
        elif isinstance(head, Parcel) and isinstance(answer[0], Receipt) and not head.empty:
            if answer[0].duplicate:
                self._in_vain(caller, head, digest, size, "it was here already")
            else:
                self._audit.write("received", round=head.round, peer=caller, digest=digest, bytes=size)

    def refused(self, caller: str, head: Head, digest: str, size: int, error: RefusedError) -> None:
        """The handler has refused a message, before or after its body came."""
        if isinstance(head, (Parcel, SealStep)):
            self._in_vain(caller, head, digest, size, str(error))

    def _in_vain(self, caller: str, head: Parcel | SealStep, digest: str, size: int, reason: str) -> None:
        """A member can send without end what nobody wants: the audit must not grow with it."""
        written, now = self._unwanted.setdefault(caller, deque(maxlen=_UNWANTED)), time.monotonic()
        if len(written) == _UNWANTED and now - written[0] < _SECONDS:
            self._left_out[caller] += 1
            return
        written.append(now)
        if more := self._left_out.pop(caller, 0):
            reason += f" (and {more:,} times more before this, not written down)"
        self._audit.write("refused", round=head.round, peer=caller, digest=digest, bytes=size, reason=reason)

    async def _step(self, event: str, peer: str, head: SealStep, body: bytes, group: list[str]) -> None:
        digest = await digest_of(body) if body else ""
        self._audit.write(
            event,
            round=head.round,
            peer=peer,
            digest=digest,
            bytes=len(body),
            group=group,
            reason=f"sealed sum, {head.step}",
        )

    def _group(self, head: SealStep) -> list[str]:
        """Whose sum a step belongs to; only some steps say so."""
        if head.members:
            self._groups[head.session] = [self._name(number) for number in head.members]
            while len(self._groups) > _SESSIONS:
                self._groups.pop(next(iter(self._groups)))
        return self._groups.get(head.session, [])

    async def _shared_digest(self, body: bytes) -> str:
        """One body goes to many: it is hashed once."""
        future, users = self._hashing.get(id(body), (None, 0))
        if future is None:
            future = asyncio.ensure_future(digest_of(body))
        self._hashing[id(body)] = future, users + 1
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            self._release(body)
            raise

    def _release(self, body: bytes) -> None:
        future, users = self._hashing[id(body)]
        if users > 1:
            self._hashing[id(body)] = future, users - 1
        else:
            del self._hashing[id(body)]


class _WitnessedHandler:
    """What a peer does with messages, under the eyes of a `Witness`."""

    def __init__(self, handler: Handler, witness: Witness) -> None:
        self._handler, self._witness = handler, witness

    def admit(self, caller: str, head: Head, size: int) -> Awaitable[None] | None:
        try:
            wait = self._handler.admit(caller, head, size)
        except RefusedError as error:
            self._witness.refused(caller, head, "", size, error)
            raise
        return None if wait is None else self._waited(wait, caller, head, size)

    async def _waited(self, wait: Awaitable[None], caller: str, head: Head, size: int) -> None:
        try:
            await wait
        except RefusedError as error:
            self._witness.refused(caller, head, "", size, error)
            raise

    async def take(self, caller: str, head: Head, body: Body) -> tuple[Head, bytes]:
        size = len(body) if isinstance(body, bytes) else body.stat().st_size
        digest = await digest_of(body) if isinstance(head, Parcel) and not head.empty else ""
        try:
            answer = await self._handler.take(caller, head, body)
        except RefusedError as error:
            self._witness.refused(caller, head, digest, size, error)
            raise
        await self._witness.took(caller, head, digest, size, answer)
        return answer


async def digest_of(body: Body) -> str:
    """SHA-256 in hex; a large body does not hold up the event loop."""
    size = len(body) if isinstance(body, bytes) else body.stat().st_size
    return await asyncio.to_thread(_sha256, body) if size > _LARGE else _sha256(body)


def _sha256(body: bytes | Path) -> str:
    if isinstance(body, bytes):
        return hashlib.sha256(body).hexdigest()
    with open(body, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
