"""Sending a model over mutual TLS, against a bare TLS socket between the same two processes."""

from __future__ import annotations

import asyncio
import multiprocessing
import socket
import ssl
import struct
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

from benchmarks.timing import Row, best_seconds, by_turns
from coterie.peer.network.calling import TlsTransport
from coterie.peer.network.messages import Body, Head, Parcel, Receipt
from coterie.peer.trust import certificates

_LENGTH = struct.Struct("!Q")
_CHUNK = 1 << 20


def throughput() -> list[Row]:
    """16 MB are kept in memory by the receiver, 50 MB in a file."""
    return [_row(16_000_000, wanted=0.8), _row(50_000_000, wanted=None)]


def _row(size: int, wanted: float | None) -> Row:
    with _other_process() as (folder, ports):
        bare, ours = _measure(folder, ports, bytes(size))
    mega = size / 1e6
    print(
        f"{mega:.0f} MB: {mega / ours:.0f} MB/s over TlsTransport, {mega / bare:.0f} MB/s over a TLS socket"
    )
    what, limit = (
        f"{mega:.0f} MB: speed / that of a TLS socket",
        f"{mega / bare:.0f} MB/s by a bare TLS socket",
    )
    return Row(what, bare, ours, wanted, at_least=True, limit=limit)


def _measure(folder: Path, ports: tuple[int, int], body: bytes) -> list[float]:
    transport = _transport(folder)
    head = Parcel(sender="peer", round=1, slot=0)
    loop = asyncio.new_event_loop()
    plain = socket.create_connection(("127.0.0.1", ports[0]))
    with _context(folder, ssl.PROTOCOL_TLS_CLIENT).wrap_socket(plain) as sock:

        def bare() -> None:
            sock.sendall(_LENGTH.pack(len(body)))
            sock.sendall(body)
            assert sock.recv(1) == b"!"

        def ours() -> None:
            request = transport.request("peer", f"127.0.0.1:{ports[1]}", head, body, timeout=60)
            loop.run_until_complete(request)

        try:
            return by_turns(*(_timed(send) for send in (bare, ours)), turns=40)
        finally:
            loop.run_until_complete(transport.stop())
            loop.close()


def _timed(send: Callable[[], None]) -> Callable[[], float]:
    return lambda: best_seconds(send, repeats=1)


@contextmanager
def _other_process() -> Iterator[tuple[Path, tuple[int, int]]]:
    """The receivers, in a process of their own: their keys, and the ports of the socket and the transport."""
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _make_certificate(folder)
        here, there = spawn.Pipe()
        process = spawn.Process(target=_receive, args=(folder, there), daemon=True)
        process.start()
        try:
            assert here.poll(60), "the receivers did not start"
            yield folder, here.recv()
        finally:
            here.send("stop")
            process.join(10)
            process.kill()


def _receive(folder: Path, pipe: Connection) -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=_receive_bare, args=(folder, listening), daemon=True).start()
    asyncio.run(_receive_ours(folder, listening.getsockname()[1], pipe))


def _receive_bare(folder: Path, listening: socket.socket) -> None:
    plain, _ = listening.accept()
    with _context(folder, ssl.PROTOCOL_TLS_SERVER).wrap_socket(plain, server_side=True) as sock:
        while start := sock.recv(_LENGTH.size):
            (size,) = _LENGTH.unpack(start)
            view = memoryview(bytearray(size))
            done = 0
            while done < size:
                done += sock.recv_into(view[done : done + _CHUNK])
            sock.sendall(b"!")


async def _receive_ours(folder: Path, bare_port: int, pipe: Connection) -> None:
    transport = _transport(folder)
    await transport.start(_Acknowledging())
    pipe.send((bare_port, transport.port))
    await asyncio.to_thread(pipe.recv)
    await transport.stop()


class _Acknowledging:
    async def admit(self, caller: str, head: Head, size: int) -> None:
        pass

    async def take(self, caller: str, head: Head, body: Body) -> tuple[Head, bytes]:
        if isinstance(body, Path):
            body.unlink()
        return Receipt(sender="peer"), b""


def _transport(folder: Path) -> TlsTransport:
    return TlsTransport(
        "peer",
        "127.0.0.1",
        0,
        server_context=lambda: _context(folder, ssl.PROTOCOL_TLS_SERVER),
        client_context=lambda: _context(folder, ssl.PROTOCOL_TLS_CLIENT),
        identify=lambda certificate: "peer",
        spool=folder / "spool",
    )


def _context(folder: Path, side: int) -> ssl.SSLContext:
    """Both ends show the same certificate and trust only that."""
    context = ssl.SSLContext(side)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(folder / "key.pem")
    context.load_verify_locations(folder / "key.pem")
    return context


def _make_certificate(folder: Path) -> None:
    key = certificates.new_key()
    (folder / "key.pem").write_bytes(certificates.pair_pem(key, certificates.self_signed(key, "peer")))
