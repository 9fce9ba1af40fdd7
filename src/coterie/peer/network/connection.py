"""One connection between two peers: TLS on a socket, and frames on TLS.

A frame is 4 bytes length of the head, 8 bytes length of the body, the head, the body. An empty frame
(twelve zeros) means "go on": the receiver of a connection is ready for requests, or the receiver of a request
wants its body. Bodies of up to 64 KiB follow their head at once; larger ones wait for that word, so that a
model that is refused, or not wanted yet, is never transferred.
"""

from __future__ import annotations

import asyncio
import selectors
import socket
import ssl
import struct
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import IO, Any, Protocol, TypeVar

from coterie.errors import RefusedError
from coterie.peer.network.messages import LARGEST_BODY, Body, check_body_size, check_head_size

_T = TypeVar("_T")

AT_ONCE = 64 << 10
CHUNK = 1 << 20

_PREFIX = struct.Struct("!IQ")
_GO_ON = _PREFIX.pack(0, 0)
_SPOOLED = "body-"  # how names of files with large bodies begin

# For one look: no set up in the kernel.
_Selector = getattr(selectors, "PollSelector", selectors.SelectSelector)

# A machine that vanished without a word is noticed after 10 + 3 * 5 s.
_KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}


@dataclass(frozen=True)
class Limits:
    """What one peer grants others; times in seconds, sizes in bytes."""

    largest_body: int = LARGEST_BODY
    in_memory: int = 16 << 20  # a larger body is kept in a file
    handshake: float = 5.0
    head: float = 5.0  # from the first byte of a head to its last
    idle: float = 60.0  # between requests, or within a body without any byte
    patience: float = 600.0  # for a message that the handler neither takes nor refuses
    slowest: float = 10_000.0  # bytes per second of a body, on average
    grace: float = 5.0  # before that average counts
    connections_per_peer: int = 16
    connections: int = 256


# TLS


