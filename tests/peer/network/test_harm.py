"""Callers that are slow, send garbage, stop half-way or come in crowds."""

from __future__ import annotations

import asyncio
import ssl
import struct
from collections.abc import Callable
from dataclasses import replace

import pytest
from tls_peers import CALM, LARGE, Net, Raw, eventually, prefix

from coterie.errors import RefusedError, UnreachableError
from coterie.peer.network.connection import AT_ONCE
from coterie.peer.network.messages import Parcel, encode_head


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
