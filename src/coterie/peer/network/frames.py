"""Frames on a connection: 4 bytes length of the head, 8 bytes length of the body, the head, the body.

An empty frame (twelve zeros) means "go on": the receiver of a connection is ready for requests, or the
receiver of a request wants its body. Bodies of up to 64 KiB follow their head at once; larger ones wait for
that word, so that a model that is refused, or not wanted yet, is never transferred.
"""

from __future__ import annotations

import asyncio
import struct
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import IO, Protocol

from coterie.errors import RefusedError
from coterie.peer.network.transport import Body
from coterie.peer.network.wire import LARGEST_HEAD

AT_ONCE = 64 << 10
CHUNK = 1 << 20

_PREFIX = struct.Struct("!IQ")
_GO_ON = _PREFIX.pack(0, 0)
SPOOLED = "body-"  # how names of files with large bodies begin


@dataclass(frozen=True)
class Limits:
    """What one peer grants others; times in seconds, sizes in bytes."""

    largest_body: int = 256 << 20
    in_memory: int = 16 << 20  # a larger body is kept in a file
    handshake: float = 5.0
    head: float = 5.0  # from the first byte of a head to its last
    idle: float = 60.0  # between requests, or within a body without any byte
    patience: float = 600.0  # for a message that the handler neither takes nor refuses
    slowest: float = 10_000.0  # bytes per second of a body, on average
    grace: float = 5.0  # before that average counts
    connections_per_peer: int = 16
    connections: int = 256


@dataclass(frozen=True)
class Opening:
    """The start of a frame."""

    head: bytes  # empty: go on
    size: int  # of the body


class Readable(Protocol):
    """`stream.Stream`, or bytes in a test."""

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
        if head_length > LARGEST_HEAD:
            raise RefusedError("oversized", f"a head of {head_length} bytes; at most {LARGEST_HEAD} allowed")
        if not head_length and size:
            raise RefusedError("malformed", "a body without a head")
        head = bytearray(head_length)
        await self._fill(memoryview(head), lambda: until, "head")
        self.in_step = size == 0
        return Opening(bytes(head), size)

    def check_size(self, size: int) -> None:
        if size > (most := self._limits.largest_body):
            raise RefusedError("oversized", f"a body of {size} bytes; at most {most} are allowed")

    def skip_body(self) -> None:
        """The announced body will not be asked for, and so never comes."""
        self.in_step = True

    async def body(self, size: int) -> Body:
        """Read an announced body, into memory or a file. RefusedError leaves the connection out of step."""
        self.check_size(size)
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
                if begin:
                    await asyncio.sleep(
                        0
                    )  # others get their turn when bytes arrive faster than they are read
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
        with tempfile.NamedTemporaryFile(prefix=SPOOLED, dir=folder, delete=False) as file:  # mode 600
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
    for path in folder.glob(f"{SPOOLED}*"):
        with suppress(OSError):
            path.unlink()
