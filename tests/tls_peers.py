"""Two or three peers on the loopback device, and strangers that mean harm."""

from __future__ import annotations

import asyncio
import socket
import ssl
import stat
import struct
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization

from coterie.errors import RefusedError
from coterie.peer.network.calling import TlsTransport
from coterie.peer.network.connection import Limits
from coterie.peer.network.messages import Body, Head, Parcel, Receipt, decode_head
from coterie.peer.trust import certificates

MEMBERS = ("anna", "bob", "carol")
CALM = Limits(patience=10)
LARGE = 20_000_000


class Certificate:
    """A self-signed certificate and its key, in files for the ssl module."""

    def __init__(self, folder: Path, name: str, days: tuple[int, int] = (-1, 30)) -> None:
        first = certificates.now() + timedelta(days=days[0])
        key = certificates.new_key()
        made = certificates.self_signed(key, name, valid_days=days[1] - days[0], valid_from=first)
        self.der = made.public_bytes(serialization.Encoding.DER)
        self.pem = certificates.certificate_pem(made)
        self.path = folder / f"{name}.pem"
        self.path.write_bytes(certificates.pair_pem(key, made))


class Recorder:
    """A handler that acknowledges everything; tests replace what they need."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.admitted: list[tuple[str, Head, int]] = []
        self.bodies: list[bytes] = []
        self.files: list[int] = []  # modes of files
        self.on_admit: Callable[[], Awaitable[None]] | None = None
        self.on_take: Callable[[], Awaitable[None]] | None = None
        self.answer = b""

    def admit(self, caller: str, head: Head, size: int) -> Awaitable[None] | None:
        self.admitted.append((caller, head, size))
        return self.on_admit() if self.on_admit else None

    async def take(self, caller: str, head: Head, body: Body) -> tuple[Head, bytes]:
        if self.on_take:
            await self.on_take()
        if isinstance(body, Path):
            self.files.append(stat.S_IMODE(body.stat().st_mode))
            content = body.read_bytes()
            body.unlink()
            body = content
        self.bodies.append(body)
        return Receipt(sender=self.name), self.answer


class Peer:
    def __init__(
        self,
        name: str,
        folder: Path,
        certificates: dict[str, Certificate],
        limits: Limits,
        shows: str = "",
        trusts: tuple[str, ...] = MEMBERS,
    ) -> None:
        self.name, self.spool = name, folder / name
        self.roster = {certificates[member].der: member for member in trusts}
        self.trusted = "".join(certificates[member].pem for member in trusts)
        self.shown = certificates[shows or name].path
        self.handler = Recorder(name)
        self.refusals: Counter[str] = Counter()
        self.refused_whom: list[str] = []
        self.transport = TlsTransport(
            name,
            "127.0.0.1",
            0,
            server_context=lambda: self.context(ssl.PROTOCOL_TLS_SERVER),
            client_context=lambda: self.context(ssl.PROTOCOL_TLS_CLIENT),
            identify=self.identify,
            spool=self.spool,
            limits=limits,
            refused=self.refused,
        )

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.transport.port}"

    def context(self, side: Any) -> ssl.SSLContext:
        context = ssl.SSLContext(side)
        context.check_hostname = False
        context.load_cert_chain(self.shown)
        context.load_verify_locations(cadata=self.trusted)
        return context

    def identify(self, der: bytes | None) -> str:
        if der is None or der not in self.roster:
            raise RefusedError("certificate", "not in the roster")
        return self.roster[der]

    def refused(self, reason: str, who: str) -> None:
        self.refusals[reason] += 1
        self.refused_whom.append(who)

    async def ask(
        self, other: Peer, body: bytes = b"", timeout: float = 10.0, most: int = LARGE, **changes: Any
    ) -> Head:
        head = Parcel(**{"sender": self.name, "round": 1, "slot": 0, **changes})
        answer, data = await self.transport.request(
            other.name, other.address, head, body, timeout=timeout, most=most
        )
        assert data == other.handler.answer
        return answer


class Net:
    """The peers of one test, and what must be true when it ends."""

    def __init__(self, folder: Path, certificates: dict[str, Certificate]) -> None:
        self.folder, self.certificates = folder, certificates
        self.peers: list[Peer] = []

    async def peer(self, name: str, limits: Limits = CALM, start: bool = True, **changes: Any) -> Peer:
        peer = Peer(name, self.folder, self.certificates, limits, **changes)
        self.peers.append(peer)
        if start:
            await peer.transport.start(peer.handler)
        return peer

    async def stop(self) -> None:
        for peer in self.peers:
            await asyncio.wait_for(peer.transport.stop(), 2)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        left = [path for path in self.folder.rglob("*") if path.is_file()]
        assert left == []


async def eventually(condition: Callable[[], object], seconds: float = 10.0) -> None:
    end = asyncio.get_running_loop().time() + seconds
    while not condition():
        assert asyncio.get_running_loop().time() < end, "it did not happen in time"
        await asyncio.sleep(0.005)


class Raw:
    """A roster member that writes what it likes: blocking TLS in a thread."""

    def __init__(self, peer: Peer, victim: Peer) -> None:
        sock = socket.create_connection(("127.0.0.1", victim.transport.port), timeout=5)
        self.tls = peer.context(ssl.PROTOCOL_TLS_CLIENT).wrap_socket(sock)
        assert self.read(12) == bytes(12)  # the greeting

    @classmethod
    async def connect(cls, peer: Peer, victim: Peer) -> Raw:
        return await asyncio.to_thread(cls, peer, victim)

    def read(self, count: int) -> bytes:
        got = b""
        while len(got) < count and (more := self.tls.recv(count - len(got))):
            got += more
        return got

    def frame(self) -> Head | None:
        prefix = self.read(12)
        if len(prefix) < 12:
            return None
        head, body = struct.unpack("!IQ", prefix)
        assert body == 0
        return decode_head(self.read(head))

    def drip(self, data: bytes, pause: float) -> None:
        """One byte at a time, until the other side has enough."""
        for byte in data:
            try:
                self.tls.sendall(bytes([byte]))
            except OSError:
                return
            time.sleep(pause)

    def close(self) -> None:
        self.tls.close()


def prefix(head: bytes, size: int) -> bytes:
    return struct.pack("!IQ", len(head), size) + head
