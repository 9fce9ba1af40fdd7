"""The listening side: accept connections, find out who calls, and pass messages to the handler."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol, TypeVar, cast, get_args

from coterie.errors import PeerError, RefusedError
from coterie.peer.network.connection import (
    AT_ONCE,
    Frames,
    Limits,
    Opening,
    TlsStream,
    accept,
    remove_spooled,
)
from coterie.peer.network.messages import (
    Body,
    Head,
    Lend,
    Reason,
    Receipt,
    Refusal,
    check_body_size,
    decode_head,
    encode_head,
)

_T = TypeVar("_T")
_REASONS = get_args(Reason)
_BACKLOG = 128
_STOPPING = 5.0  # seconds for connections to end once they are cancelled

log = logging.getLogger("coterie.peer")

Identify = Callable[["bytes | None"], str]
Refused = Callable[[str, str], None]
Lent = Callable[[str, TlsStream], Awaitable[None]]
"""Takes a connection that a peer has lent, and returns when it is over."""


class Handler(Protocol):
    """What a peer does with the messages of others. Errors other than `RefusedError` are bugs."""

    def admit(self, caller: str, head: Head, size: int) -> Awaitable[None] | None:
        """Decide about a message before its body is read. None: there is a use for it now; else wait.

        caller: the name that belongs to the certificate of the connection. size: bytes of the body.
        Raises RefusedError, at once or after the wait.
        """

    async def take(self, caller: str, head: Head, body: Body) -> tuple[Head, bytes]:
        """Take an admitted message, without waiting; returns the answer. Raises RefusedError."""


class Server:
    """One listening peer; `calling.TlsTransport` is its counterpart."""

    def __init__(
        self,
        name: str,
        context: Callable[[], ssl.SSLContext],
        identify: Identify,
        limits: Limits,
        spool: Path,
        refused: Refused,
        lent: Lent | None = None,
    ) -> None:
        self._name, self._context, self._identify, self._lent = name, context, identify, lent
        self._limits, self._spool, self._refused = limits, spool, refused
        self._handler: Handler | None = None
        self._listening: list[socket.socket] = []
        self._accepting: list[asyncio.Task[None]] = []
        self._connections: set[asyncio.Task[None]] = set()
        self._by_peer: Counter[str] = Counter()

    def prepare(self, handler: Handler) -> None:
        """Answer with this handler, on connections that others open or that are lent to them."""
        self._handler = handler
        self._spool.mkdir(mode=0o700, parents=True, exist_ok=True)
        remove_spooled(self._spool)

    async def start(self, host: str, port: int) -> int:
        """Listen on every address that the host name stands for; returns the port."""
        try:
            self._listening, port = await _listen(host, port)
        except OSError as error:
            raise PeerError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
        self._accepting = [asyncio.create_task(self._accept(sock)) for sock in self._listening]
        return port

    async def stop(self) -> None:
        await _end(self._accepting)
        for sock in self._listening:
            sock.close()
        self._accepting, self._listening = [], []
        await _end([*self._connections])

    async def serve(self, stream: TlsStream, caller: str) -> None:
        """Answer a peer on a connection that was opened from here."""
        await self._converse(stream, Frames(stream, self._limits, self._spool), caller)

    async def _accept(self, listening: socket.socket) -> None:
        while True:
            try:
                sock, address = await accept(listening)
            except OSError as error:  # gone before it was accepted, or no descriptor is left
                log.warning("a connection could not be accepted: %s", error)
                await asyncio.sleep(0.1)
                continue
            who = f"{address[0]}:{address[1]}"
            if len(self._connections) >= self._limits.connections:
                sock.close()
                self._count(RefusedError("busy", "too many connections"), who)
                continue
            self.serve_accepted(sock, who)

    def serve_accepted(self, sock: socket.socket, who: str) -> None:
        """Find out who calls on a connection, and answer."""
        task = asyncio.create_task(self._connection(sock, who))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)
        # A task that is cancelled before its first step closes nothing itself.
        task.add_done_callback(lambda _: sock.close())

    async def _connection(self, sock: socket.socket, address: str) -> None:
        stream = self._stream(sock, address)
        if stream is None:
            sock.close()
            return
        try:
            if await self._shaken_hands(stream, address):
                await self._identified(stream, address)
        except OSError as error:
            log.debug("the connection with %s ended: %s", address, error)
        except Exception:
            log.exception("the connection with %s failed", address)
        finally:
            stream.close()

    def _stream(self, sock: socket.socket, address: str) -> TlsStream | None:
        try:
            context = self._context()
        except Exception:
            log.exception("nobody can connect: our certificate, key or roster cannot be used")
            return None
        try:
            return TlsStream(sock, context, server_side=True)
        except OSError as error:
            log.debug("%s is gone already: %s", address, error)
            return None

    async def _shaken_hands(self, stream: TlsStream, address: str) -> bool:
        try:
            await stream.handshake(asyncio.get_running_loop().time() + self._limits.handshake)
        except OSError as error:
            self._count(_handshake_refusal(error), address)
            return False
        return True

    async def _identified(self, stream: TlsStream, address: str) -> None:
        frames = Frames(stream, self._limits, self._spool)
        try:
            caller = self._identify(stream.certificate)
            if self._by_peer[caller] >= self._limits.connections_per_peer:
                raise RefusedError("busy", f"too many connections from {caller}")
        except RefusedError as error:
            await self._refuse(frames, error, address)
            return
        self._by_peer[caller] += 1
        try:
            await frames.go_on()
            await self._converse(stream, frames, caller)
        finally:
            self._by_peer[caller] -= 1

    async def _converse(self, stream: TlsStream, frames: Frames, caller: str) -> None:
        while True:
            try:
                if not await self._message(stream, frames, caller):
                    return
            except RefusedError as error:
                await self._refuse(frames, error, caller)
                if not frames.in_step or error.reason == "certificate":
                    return

    async def _message(self, stream: TlsStream, frames: Frames, caller: str) -> bool:
        """One request and its answer; False when the caller has no more."""
        try:
            opening = await frames.opening(self._limits.idle)
        except ssl.SSLError as error:
            raise RefusedError("malformed", "the connection broke between messages") from error
        if opening is None:
            return False
        body: Body | None = await frames.body(opening.size) if opening.size <= AT_ONCE else None
        if body is None:
            frames.skip_body()  # until `go_on` asks for it
        check_body_size(opening.size, self._limits.largest_body)
        head = self._checked(opening, caller, stream.certificate)
        if isinstance(head, Lend) and self._lent is not None:
            await frames.send_all(encode_head(Receipt(sender=self._name)), b"")
            await self._lent(caller, stream)
            return False
        if not await self._admitted(stream, caller, head, opening.size):
            return False
        if body is None:
            await frames.go_on()
            body = await frames.body(opening.size)
        answer, data = await self._taken(caller, head, body)
        await frames.send_all(encode_head(answer), data)
        return True

    def _checked(self, opening: Opening, caller: str, certificate: bytes | None) -> Head:
        # Again for each message: who was removed from the roster is refused on open connections too.
        if self._identify(certificate) != caller:
            raise RefusedError("certificate", "the certificate now belongs to another peer")
        head = decode_head(opening.head)
        if head.sender != caller:
            raise RefusedError("sender", f"the message names {head.sender}, the certificate {caller}")
        return head

    async def _admitted(self, stream: TlsStream, caller: str, head: Head, size: int) -> bool:
        """Ask the handler; False when the caller goes away meanwhile, which ends the handler's wait."""
        assert self._handler is not None
        with _handling():
            wait = self._handler.admit(caller, head, size)
        if wait is None:
            return True
        until = asyncio.get_running_loop().time() + self._limits.patience
        admitting = asyncio.ensure_future(self._patient(wait))
        leaving = asyncio.ensure_future(stream.disturbed(until + 1))
        try:
            await asyncio.wait({admitting, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            admitted = admitting.done()
            await _end([admitting, leaving])
        if admitted:
            admitting.result()
        return admitted

    async def _taken(self, caller: str, head: Head, body: Body) -> tuple[Head, bytes]:
        assert self._handler is not None
        try:
            with _handling():
                return await self._handler.take(caller, head, body)
        except BaseException:
            if isinstance(body, Path):
                body.unlink(missing_ok=True)  # nobody took it
            raise

    async def _patient(self, wait: Awaitable[None]) -> None:
        with _handling():
            try:
                async with asyncio.timeout(self._limits.patience):
                    await wait
            except TimeoutError:
                raise RefusedError("busy", "there was no use for the message in time") from None

    async def _refuse(self, frames: Frames, error: RefusedError, who: str) -> None:
        self._count(error, who)
        with suppress(OSError):  # who is gone needs no answer
            await frames.send_all(encode_head(_refusal(self._name, error)), b"")

    def _count(self, error: RefusedError, who: str) -> None:
        log.info("refused %s: %s", who, error)
        self._refused(error.reason, who)


@contextmanager
def _handling() -> Iterator[None]:
    """The handler's errors are bugs or refusals, never those of this connection."""
    try:
        yield
    except RefusedError:
        raise
    except Exception as error:
        log.exception("a message could not be handled")
        raise RefusedError("unexpected", "the message could not be handled here") from error


def _refusal(name: str, error: RefusedError) -> Refusal:
    reason = cast(Reason, error.reason if error.reason in _REASONS else "unexpected")
    text = error.text.encode(errors="replace").decode()[:500]
    return Refusal(sender=name, reason=reason, text=text)


def _handshake_refusal(error: OSError) -> RefusedError:
    if isinstance(error, TimeoutError):
        return RefusedError("slow", "the TLS handshake took too long")
    if isinstance(error, ssl.SSLCertVerificationError):
        return RefusedError("certificate", error.verify_message)
    if isinstance(error, (ConnectionError, ssl.SSLEOFError, ssl.SSLZeroReturnError)):
        return RefusedError("truncated", "the connection ended within the TLS handshake")
    what = (getattr(error, "reason", None) or "no TLS").replace("_", " ").lower()
    return RefusedError("certificate" if about_certificates(error) else "malformed", what)


def about_certificates(error: OSError) -> bool:
    """The handshake failed by a missing certificate, or one that the other side does not accept."""
    reason = getattr(error, "reason", None) or ""
    return "CERTIFICATE" in reason or "UNKNOWN_CA" in reason


async def _listen(host: str, port: int) -> tuple[list[socket.socket], int]:
    found = await asyncio.get_running_loop().getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    sockets: list[socket.socket] = []
    try:
        for family, address in dict.fromkeys((entry[0], entry[4]) for entry in found):
            sock = socket.socket(family, socket.SOCK_STREAM)
            sockets.append(sock)
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind((address[0], port, *address[2:]))
            port = sock.getsockname()[1]  # the one that the system gave, for all addresses
            sock.listen(_BACKLOG)
    except BaseException:
        for sock in sockets:
            sock.close()
        raise
    return sockets, port


async def _end(tasks: list[asyncio.Task[_T]]) -> None:
    """Cancel again and again: before Python 3.12, `asyncio.wait_for` loses one that comes with its result."""
    loop = asyncio.get_running_loop()
    until = loop.time() + _STOPPING
    left = set(tasks)
    while left and loop.time() < until:
        for task in left:
            task.cancel()
        ended, left = await asyncio.wait(left, timeout=0.1)
        for task in ended:
            if not task.cancelled():
                task.exception()  # whoever wanted to know has asked; asyncio need not complain
    if left:
        log.warning("%d tasks did not end within %g s", len(left), _STOPPING)
