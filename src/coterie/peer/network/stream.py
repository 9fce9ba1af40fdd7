"""One TLS connection for asyncio: reads and writes that wait no longer than a given moment.

OpenSSL works on the non-blocking socket itself, unlike in asyncio's own TLS streams: a failed handshake sends
its alert, so that the other side learns why; bytes arrive where they are wanted, without copies in between;
and nothing is read before somebody asks, so that a fast sender waits.
"""

from __future__ import annotations

import asyncio
import selectors
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

_T = TypeVar("_T")
_Selector = getattr(
    selectors, "PollSelector", selectors.SelectSelector
)  # for one look: no set up in the kernel

# A machine that vanished without a word is noticed after 10 + 3 * 5 s.
_KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}


class TlsStream:
    """Whoever made it closes it. `until` is a moment of the loop's clock; past it, TimeoutError."""

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, *, server_side: bool) -> None:
        self._loop = asyncio.get_running_loop()
        prepare(sock)
        sock.getpeername()  # an error if the other side is gone: then wrap_socket would not close the socket
        self._socket = strict(context).wrap_socket(
            sock, server_side=server_side, do_handshake_on_connect=False
        )

    async def handshake(self, until: float) -> None:
        await self._attempt(self._socket.do_handshake, until)

    @property
    def certificate(self) -> bytes | None:
        """The other side's, in DER."""
        return self._socket.getpeercert(binary_form=True)

    async def read(self, view: memoryview, until: float) -> int:
        """Read what there is, up to len(view) bytes; 0 when the other side has closed."""
        try:
            return await self._attempt(lambda: _as_much_as_possible(self._socket.recv_into, view), until)
        except ConnectionError:
            return 0

    async def write(self, data: memoryview, until: float) -> int:
        """Write what fits; returns how many bytes that were."""
        return await self._attempt(lambda: _as_much_as_possible(self._socket.send, data), until)

    async def disturbed(self, until: float) -> None:
        """Return when the other side closes or speaks out of turn."""
        with suppress(OSError):  # a broken connection is a disturbance too
            await self.read(memoryview(bytearray(1)), until)

    @property
    def quiet(self) -> bool:
        """The other side has neither closed nor sent anything since the last read."""
        with _Selector() as selector:
            selector.register(self._socket, selectors.EVENT_READ)
            return not selector.select(0)

    def close(self) -> None:
        with suppress(OSError, ValueError):  # ValueError: no handshake yet
            self._socket.unwrap()  # says goodbye if the socket takes it at once, and waits for nothing
        self._socket.close()

    async def _attempt(self, action: Callable[[], _T], until: float) -> _T:
        while True:
            try:
                return action()
            except ssl.SSLWantReadError:
                await self._ready(self._loop.add_reader, self._loop.remove_reader, until)
            except ssl.SSLWantWriteError:
                await self._ready(self._loop.add_writer, self._loop.remove_writer, until)

    async def _ready(self, add: Callable[..., object], remove: Callable[[int], object], until: float) -> None:
        waiter: asyncio.Future[None] = self._loop.create_future()
        descriptor = self._socket.fileno()
        timer = self._loop.call_at(until, _expire, waiter)
        add(descriptor, _wake, waiter)
        try:
            await waiter
        finally:
            timer.cancel()
            remove(descriptor)


async def accept(listening: socket.socket) -> tuple[socket.socket, Any]:
    """The next connection and its address.

    The loop's own `sock_accept` loses a connection, unclosed, when it is cancelled just after accepting it.
    """
    loop, descriptor = asyncio.get_running_loop(), listening.fileno()
    while True:
        with suppress(BlockingIOError):
            return listening.accept()
        waiter: asyncio.Future[None] = loop.create_future()
        loop.add_reader(descriptor, _wake, waiter)
        try:
            await waiter
        finally:
            loop.remove_reader(descriptor)


def _as_much_as_possible(move: Callable[[memoryview], int], view: memoryview) -> int:
    """A TLS record has 16 KiB: waiting and looking at the clock for each of them would be slow."""
    done = 0
    try:
        while done < len(view) and (count := move(view[done:])):
            done += count
    except OSError:  # mostly: it would have to wait
        if not done:
            raise  # else it comes again with the next call
    return done


def strict(context: ssl.SSLContext) -> ssl.SSLContext:
    """TLS 1.3 with certificates on both sides; names are looked up by certificate, not by host."""
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    if context.protocol == ssl.PROTOCOL_TLS_SERVER:
        context.num_tickets = 0  # nobody resumes: a context serves one connection
    return context


def prepare(sock: socket.socket) -> None:
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE.items():
        if hasattr(socket, option):  # their names differ between systems
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def _expire(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_exception(TimeoutError("no answer in time"))
