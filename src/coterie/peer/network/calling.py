"""The calling side: requests to other peers over mutual TLS, on connections that are reused."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from coterie.errors import RefusedError, UnreachableError
from coterie.peer.network.connection import AT_ONCE, Frames, Limits, Opening, TlsStream
from coterie.peer.network.lending import Borrowed, Lender, Loan
from coterie.peer.network.lookup import Names
from coterie.peer.network.messages import (
    Head,
    Lend,
    Receipt,
    Refusal,
    check_body_size,
    decode_head,
    encode_head,
)
from coterie.peer.network.relay import meet
from coterie.peer.network.serving import Handler, Identify, Refused, Server, about_certificates, log
from coterie.peer.trust.names import OUTGOING, split_relay

_WAITING_AT_RELAY = 3  # connections that wait for callers
_AT_RELAY, _RELAY_AGAIN = 600.0, 1.0  # seconds of waiting on one of them, and before the next is tried
_KEPT = 3  # idle connections per destination: a parcel, a heartbeat, a question where it is


class Transport(Protocol):
    """How a peer asks others: a `TlsTransport`, or in tests a network in memory with faults."""

    async def request(
        self, to: str, address: str, head: Head, body: bytes = b"", *, timeout: float, most: int = 0
    ) -> tuple[Head, bytes]:
        """Send a message and wait for its answer, whose body may have `most` bytes.

        Raises UnreachableError when there is no answer within the timeout, and then it is unknown whether
        the message was taken; RefusedError when the other side answers with a refusal, and then it was not.
        """


@dataclass
class _Connection:
    stream: TlsStream
    frames: Frames
    used: float  # when it was last
    loan: Loan | None = None  # the other side opened it, and lent it to us

    async def request(self, head: bytes, body: bytes, wait: float, most: int) -> tuple[Opening, bytes]:
        """The answer, which may come before the body was sent: a refusal."""
        await self.frames.send(head, body)
        answer = await self._opening(wait)
        if not answer.head and len(body) > AT_ONCE:
            await self.frames.send_body(body)
            answer = await self._opening(wait)
        check_body_size(answer.size, most)  # before any of it is read
        data = await self.frames.body(answer.size)
        assert isinstance(data, bytes)
        return answer, data

    async def greeting(self, wait: float) -> Opening:
        return await self._opening(wait)

    async def _opening(self, wait: float) -> Opening:
        opening = await self.frames.opening(wait)
        if opening is None:
            raise ConnectionError("the connection gave no answer")
        return opening


class TlsTransport:
    """Messages between peers over mutual TLS: a `Transport` that listens too, with a `Server`.

    It is written by hand, on the standard library's `ssl`, for two reasons. A failed handshake is reported
    with its reason, to the one who called and in our counts; gRPC for Python does not report it. And a
    receiver answers before the body comes. A unary call of gRPC reads the whole message before it can be
    declined; a stream of gRPC does not, but the question and the answer on it would be our own again. The
    throughput is that of a bare TLS socket (benchmarks/transport.py).

    name:            ours, the sender of refusals
    host, port:      where to listen; port 0 lets the system choose; port -1: nowhere
    server_context, client_context: called for every connection, so that a changed roster or a renewed
                     certificate needs no restart; TLS 1.3 and certificates on both sides are enforced here
    identify:        from a certificate (DER) to the name of its peer; raises RefusedError for strangers
    spool:           a folder of our own for large bodies
    relay:           relay/host:port/token: wait there for callers, too
    refused:         told of every refusal by this side: its reason, and the peer's name or address
    """

    def __init__(
        self,
        name: str,
        host: str,
        port: int,
        *,
        server_context: Callable[[], ssl.SSLContext],
        client_context: Callable[[], ssl.SSLContext],
        identify: Identify,
        spool: Path,
        limits: Limits | None = None,
        refused: Refused = lambda reason, who: None,
        relay: str = "",
    ) -> None:
        self._relay, self._at_relay = relay, list[asyncio.Task[None]]()
        limits = limits or Limits()
        self.host, self.port = host, port
        self._name = name
        self._borrowed = Borrowed(limits)
        self._lender = Lender(self._serve_on_loan)
        self._server = Server(name, server_context, identify, limits, spool, refused, self._hold)
        self._context, self._identify, self._limits, self._refused = client_context, identify, limits, refused
        self._names = Names()
        self._stopped = 0  # how often
        self._swept = float("-inf")  # when
        self._idle: defaultdict[tuple[str, str], list[_Connection]] = defaultdict(list)
        most = max(1, limits.connections_per_peer // 2)  # of what a peer grants us
        self._turns: defaultdict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(most))

    async def start(self, handler: Handler) -> None:
        """Listen; `port` is then the one that the system chose. PeerError when that is impossible."""
        self._server.prepare(handler)
        if self.port >= 0:
            self.port = await self._server.start(self.host, self.port)
        if (relayed := split_relay(self._relay)) is not None:
            self._at_relay = [
                asyncio.create_task(self._wait_at_relay(*relayed)) for _ in range(_WAITING_AT_RELAY)
            ]

    def lend(self, to: str, address: str) -> None:
        """Open connections on which this peer can ask us; to be said again and again while it cannot dial."""
        self._lender.lend(to, address)

    def borrows(self, owner: str) -> bool:
        """Whether this peer has opened connections on which we ask it."""
        return self._borrowed.of(owner) > 0

    async def stop(self) -> None:
        """Close all connections, within seconds. The transport can be started again.

        A connection to another peer that is in use is closed as soon as its answer is there.
        """
        self._stopped += 1
        for kept in self._idle.values():
            for connection in kept:
                connection.stream.close()
        self._idle.clear()
        for task in self._at_relay:
            task.cancel()
        await asyncio.gather(*self._at_relay, return_exceptions=True)
        self._at_relay = []
        await self._lender.stop()
        await self._server.stop()

    async def request(
        self, to: str, address: str, head: Head, body: bytes = b"", *, timeout: float, most: int = 0
    ) -> tuple[Head, bytes]:
        """See `Transport.request`. RefusedError "certificate" also when `to` is not who answers there."""
        raw = encode_head(head)
        try:
            async with asyncio.timeout(timeout):
                return await self._request(to, address, raw, body, timeout, most)
        except TimeoutError:
            raise UnreachableError(f"{to} at {address} gave no answer within {timeout:g} s") from None
        except OSError as error:
            raise UnreachableError(f"{to} at {address}: {_in_words(error)}") from error

    async def _request(
        self, to: str, address: str, head: bytes, body: bytes, timeout: float, most: int
    ) -> tuple[Head, bytes]:
        async with self._turns[to]:
            good, stopped = False, self._stopped
            connection = await self._lent(to) or self._reused(to, address) or await self._new(to, address)
            try:
                answer, data = await self._exchange(connection, to, head, body, timeout, most)
                good = True
            except RefusedError:
                good = True
                raise
            finally:
                self._release(connection, to, address, good and stopped == self._stopped)
        return answer, data

    async def _exchange(
        self, connection: _Connection, to: str, head: bytes, body: bytes, timeout: float, most: int
    ) -> tuple[Head, bytes]:
        try:
            opening, data = await connection.request(head, body, timeout, most)
            answer = decode_head(opening.head)
            if answer.sender != to:
                raise RefusedError("sender", f"the answer names {answer.sender}")
        except RefusedError as error:  # of their answer, by us: they may have taken the message
            self._count(error, to)
            raise UnreachableError(f"the answer of {to} cannot be used: {error.text}") from error
        if isinstance(answer, Refusal):
            raise RefusedError(answer.reason, answer.text)
        return answer, data

    async def _hold(self, owner: str, stream: TlsStream) -> None:
        await self._borrowed.hold(owner, stream, Frames(stream, self._limits, spool=None))

    async def _lent(self, to: str) -> _Connection | None:
        """Whoever lends connections cannot be dialled: its requests wait until one of them is free."""
        while (loan := await self._borrowed.take(to)) is not None:
            connection = _Connection(loan.stream, loan.frames, loan.used, loan)
            if self._belongs(connection, to):
                return connection
            self._borrowed.give_back(loan, good=False)
        return None

    async def _serve_on_loan(self, to: str, address: str) -> None:
        connection = await self._new(to, address)
        try:
            head = encode_head(Lend(sender=self._name))
            answer, _ = await self._exchange(connection, to, head, b"", self._limits.handshake, 0)
            if isinstance(answer, Receipt):
                await self._server.serve(connection.stream, to)
        finally:
            connection.stream.close()

    def _reused(self, to: str, address: str) -> _Connection | None:
        kept = self._idle[to, address]
        while kept:
            connection = kept.pop()
            if self._fresh(connection) and connection.stream.quiet and self._belongs(connection, to):
                return connection
            connection.stream.close()
        return None

    def _fresh(self, connection: _Connection) -> bool:
        """Half the time after which the other side closes it: no request meets a closing connection."""
        return asyncio.get_running_loop().time() - connection.used < self._limits.idle / 2

    def _belongs(self, connection: _Connection, to: str) -> bool:
        """The roster may have changed since it was opened."""
        try:
            return self._identify(connection.stream.certificate) == to
        except RefusedError:
            return False

    def _release(self, connection: _Connection, to: str, address: str, good: bool) -> None:
        if connection.loan is not None:
            self._borrowed.give_back(connection.loan, good)
            return
        connection.used = asyncio.get_running_loop().time()
        kept = self._idle[to, address]
        if good and connection.frames.in_step and len(kept) < _KEPT:
            kept.append(connection)
        else:
            connection.stream.close()
        self._sweep()

    def _sweep(self) -> None:
        """Close what has been idle for long, also to peers that are not asked any more."""
        now = asyncio.get_running_loop().time()
        if now < self._swept + self._limits.idle / 4:
            return
        self._swept = now
        for key, kept in [*self._idle.items()]:
            stale = [connection for connection in kept if not self._fresh(connection)]
            for connection in stale:
                connection.stream.close()
                kept.remove(connection)
            if not kept:
                del self._idle[key]

    async def _new(self, to: str, address: str) -> _Connection:
        """As long as there is no connection, nothing was sent: whoever asks may try again."""
        try:
            return await self._connect(to, address)
        except UnreachableError as error:
            raise UnreachableError(str(error), sent=False) from error
        except OSError as error:
            raise UnreachableError(f"{to} at {address}: {_in_words(error)}", sent=False) from error

    async def _connect(self, to: str, address: str) -> _Connection:
        loop = asyncio.get_running_loop()
        context = self._own_context()
        sock = await self._dial(address)
        try:
            stream = TlsStream(sock, context, server_side=False)
        except BaseException:
            sock.close()
            raise
        try:
            await stream.handshake(loop.time() + self._limits.handshake)
            self._check_identity(stream, to)
            connection = _Connection(stream, Frames(stream, self._limits, spool=None), loop.time())
            await self._greeted(connection, to)
        except ssl.SSLError as error:
            stream.close()
            raise self._tls_failure(error, to) from error
        except BaseException:
            stream.close()
            raise
        return connection

    def _own_context(self) -> ssl.SSLContext:
        try:
            return self._context()
        except OSError as error:
            log.exception("our certificate, key or roster cannot be used")
            raise UnreachableError(f"our certificate, key or roster cannot be used: {error}") from error

    async def _dial(self, address: str) -> socket.socket:
        """The first of the host's addresses that answers."""
        if address == OUTGOING:
            raise UnreachableError("it accepts no connections, and none is open from it")
        if (relayed := split_relay(address)) is not None:
            return await self._through_relay(*relayed, "call", self._limits.handshake)
        loop = asyncio.get_running_loop()
        found = await self._names.places(address)
        failure: OSError = OSError("the host has no address")
        for family, place in found:
            sock = socket.socket(family, socket.SOCK_STREAM)
            try:
                sock.setblocking(False)
                async with asyncio.timeout(self._limits.handshake):
                    await loop.sock_connect(sock, place)
                return sock
            except TimeoutError:
                sock.close()
                failure = TimeoutError("no connection in time")
            except OSError as error:
                sock.close()
                failure = error
            except BaseException:
                sock.close()
                raise
        raise failure

    async def _through_relay(
        self, relay: str, token: str, what: Literal["call", "listen"], wait: float
    ) -> socket.socket:
        sock = await self._dial(relay)
        try:
            await meet(sock, what, token, wait)
        except BaseException:
            sock.close()
            raise
        return sock

    async def _wait_at_relay(self, relay: str, token: str) -> None:
        """Be there for callers, for ever."""
        while True:
            try:
                sock = await self._through_relay(relay, token, "listen", _AT_RELAY)
                self._server.serve_accepted(sock, f"relay {relay}")
            except (OSError, UnreachableError) as error:
                log.debug("waiting at the relay %s: %s", relay, error)
                await asyncio.sleep(_RELAY_AGAIN)

    def _check_identity(self, stream: TlsStream, to: str) -> None:
        try:
            name = self._identify(stream.certificate)
            if name != to:
                raise RefusedError("certificate", f"the certificate is that of {name}, not of {to}")
        except RefusedError as error:
            self._count(error, to)
            raise

    async def _greeted(self, connection: _Connection, to: str) -> None:
        """Wait for the word that requests are welcome: only then the other side knows our certificate."""
        try:
            opening = await connection.greeting(self._limits.handshake)
            if not opening.head:
                return
            refusal = decode_head(opening.head)
        except RefusedError as error:
            self._count(error, to)
            raise UnreachableError(f"{to} does not speak our protocol: {error.text}") from error
        if isinstance(refusal, Refusal):
            raise RefusedError(refusal.reason, refusal.text)
        raise UnreachableError(f"{to} does not speak our protocol")

    def _tls_failure(self, error: ssl.SSLError, to: str) -> Exception:
        if isinstance(error, ssl.SSLCertVerificationError):
            why = f"{to} showed a certificate that is not valid here: {error.verify_message}"
            refusal = RefusedError("certificate", why)
            self._count(refusal, to)
            return refusal
        if about_certificates(error):  # an alert: counted at the other side
            return RefusedError("certificate", f"{to} does not accept our certificate: {error.reason}")
        return UnreachableError(f"no TLS with {to}: {error.reason or error}")

    def _count(self, error: RefusedError, who: str) -> None:
        log.info("refused %s: %s", who, error)
        self._refused(error.reason, who)


def _in_words(error: OSError) -> str:
    if isinstance(error, (ssl.SSLError, socket.gaierror)) or not error.errno:
        return error.strerror or str(error)
    return os.strerror(error.errno)  # asyncio's own text leaves out the cause