class TlsStream:
    """TLS for asyncio: reads and writes that wait no longer than a given moment.

    OpenSSL works on the non-blocking socket itself, unlike in asyncio's own TLS streams. So a failed
    handshake sends its alert, and the other side learns why. Bytes arrive where they are wanted, without
    copies in between. And nothing is read before somebody asks, so that a fast sender waits.

    Whoever made it closes it. `until` is a moment of the loop's clock; past it, TimeoutError.
    """

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, *, server_side: bool) -> None:
        self._loop = asyncio.get_running_loop()
        _prepare(sock)
        sock.getpeername()  # an error if the other side is gone: then wrap_socket would not close the socket
        self._socket = _strict(context).wrap_socket(
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


def _strict(context: ssl.SSLContext) -> ssl.SSLContext:
    """TLS 1.3 with certificates on both sides; names are looked up by certificate, not by host."""
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    if context.protocol == ssl.PROTOCOL_TLS_SERVER:
        context.num_tickets = 0  # nobody resumes: a context serves one connection
    return context


def _prepare(sock: socket.socket) -> None:
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


# Frames


@dataclass(frozen=True)
class Opening:
    """The start of a frame."""

    head: bytes  # empty: go on
    size: int  # of the body


class Readable(Protocol):
    """A `TlsStream`, or bytes in a test."""

    async def read(self, view: memoryview, until: float) -> int: ...

    async def write(self, data: memoryview, until: float) -> int: ...


@dataclass
class _Pace:
    """How long the next bytes may take: on average fast enough, and never silent for long."""

    limits: Limits
    clock: Callable[[], float]
    done: int = 0
    start: float = field(init=False)
    last: float = field(init=False)

    def __post_init__(self) -> None:
        self.start = self.last = self.clock()

    def add(self, count: int) -> None:
        self.done += count
        self.last = self.clock()

    @property
    def until(self) -> float:
        earned = max(self.limits.grace, self.done / self.limits.slowest)
        return min(self.start + earned, self.last + self.limits.idle)


class Frames:
    """The frames of one connection. `in_step`: the next byte to read begins a frame."""

    def __init__(
        self, source: Readable, limits: Limits, spool: Path | None, clock: Callable[[], float] | None = None
    ) -> None:
        self._source = source
        self._limits = limits
        self._spool = spool  # None: every body is kept in memory
        self._clock = clock or asyncio.get_running_loop().time
        self.in_step = True

    async def send(self, head: bytes, body: bytes) -> None:
        """A request: the whole frame, or only its start when the body must wait."""
        if len(body) <= AT_ONCE:
            await self.send_all(head, body)
        else:
            await self._write(_PREFIX.pack(len(head), len(body)) + head)

    async def send_all(self, head: bytes, body: bytes) -> None:
        """A whole frame: an answer, which the other side waits for."""
        start = _PREFIX.pack(len(head), len(body)) + head
        if len(body) <= AT_ONCE:
            await self._write(start + body)  # one packet rather than two
        else:
            await self._write(start)
            await self._write(body)

    async def send_body(self, body: bytes) -> None:
        await self._write(body)

    async def go_on(self) -> None:
        await self._write(_GO_ON)

    async def opening(self, wait: float) -> Opening | None:
        """The next frame's start, whose first byte may take `wait` seconds; None when nothing came.

        RefusedError leaves the connection out of step.
        """
        raw = memoryview(bytearray(_PREFIX.size))
        try:
            first = await self._source.read(raw, self._clock() + wait)
        except TimeoutError:
            return None
        if not first:
            return None
        self.in_step = False
        until = self._clock() + self._limits.head
        await self._fill(raw[first:], lambda: until, "head")
        head_length, size = _PREFIX.unpack(raw)
        check_head_size(head_length)
        if not head_length and size:
            raise RefusedError("malformed", "a body without a head")
        head = bytearray(head_length)
        await self._fill(memoryview(head), lambda: until, "head")
        self.in_step = size == 0
        return Opening(bytes(head), size)

    def skip_body(self) -> None:
        """The announced body will not be asked for, and so never comes."""
        self.in_step = True

    async def body(self, size: int) -> Body:
        """Read an announced body, into memory or a file. RefusedError leaves the connection out of step."""
        check_body_size(size, self._limits.largest_body)
        if not size:
            return b""
        self.in_step = False
        pace = _Pace(self._limits, self._clock)
        if self._spool is not None and size > self._limits.in_memory:
            body: Body = await self._into_file(size, pace, self._spool)
        else:
            body = await self._into_memory(size, pace)
        self.in_step = True
        return body

    async def _into_memory(self, size: int, pace: _Pace) -> bytes:
        store = BytesIO(bytes(size))  # pages are taken as they fill; getvalue does not copy
        with store.getbuffer() as view:
            for begin in range(0, size, CHUNK):
                if begin:  # others get their turn when bytes arrive faster than they are read
                    await asyncio.sleep(0)
                await self._fill_body(view[begin : begin + CHUNK], pace)
        return store.getvalue()

    async def _into_file(self, size: int, pace: _Pace, folder: Path) -> Path:
        """A file that only this user may read; it is removed again when the body does not arrive whole."""
        with _spooled(folder) as file:
            view = memoryview(bytearray(min(CHUNK, size)))
            for begin in range(0, size, CHUNK):
                piece = view[: min(CHUNK, size - begin)]
                await self._fill_body(piece, pace)
                file.write(piece)  # into the page cache: not worth a thread
                await asyncio.sleep(0)
        return Path(file.name)

    async def _fill_body(self, view: memoryview, pace: _Pace) -> None:
        await self._fill(view, lambda: pace.until, "body", pace.add)

    async def _fill(
        self,
        view: memoryview,
        until: Callable[[], float],
        what: str,
        progress: Callable[[int], None] = lambda count: None,
    ) -> None:
        done = 0
        while done < len(view):
            try:
                count = await self._source.read(view[done:], until())
            except TimeoutError:
                raise RefusedError("slow", f"the {what} of a message came too slowly") from None
            except OSError:  # bytes that TLS cannot authenticate
                raise RefusedError("malformed", f"the connection broke within a {what}") from None
            if not count:
                raise RefusedError("truncated", f"the connection ended within the {what} of a message")
            done += count
            progress(count)

    async def _write(self, data: bytes) -> None:
        """Raises OSError when the other side is gone, or reads too slowly."""
        pace = _Pace(self._limits, self._clock)
        view = memoryview(data)
        turn = CHUNK
        while pace.done < len(view):
            pace.add(await self._source.write(view[pace.done :][:CHUNK], pace.until))
            if pace.done >= turn:
                turn += CHUNK
                await asyncio.sleep(0)


@contextmanager
def _spooled(folder: Path) -> Iterator[IO[bytes]]:
    try:
        with tempfile.NamedTemporaryFile(prefix=_SPOOLED, dir=folder, delete=False) as file:  # mode 600
            try:
                yield file
                file.flush()
            except BaseException:
                Path(file.name).unlink(missing_ok=True)
                raise
    except OSError as error:  # the disk's, since `_fill` raises none
        raise RefusedError("busy", "there is no room to keep this message") from error


def remove_spooled(folder: Path) -> None:
    """What a crash left behind."""
    for path in folder.glob(f"{_SPOOLED}*"):
        with suppress(OSError):
            path.unlink()
