"""A relay: where two peers meet that can only dial out. It forwards bytes, which are TLS from end to end.

A peer that waits to be called opens connections and says `listen TOKEN`; a caller says `call TOKEN`. The
relay answers `go` to both, and from then on copies what each says to the other. It sees who connects, when,
and how many bytes; it holds no key, reads nothing and stores nothing. A token is known to those who have the
waiting peer's card. Who else knows it can keep callers away, but not stand in for anyone.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections import Counter, defaultdict, deque
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from coterie.errors import PeerError, UnreachableError

GREETING = "coterie-relay-1"
_LINE = re.compile(rb"^coterie-relay-1 (listen|call) ([0-9a-f]{16,64})\n$")
_LONGEST_LINE = 100
_CHUNK = 64 << 10
_BUSY, _NOBODY, _GO = b"busy\n", b"nobody\n", b"go\n"


@dataclass(frozen=True)
class RelayLimits:
    """What a relay grants; times in seconds, sizes in bytes."""

    rate: float = 10e6  # bytes per second of one direction of a call, on average
    burst: int = 1 << 20
    connections: int = 1000
    per_source: int = 64  # connections from one address
    per_token: int = 8  # peers that wait under one token
    line: float = 5.0  # until the first line is there
    waiting: float = 3600.0  # for a caller
    idle: float = 120.0  # of a call


@dataclass
class _Waiting:
    """A connection whose peer waits for a caller."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    called: asyncio.Event = field(default_factory=asyncio.Event)
    ready: asyncio.Event = field(default_factory=asyncio.Event)  # nobody else reads from it
    over: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass
class Relay:
    """counts: of calls, bytes and refusals, for whoever runs it; nothing else is kept."""

    limits: RelayLimits = RelayLimits()
    counts: Counter[str] = field(default_factory=Counter)
    _waiting: defaultdict[str, deque[_Waiting]] = field(default_factory=lambda: defaultdict(deque))
    _sources: Counter[str] = field(default_factory=Counter)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _server: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the port."""
        try:
            self._server = await asyncio.start_server(self._accepted, host, port, limit=_CHUNK)
        except OSError as error:
            raise PeerError(f"cannot listen on {host}:{port}: {error.strerror or error}") from None
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in [*self._tasks]:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.sleep(0)  # what these had cancelled themselves ends, too
        if self._server is not None:
            await self._server.wait_closed()

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        source = str((writer.get_extra_info("peername") or ("?",))[0])
        self._sources[source] += 1
        try:
            if len(self._tasks) > self.limits.connections or self._sources[source] > self.limits.per_source:
                await self._refuse(writer, _BUSY)
            else:
                await self._serve(reader, writer)
        except (OSError, TimeoutError, asyncio.CancelledError):
            pass  # gone, silent, or the relay stops
        finally:
            self._tasks.discard(task)
            self._sources[source] -= 1
            if not self._sources[source]:
                del self._sources[source]
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(self.limits.line):
            line = await _line(reader)
        match = _LINE.match(line)
        if match is None:
            self.counts["refused"] += 1
            return
        token = match[2].decode()
        if match[1] == b"listen":
            await self._listen(token, reader, writer)
        else:
            await self._call(token, reader, writer)

    async def _listen(self, token: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Wait for a caller, who then has this connection; or until the waiting peer goes away."""
        if len(self._waiting[token]) >= self.limits.per_token:
            await self._refuse(writer, _BUSY)
            return
        one = _Waiting(reader, writer)
        self._waiting[token].append(one)
        speaks = asyncio.ensure_future(reader.read(1))  # before its turn, or the end
        called = asyncio.ensure_future(one.called.wait())
        try:
            await asyncio.wait(
                {speaks, called}, timeout=self.limits.waiting, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            self._forget(token, one)
            await _cancelled(speaks, called)
        if one.called.is_set():
            one.ready.set()
            await one.over.wait()

    def _forget(self, token: str, one: _Waiting) -> None:
        with suppress(ValueError):
            self._waiting[token].remove(one)
        if not self._waiting[token]:
            del self._waiting[token]

    async def _call(self, token: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self._waiting.get(token):
            self._waiting.pop(token, None)
            await self._refuse(writer, _NOBODY)
            return
        one = self._waiting[token].popleft()
        one.called.set()
        try:
            async with asyncio.timeout(self.limits.line):
                await one.ready.wait()
            for side in (one.writer, writer):
                side.write(_GO)
            self.counts["calls"] += 1
            copies = [
                asyncio.ensure_future(self._copy(reader, one.writer)),
                asyncio.ensure_future(self._copy(one.reader, writer)),
            ]
            try:
                await asyncio.gather(*copies)
            finally:
                await _cancelled(*copies)
        finally:
            one.over.set()

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One direction, to its end, no faster than is allowed."""
        loop, allowed = asyncio.get_running_loop(), float(self.limits.burst)
        last = loop.time()
        while True:
            async with asyncio.timeout(self.limits.idle):
                data = await reader.read(_CHUNK)
            if not data:
                writer.write_eof()
                return
            allowed = min(self.limits.burst, allowed + (loop.time() - last) * self.limits.rate) - len(data)
            last = loop.time()
            if allowed < 0:
                await asyncio.sleep(-allowed / self.limits.rate)
            self.counts["bytes"] += len(data)
            writer.write(data)
            async with asyncio.timeout(self.limits.idle):
                await writer.drain()

    async def _refuse(self, writer: asyncio.StreamWriter, word: bytes) -> None:
        self.counts["refused"] += 1
        writer.write(word)
        await writer.drain()


async def _line(reader: asyncio.StreamReader) -> bytes:
    """The first line, byte by byte at its end: nothing behind it is taken away."""
    line = b""
    while len(line) < _LONGEST_LINE and not line.endswith(b"\n"):
        byte = await reader.read(1)
        if not byte:
            break
        line += byte
    return line


async def _cancelled(*tasks: asyncio.Future[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


# --- the peers' side -----------------------------------------------------------------------------


async def meet(sock: socket.socket, what: Literal["listen", "call"], token: str, wait: float) -> None:
    """Ask a relay on a fresh connection; returns when the other side is there, and TLS may begin.

    Raises UnreachableError if the relay says no, and TimeoutError after `wait` seconds.
    """
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(sock, f"{GREETING} {what} {token}\n".encode())
    word = b""
    async with asyncio.timeout(wait):
        while not word.endswith(b"\n") and len(word) < _LONGEST_LINE:
            byte = await loop.sock_recv(sock, 1)  # no more: what follows is TLS
            if not byte:
                break
            word += byte
    if word != _GO:
        why = {_NOBODY: "nobody waits there under this token", _BUSY: "it is busy"}.get(word, "no relay")
        raise UnreachableError(f"the relay: {why}", sent=False)
