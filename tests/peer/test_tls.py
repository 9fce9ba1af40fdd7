"""Two or three peers on the loopback device, and strangers that mean harm."""

from __future__ import annotations

import asyncio
import datetime
import socket
import ssl
import stat
import struct
import time
import tracemalloc
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from coterie.errors import PeerError, RefusedError, UnreachableError
from coterie.peer.frames import AT_ONCE
from coterie.peer.messages import Head, Inquiry, Parcel, Receipt
from coterie.peer.tls import Limits, TlsTransport
from coterie.peer.transport import Body
from coterie.peer.wire import decode_head, encode_head

MEMBERS = ("anna", "bob", "carol")
CALM = Limits(patience=10)
LARGE = 20_000_000


class Certificate:
    """A self-signed certificate and its key, in files for the ssl module."""

    def __init__(self, folder: Path, name: str, days: tuple[int, int] = (-1, 30)) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        now = datetime.datetime.now(datetime.timezone.utc)
        made = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + datetime.timedelta(days=days[0]))
            .not_valid_after(now + datetime.timedelta(days=days[1]))
            .sign(key, hashes.SHA256())
        )
        self.der = made.public_bytes(serialization.Encoding.DER)
        self.pem = made.public_bytes(serialization.Encoding.PEM).decode()
        self.path = folder / f"{name}.pem"
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        self.path.write_bytes(self.pem.encode() + private)


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Certificate]:
    folder = tmp_path_factory.mktemp("certificates")
    made = {name: Certificate(folder, name) for name in (*MEMBERS, "stranger")}
    return {**made, "late": Certificate(folder, "late", days=(-30, -1))}


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

    async def admit(self, caller: str, head: Head, size: int) -> None:
        self.admitted.append((caller, head, size))
        if self.on_admit:
            await self.on_admit()

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

    async def ask(self, other: Peer, body: bytes = b"", timeout: float = 10.0, **changes: Any) -> Head:
        head = Parcel(**{"sender": self.name, "round": 1, "slot": 0, **changes})
        answer, data = await self.transport.request(other.name, other.address, head, body, timeout=timeout)
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


@pytest.fixture
def play(tmp_path: Path, certificates: dict[str, Certificate]) -> Callable[..., None]:
    """Run a test's coroutine in a loop of its own, which must end without leftovers."""

    def run(scenario: Callable[[Net], Awaitable[None]]) -> None:
        async def whole() -> None:
            net = Net(tmp_path, certificates)
            try:
                await scenario(net)
            finally:
                await net.stop()

        asyncio.run(whole())

    return run


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


# What works


