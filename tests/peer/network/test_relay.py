"""Two peers that can only dial out meet at a relay, which learns nothing but sizes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tls_peers import LARGE, Net, Peer, eventually

from coterie.errors import UnreachableError
from coterie.peer.network.messages import Parcel, Receipt
from coterie.peer.network.relay import Relay, RelayLimits
from coterie.peer.trust.names import is_dialled, split_relay

TOKEN = "0123456789abcdef"


class Eavesdropper(Relay):
    """Keeps what it should not: to see what there is to see."""

    heard = b""

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        write = writer.write

        def keep(data: bytes) -> None:
            self.heard += data
            write(data)

        writer.write = keep  # type: ignore[method-assign, assignment]
        await super()._copy(reader, writer)


@asynccontextmanager
async def relaying(**limits: Any) -> AsyncIterator[tuple[Eavesdropper, str]]:
    relay = Eavesdropper(RelayLimits(**limits))
    port = await relay.start("127.0.0.1", 0)
    try:
        yield relay, f"relay/127.0.0.1:{port}/{TOKEN}"
    finally:
        await relay.stop()
        assert not relay._waiting
        assert not relay._sources


async def hidden(net: Net, name: str, address: str) -> Peer:
    """A peer that listens nowhere but at a relay."""
    peer = await net.peer(name, start=False)
    peer.transport.port, peer.transport._relay = -1, address
    await peer.transport.start(peer.handler)
    return peer


async def ask(asker: Peer, name: str, address: str, body: bytes = b"", timeout: float = 20.0) -> object:
    head = Parcel(sender=asker.name, round=1, slot=0)
    return (await asker.transport.request(name, address, head, body, timeout=timeout, most=LARGE))[0]


def test_what_passes_is_sealed_from_end_to_end(play: Callable[..., None]) -> None:
    secret = b"the weights of a ward" * 50_000

    async def scenario(net: Net) -> None:
        async with relaying() as (relay, address):
            anna, bob = await hidden(net, "anna", address), await net.peer("bob", start=False)
            await eventually(lambda: len(relay._waiting[TOKEN]) == 3)
            assert await ask(bob, "anna", address, secret) == Receipt(sender="anna")
            assert anna.handler.bodies == [secret]
            assert relay.counts["calls"] == 1
            assert relay.counts["bytes"] == len(relay.heard) > len(secret)
            assert b"weights" not in relay.heard
            assert b"anna" not in relay.heard
            assert not anna.refusals
            await eventually(lambda: len(relay._waiting[TOKEN]) == 3)  # others can call, too
            await anna.transport.stop()
            await bob.transport.stop()

    play(scenario)


def test_nobody_there_and_somebody_else_there(play: Callable[..., None]) -> None:
    async def scenario(net: Net) -> None:
        async with relaying() as (relay, address):
            bob = await net.peer("bob", start=False)
            with pytest.raises(UnreachableError, match="nobody waits there under this token") as error:
                await ask(bob, "anna", address)
            assert not error.value.sent
            carol = await hidden(net, "carol", address)  # who has got hold of anna's token
            await eventually(lambda: len(relay._waiting[TOKEN]) == 3)
            with pytest.raises(Exception, match="the certificate is that of carol, not of anna"):
                await ask(bob, "anna", address)
            assert not carol.handler.bodies
            await carol.transport.stop()

    play(scenario)


def test_a_relay_is_limited(play: Callable[..., None]) -> None:
    """In connections of one source and under one token; what is no greeting ends at once."""

    async def scenario(net: Net) -> None:
        async with relaying(per_token=2, per_source=4, line=0.5) as (relay, address):
            place = split_relay(address)
            assert place is not None
            port = int(place[0].rpartition(":")[2])

            async def said(line: bytes) -> bytes:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(line)
                try:
                    return await reader.read()
                except ConnectionResetError:  # it did not even read the line
                    return b"busy\n"
                finally:
                    writer.close()

            draw = random.Random(1)
            nonsense = (b"GET / HTTP/1.1\r\n\r\n", draw.randbytes(99), b"")
            for line in (*nonsense, b"coterie-relay-1 call ../\n"):
                assert await said(line) == b""
            greeting = f"coterie-relay-1 listen {TOKEN}\n".encode()
            waiting = [asyncio.create_task(said(greeting)) for _ in range(2)]
            await eventually(lambda: len(relay._waiting[TOKEN]) == 2)
            assert await said(greeting) == b"busy\n"
            idle = [asyncio.create_task(said(b"")) for _ in range(2)]
            await asyncio.sleep(0)
            await eventually(lambda: relay._sources["127.0.0.1"] == 4)
            assert await said(greeting) == b"busy\n"
            for task in (*waiting, *idle):
                task.cancel()
            await asyncio.gather(*waiting, *idle, return_exceptions=True)
            await eventually(lambda: not relay._sources)

    play(scenario)


def test_bytes_pass_no_faster_than_allowed() -> None:
    """300 kB at 100 kB/s after a burst of 100 kB take 2 s, of a clock that only sleeping moves."""

    async def scenario() -> None:
        slept: list[float] = []
        relay = Relay(RelayLimits(rate=100e3, burst=100_000))
        reader = asyncio.StreamReader()
        reader.feed_data(bytes(300_000))
        reader.feed_eof()

        class Sink:
            got = 0

            def write(self, data: bytes) -> None:
                self.got += len(data)

            async def drain(self) -> None: ...

            def write_eof(self) -> None: ...

        sink, clock = Sink(), [0.0]
        loop = asyncio.get_running_loop()

        async def sleep(seconds: float) -> None:
            slept.append(seconds)
            clock[0] += seconds

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(asyncio, "sleep", sleep)
            patch.setattr(loop, "time", lambda: clock[0])
            await relay._copy(reader, sink)  # type: ignore[arg-type]
        assert sink.got == 300_000 == relay.counts["bytes"]
        assert sum(slept) == pytest.approx(2.0)

    asyncio.run(scenario())


def test_addresses() -> None:
    assert split_relay("relay/[::1]:7500/" + TOKEN) == ("[::1]:7500", TOKEN)
    assert split_relay("relay/host:7500/short") is None
    assert not is_dialled("relay/host:7500/" + TOKEN)
