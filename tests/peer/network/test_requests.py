"""What works: requests are answered, connections kept, one's own mistakes told."""

from __future__ import annotations

import asyncio
import ssl
import tracemalloc
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
from tls_peers import CALM, LARGE, MEMBERS, Net

from coterie.errors import PeerError, RefusedError, UnreachableError
from coterie.peer.network.connection import AT_ONCE, Limits
from coterie.peer.network.messages import Parcel, Receipt


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


def test_a_connection_made_while_the_transport_stops_is_not_kept(play: Callable[..., None]) -> None:
    async def scenario(net: Net) -> None:
        anna, bob = await net.peer("anna"), await net.peer("bob")
        contexts, stops = Counter[str](), list[asyncio.Task[None]]()
        make = anna.context

        def stopping(side: ssl._SSLMethod) -> ssl.SSLContext:
            contexts["made"] += 1
            stops.append(asyncio.create_task(anna.transport.stop()))
            return make(side)

        anna.context = stopping
        await anna.ask(bob)
        await anna.ask(bob)
        assert contexts["made"] == 2

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