@pytest.mark.parametrize("size", [0, 1, AT_ONCE, AT_ONCE + 1, LARGE])
def test_a_request_is_answered(play: Callable[..., None], size: int) -> None:
    async def scenario(net: Net) -> None:
        anna, bob = await net.peer("anna"), await net.peer("bob")
        bob.handler.answer = b"answer" * 50_000
        body = bytes(range(256)) * (size // 256 + 1)
        answer = await anna.ask(bob, body[:size])
        assert answer == Receipt(sender="bob")
        assert bob.handler.admitted == [("anna", Parcel(sender="anna", round=1, slot=0), size)]
        assert bob.handler.bodies == [body[:size]]
        assert bob.handler.files == ([0o600] if size == LARGE else [])
        assert not anna.refusals + bob.refusals

    play(scenario)


def test_connections_are_reused(play: Callable[..., None]) -> None:
    async def scenario(net: Net) -> None:
        anna, bob = await net.peer("anna"), await net.peer("bob")
        contexts = Counter[str]()
        make = anna.context
        anna.context = lambda side: contexts.update(["made"]) or make(side)
        for _ in range(5):
            await anna.ask(bob)
        assert contexts["made"] == 1

    play(scenario)


def test_ten_requests_at_once(play: Callable[..., None]) -> None:
    async def scenario(net: Net) -> None:
        anna, bob, carol = [await net.peer(name) for name in MEMBERS]
        bodies = [bytes([number]) * 200_000 for number in range(10)]
        await asyncio.gather(
            *(anna.ask(bob, body) for body in bodies), *(carol.ask(bob, body) for body in bodies)
        )
        assert sorted(bob.handler.bodies) == sorted(bodies * 2)
        assert not bob.refusals

    play(scenario)


def test_a_restarted_peer_is_reached_again(play: Callable[..., None]) -> None:
    async def scenario(net: Net) -> None:
        anna, bob = await net.peer("anna"), await net.peer("bob")
        await anna.ask(bob)
        await bob.transport.stop()
        with pytest.raises(UnreachableError):
            await anna.ask(bob)
        await bob.transport.start(bob.handler)
        await anna.ask(bob)
        await bob.transport.stop()
        await bob.transport.start(bob.handler)
        await anna.ask(bob)  # the kept connection is closed, and noticed before it is used
        assert len(bob.handler.bodies) == 3

    play(scenario)


def test_an_idle_connection_is_closed_without_complaint(play: Callable[..., None]) -> None:
    async def scenario(net: Net) -> None:
        anna, bob = await net.peer("anna", Limits()), await net.peer("bob", replace(CALM, idle=0.05))
        await anna.ask(bob)
        await asyncio.sleep(0.2)
        await anna.ask(bob)
        assert not bob.refusals + anna.refusals

    play(scenario)


def test_a_taken_port_is_a_clear_error(play: Callable[..., None]) -> None:
    async def scenario(net: Net) -> None:
        bob, anna = await net.peer("bob"), await net.peer("anna", start=False)
        anna.transport.port = bob.transport.port
        with pytest.raises(PeerError, match=r"cannot listen on 127\.0\.0\.1"):
            await anna.transport.start(anna.handler)

    play(scenario)


def test_a_body_is_held_once_however_many_receive_it(play: Callable[..., None]) -> None:
    async def scenario(net: Net) -> None:
        limits = replace(CALM, in_memory=1_000_000)
        anna, bob, carol = [await net.peer(name, limits) for name in MEMBERS]

        async def forget() -> None:  # before the body is read from its file
            raise RefusedError("unexpected", "no use")

        bob.handler.on_take = carol.handler.on_take = forget
        body = bytes(LARGE)
        tracemalloc.start()
        try:
            outcomes = await asyncio.gather(
                *(anna.ask(other, body) for other in (bob, carol) * 2), return_exceptions=True
            )
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert [type(outcome) for outcome in outcomes] == [RefusedError] * 4
        assert peak < 4 * 1.5e6 + 1e6  # a chunk for each receiver

    play(scenario)


def test_our_own_broken_key_is_told(play: Callable[..., None], caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(net: Net) -> None:
        anna, bob = await net.peer("anna"), await net.peer("bob")
        shown = anna.shown
        anna.shown = net.folder / "missing.pem"
        with pytest.raises(UnreachableError, match="our certificate, key or roster cannot be used"):
            await anna.ask(bob)
        with pytest.raises(UnreachableError):
            await bob.ask(anna)
        assert "nobody can connect: our certificate, key or roster cannot be used" in caplog.text
        anna.shown = shown
        await anna.ask(bob)
        await bob.ask(anna)

    play(scenario)


# Refusals by the handler


@pytest.mark.parametrize("size", [100, LARGE])
def test_a_refused_body_is_not_read(play: Callable[..., None], size: int) -> None:
    async def scenario(net: Net) -> None:
        anna, bob = await net.peer("anna"), await net.peer("bob")

        async def refuse() -> None:
            raise RefusedError("stale", "round 1 is over")

        bob.handler.on_admit = refuse
        with pytest.raises(RefusedError) as caught:
            await anna.ask(bob, bytes(size))
        assert (caught.value.reason, caught.value.text) == ("stale", "round 1 is over")
        assert bob.handler.bodies == []
        assert bob.refusals == {"stale": 1}
        assert bob.refused_whom == ["anna"]
        bob.handler.on_admit = None
        await anna.ask(bob, bytes(size))  # over the same connection

    play(scenario)


def test_a_large_body_waits_for_the_word(play: Callable[..., None]) -> None:
    async def scenario(net: Net) -> None:
        anna, bob = await net.peer("anna"), await net.peer("bob")
        raw = await Raw.connect(anna, bob)
        wanted = asyncio.Event()
        bob.handler.on_admit = wanted.wait
        head = encode_head(Parcel(sender="anna", round=1, slot=0))
        raw.tls.sendall(prefix(head, 100_000))
        await eventually(lambda: bob.handler.admitted)
        raw.tls.settimeout(0.05)
        with pytest.raises(TimeoutError):
            await asyncio.to_thread(raw.read, 1)
        raw.tls.settimeout(5)
        wanted.set()
        assert await asyncio.to_thread(raw.read, 12) == bytes(12)
        await asyncio.to_thread(raw.tls.sendall, bytes(100_000))
        assert await asyncio.to_thread(raw.frame) == Receipt(sender="bob")
        raw.close()

    play(scenario)


@pytest.mark.parametrize("where", ["on_admit", "on_take"])
@pytest.mark.parametrize("error", [OSError("disk"), ValueError("bug"), RefusedError("invented", "x" * 900)])
@pytest.mark.parametrize("size", [100, LARGE])
def test_a_bug_in_the_handler_is_a_refusal(
    play: Callable[..., None], where: str, error: Exception, size: int
) -> None:
    async def scenario(net: Net) -> None:
        anna, bob = await net.peer("anna"), await net.peer("bob")

        async def fail() -> None:
            raise error

        setattr(bob.handler, where, fail)
        with pytest.raises(RefusedError) as caught:
            await anna.ask(bob, bytes(size))
        assert caught.value.reason == "unexpected"
        assert bob.refusals.total() == 1
        setattr(bob.handler, where, None)
        await anna.ask(bob)

    play(scenario)


def test_a_handler_that_never_answers(play: Callable[..., None]) -> None:
    async def scenario(net: Net) -> None:
        anna, bob = await net.peer("anna"), await net.peer("bob")
        bob.handler.on_take = asyncio.Event().wait
        start = asyncio.get_running_loop().time()
        with pytest.raises(UnreachableError, match=r"bob at 127.0.0.1:\d+ gave no answer within 0.2 s"):
            await anna.ask(bob, timeout=0.2)
        assert asyncio.get_running_loop().time() - start < 1
        bob.handler.on_take = None
        await anna.ask(bob)

    play(scenario)


def test_patience_ends(play: Callable[..., None]) -> None:
    async def scenario(net: Net) -> None:
        anna, bob = await net.peer("anna"), await net.peer("bob", replace(CALM, patience=0.1))
        bob.handler.on_admit = asyncio.Event().wait
        with pytest.raises(RefusedError, match="busy"):
            await anna.ask(bob)

    play(scenario)


def test_a_caller_that_leaves_ends_the_wait(play: Callable[..., None]) -> None:
    async def scenario(net: Net) -> None:
        anna, bob = await net.peer("anna"), await net.peer("bob")
        ended = []

        async def wait() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(True)

        bob.handler.on_admit = wait
        with pytest.raises(UnreachableError):
            await anna.ask(bob, bytes(100_000), timeout=0.2)
        await eventually(lambda: ended)
        assert bob.handler.bodies == []

    play(scenario)


def test_stopping_ends_what_is_under_way(play: Callable[..., None]) -> None:
    async def scenario(net: Net) -> None:
        anna, bob = await net.peer("anna"), await net.peer("bob")
        bob.handler.on_take = asyncio.Event().wait
        asking = asyncio.ensure_future(anna.ask(bob, bytes(LARGE)))
        await eventually(lambda: [*bob.spool.iterdir()])
        await bob.transport.stop()
        assert [*bob.spool.iterdir()] == []
        with pytest.raises(UnreachableError):
            await asking

    play(scenario)


def test_what_a_crash_left_is_removed(play: Callable[..., None]) -> None:
    async def scenario(net: Net) -> None:
        bob = await net.peer("bob", start=False)
        bob.spool.mkdir()
        (bob.spool / "body-crashed").write_bytes(b"half a model")
        await bob.transport.start(bob.handler)
        assert [*bob.spool.iterdir()] == []

    play(scenario)


def test_no_room_for_a_body(play: Callable[..., None]) -> None:
    async def scenario(net: Net) -> None:
        anna, bob = await net.peer("anna"), await net.peer("bob")
        bob.spool.rmdir()
        with pytest.raises((RefusedError, UnreachableError)):
            await anna.ask(bob, bytes(LARGE))
        assert bob.refusals == {"busy": 1}
        await anna.ask(bob, bytes(1000))

    play(scenario)


# Identity


def test_another_sender_is_refused(play: Callable[..., None]) -> None:
    async def scenario(net: Net) -> None:
        anna, bob = await net.peer("anna"), await net.peer("bob")
        with pytest.raises(RefusedError, match="sender: the message names carol, the certificate anna"):
            await anna.ask(bob, sender="carol")
        assert bob.refusals == {"sender": 1}
        assert bob.handler.admitted == []
        await anna.ask(bob)

    play(scenario)


@pytest.mark.parametrize("shown", ["stranger", "late"])
def test_an_unknown_or_expired_certificate_is_refused(play: Callable[..., None], shown: str) -> None:
    async def scenario(net: Net) -> None:
        trusts = (*MEMBERS, "late")  # that it is in the roster does not help when it has expired
        anna = await net.peer("anna", shows=shown)
        bob = await net.peer("bob", trusts=trusts)
        with pytest.raises(RefusedError, match="certificate: bob does not accept our certificate"):
            await anna.ask(bob)
        assert bob.refusals == {"certificate": 1}
        assert bob.refused_whom[0].startswith("127.0.0.1:")
        carol = await net.peer("carol")
        await carol.ask(bob)  # others are served as before

    play(scenario)


@pytest.mark.parametrize("shown", ["stranger", "late"])
def test_we_do_not_talk_to_an_unknown_or_expired_certificate(play: Callable[..., None], shown: str) -> None:
    async def scenario(net: Net) -> None:
        anna, bob = await net.peer("anna", trusts=(*MEMBERS, "late")), await net.peer("bob", shows=shown)
        with pytest.raises(
            RefusedError, match="certificate: bob showed a certificate that is not valid here"
        ):
            await anna.ask(bob)
        assert anna.refusals == {"certificate": 1}
        await eventually(lambda: bob.refusals == {"certificate": 1})
        assert bob.handler.admitted == []

    play(scenario)


def test_a_member_under_another_members_name_is_refused(play: Callable[..., None]) -> None:
    async def scenario(net: Net) -> None:
        anna, bob = await net.peer("anna"), await net.peer("bob", shows="carol")
        with pytest.raises(RefusedError, match="the certificate is that of carol, not of bob"):
            await anna.ask(bob)
        assert anna.refusals == {"certificate": 1}
        assert bob.handler.admitted == []

    play(scenario)


def test_a_changed_roster_needs_no_restart(play: Callable[..., None]) -> None:
    async def scenario(net: Net) -> None:
        anna, bob = await net.peer("anna"), await net.peer("bob", trusts=("bob",))
        with pytest.raises(RefusedError, match="certificate"):
            await anna.ask(bob)
        certificate = net.certificates["anna"]
        before = bob.trusted
        bob.trusted += certificate.pem
        bob.roster[certificate.der] = "anna"
        await anna.ask(bob)
        bob.trusted = before
        del bob.roster[certificate.der]
        with pytest.raises(RefusedError, match="certificate: not in the roster"):
            await anna.ask(bob)  # over the connection that is still open
        with pytest.raises(RefusedError, match="certificate: bob does not accept"):
            await anna.ask(bob)
        assert bob.refusals == {"certificate": 3}

    play(scenario)


def test_a_valid_certificate_outside_the_roster_is_refused(play: Callable[..., None]) -> None:
    """As with a certificate authority: TLS is satisfied, the roster is not."""

    async def scenario(net: Net) -> None:
        anna, bob = await net.peer("anna"), await net.peer("bob")
        del bob.roster[net.certificates["anna"].der]
        with pytest.raises(RefusedError, match="certificate: not in the roster"):
            await anna.ask(bob)
        assert bob.refusals == {"certificate": 1}

    play(scenario)


def test_old_tls_is_refused(play: Callable[..., None]) -> None:
    async def scenario(net: Net) -> None:
        anna, bob = await net.peer("anna"), await net.peer("bob")
        context = anna.context(ssl.PROTOCOL_TLS_CLIENT)
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        sock = socket.create_connection(("127.0.0.1", bob.transport.port), timeout=5)
        with pytest.raises(ssl.SSLError, match=r"(?i)protocol.version"):
            await asyncio.to_thread(context.wrap_socket, sock)
        sock.close()
        await eventually(lambda: bob.refusals == {"malformed": 1})

    play(scenario)


def test_a_caller_without_a_certificate_is_refused(play: Callable[..., None]) -> None:
    async def scenario(net: Net) -> None:
        bob = await net.peer("bob")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        sock = socket.create_connection(("127.0.0.1", bob.transport.port), timeout=5)
        tls = await asyncio.to_thread(context.wrap_socket, sock)
        with pytest.raises(ssl.SSLError, match=r"(?i)certificate.required"):
            await asyncio.to_thread(tls.recv, 1)
        tls.close()
        await eventually(lambda: bob.refusals == {"certificate": 1})

    play(scenario)


# Harm


@pytest.mark.parametrize(
    "garbage", [b"GET / HTTP/1.1\r\n\r\n", bytes(100), b"\x16\x03\x01\xff\xff" + b"x" * 500]
)
def test_garbage_instead_of_tls(play: Callable[..., None], garbage: bytes) -> None:
    async def scenario(net: Net) -> None:
        anna, bob = await net.peer("anna"), await net.peer("bob", replace(CALM, handshake=0.5))
        _, writer = await asyncio.open_connection("127.0.0.1", bob.transport.port)
        writer.write(garbage)
        await eventually(lambda: bob.refusals.total() == 1)
        writer.close()
        assert set(bob.refusals) <= {"malformed", "slow"}  # slow: it looked like the start of a long record
        await anna.ask(bob)

    play(scenario)


def test_a_connection_that_ends_in_the_handshake(play: Callable[..., None]) -> None:
    async def scenario(net: Net) -> None:
        bob = await net.peer("bob")
        _, writer = await asyncio.open_connection("127.0.0.1", bob.transport.port)
        writer.close()
        await eventually(lambda: bob.refusals == {"truncated": 1})

    play(scenario)


def test_a_slow_handshake(play: Callable[..., None]) -> None:
    async def scenario(net: Net) -> None:
        anna, bob = await net.peer("anna"), await net.peer("bob", replace(CALM, handshake=0.5))
        hello = ssl.MemoryBIO()
        shaking = anna.context(ssl.PROTOCOL_TLS_CLIENT).wrap_bio(ssl.MemoryBIO(), hello)
        with pytest.raises(ssl.SSLWantReadError):
            shaking.do_handshake()
        _, writer = await asyncio.open_connection("127.0.0.1", bob.transport.port)
        for byte in hello.read():
            if bob.refusals:
                break
            writer.write(bytes([byte]))
            await asyncio.sleep(0.01)
        assert bob.refusals == {"slow": 1}
        writer.close()
        await anna.ask(bob)

    play(scenario)


def test_a_slow_head(play: Callable[..., None]) -> None:
    async def scenario(net: Net) -> None:
        anna, bob = await net.peer("anna"), await net.peer("bob", replace(CALM, head=0.2))
        raw = await Raw.connect(anna, bob)
        head = encode_head(Parcel(sender="anna", round=1, slot=0))
        dripping = asyncio.create_task(asyncio.to_thread(raw.drip, prefix(head, 0), 0.01))
        await eventually(lambda: bob.refusals == {"slow": 1})
        await dripping
        raw.close()
        assert bob.refused_whom == ["anna"]
        assert bob.handler.admitted == []

    play(scenario)


@pytest.mark.parametrize("size", [AT_ONCE, 200_000, LARGE])
def test_a_slow_body(play: Callable[..., None], size: int) -> None:
    async def scenario(net: Net) -> None:
        anna, bob = await net.peer("anna"), await net.peer("bob", replace(CALM, grace=0.2))
        raw = await Raw.connect(anna, bob)
        head = encode_head(Parcel(sender="anna", round=1, slot=0))
        raw.tls.sendall(prefix(head, size))
        if size > AT_ONCE:
            assert await asyncio.to_thread(raw.read, 12) == bytes(12)
        dripping = asyncio.create_task(asyncio.to_thread(raw.drip, bytes(200), 0.01))
        await eventually(lambda: bob.refusals == {"slow": 1})
        await dripping
        raw.close()
        assert bob.handler.bodies == []

    play(scenario)


def test_a_body_that_starts_well_and_stops(play: Callable[..., None]) -> None:
    async def scenario(net: Net) -> None:
        anna, bob = await net.peer("anna"), await net.peer("bob", replace(CALM, idle=0.2))
        raw = await Raw.connect(anna, bob)
        head = encode_head(Parcel(sender="anna", round=1, slot=0))
        raw.tls.sendall(prefix(head, LARGE))
        assert await asyncio.to_thread(raw.read, 12) == bytes(12)
        await asyncio.to_thread(raw.tls.sendall, bytes(5_000_000))  # on average fast enough for minutes
        await eventually(lambda: bob.refusals == {"slow": 1})
        raw.close()

    play(scenario)


@pytest.mark.parametrize("size", [1000, 200_000, LARGE])
def test_a_truncated_body(play: Callable[..., None], size: int) -> None:
    async def scenario(net: Net) -> None:
        anna, bob = await net.peer("anna"), await net.peer("bob")
        raw = await Raw.connect(anna, bob)
        head = encode_head(Parcel(sender="anna", round=1, slot=0))
        raw.tls.sendall(prefix(head, size))
        if size > AT_ONCE:
            assert await asyncio.to_thread(raw.read, 12) == bytes(12)
        await asyncio.to_thread(raw.tls.sendall, bytes(size // 2))
        raw.close()
        await eventually(lambda: bob.refusals == {"truncated": 1})
        assert bob.handler.bodies == []
        assert [*bob.spool.iterdir()] == []

    play(scenario)


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (struct.pack("!IQ", 65537, 0), "oversized"),
        (struct.pack("!IQ", 2**32 - 1, 2**64 - 1), "oversized"),
        (struct.pack("!IQ", 0, 5) + b"12345", "malformed"),
        (struct.pack("!IQ", 0, 0), "malformed"),
        (prefix(b"{}", 0), "malformed"),
        (prefix(b"\xff" * 100, 3) + b"123", "malformed"),
        (prefix(b"{}", 2**64 - 1), "oversized"),
    ],
)
def test_a_malformed_frame(play: Callable[..., None], frame: bytes, reason: str) -> None:
    async def scenario(net: Net) -> None:
        anna, bob = await net.peer("anna"), await net.peer("bob")
        raw = await Raw.connect(anna, bob)
        raw.tls.sendall(frame)
        answer = await asyncio.to_thread(raw.frame)
        assert answer is not None
        assert (answer.kind, answer.sender) == ("refusal", "bob")
        assert bob.refusals == {reason: 1}
        raw.close()
        await anna.ask(bob)

    play(scenario)


def test_an_oversized_body_is_not_sent(play: Callable[..., None]) -> None:
    async def scenario(net: Net) -> None:
        anna, bob = await net.peer("anna"), await net.peer("bob", replace(CALM, largest_body=100_000))
        with pytest.raises(RefusedError, match="oversized: a body of 100001 bytes; at most 100000"):
            await anna.ask(bob, bytes(100_001))
        assert bob.refusals == {"oversized": 1}
        await anna.ask(bob, bytes(100_000))

    play(scenario)


def test_too_many_connections_of_one_peer(play: Callable[..., None]) -> None:
    async def scenario(net: Net) -> None:
        anna, bob = await net.peer("anna"), await net.peer("bob", replace(CALM, connections_per_peer=2))
        raws = [await Raw.connect(anna, bob) for _ in range(2)]
        with pytest.raises(RefusedError, match="busy: too many connections from anna"):
            await anna.ask(bob)
        assert bob.refusals == {"busy": 1}
        carol = await net.peer("carol")
        await carol.ask(bob)
        for raw in raws:
            raw.close()
        await asyncio.sleep(0.05)
        await anna.ask(bob)

    play(scenario)


def test_too_many_connections(play: Callable[..., None]) -> None:
    async def scenario(net: Net) -> None:
        anna, bob = await net.peer("anna"), await net.peer("bob", replace(CALM, connections=3, handshake=0.5))
        writers = [(await asyncio.open_connection("127.0.0.1", bob.transport.port))[1] for _ in range(3)]
        await asyncio.sleep(0.05)
        with pytest.raises(UnreachableError):
            await anna.ask(bob)
        assert bob.refusals["busy"] == 1
        await eventually(lambda: bob.refusals["slow"] == 3)  # they only held their places
        for writer in writers:
            writer.close()
        await anna.ask(bob)

    play(scenario)


# Answers that cannot be used


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (prefix(encode_head(Receipt(sender="carol")), 0), "sender"),
        (prefix(b"{}", 0), "malformed"),
        (bytes(12), "malformed"),
        (prefix(encode_head(Receipt(sender="bob")), 100) + b"half", "truncated"),
        (prefix(encode_head(Receipt(sender="bob")), 2**63), "oversized"),
        (b"\xff" * 12, "oversized"),
        (b"12", "truncated"),
    ],
)
def test_an_answer_that_makes_no_sense(play: Callable[..., None], answer: bytes, reason: str) -> None:
    async def scenario(net: Net) -> None:
        anna, bob = await net.peer("anna"), await net.peer("bob", start=False)

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(bytes(12))
            await reader.read(12)
            writer.write(answer)
            writer.close()

        context = bob.context(ssl.PROTOCOL_TLS_SERVER)
        server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
        bob.transport.port = server.sockets[0].getsockname()[1]
        with pytest.raises(UnreachableError):
            await anna.ask(bob)
        assert anna.refusals == {reason: 1}
        server.close()
        await server.wait_closed()
        await asyncio.sleep(0.05)

    play(scenario)


def test_nobody_there(play: Callable[..., None]) -> None:
    async def scenario(net: Net) -> None:
        anna = await net.peer("anna")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{free.getsockname()[1]}"
        head = Inquiry(sender="anna", round=1, slot=0)
        with pytest.raises(UnreachableError, match=r"(?i)bob at 127.0.0.1:[0-9]+: .*refused"):
            await anna.transport.request("bob", address, head, timeout=2)
        with pytest.raises(UnreachableError, match=r"(?i)bob at nowhere.invalid:1"):
            await anna.transport.request("bob", "nowhere.invalid:1", head, timeout=2)
        with pytest.raises(UnreachableError, match=r"(?i)bob"):
            await anna.transport.request("bob", "127.0.0.1:99999", head, timeout=2)

    play(scenario)
