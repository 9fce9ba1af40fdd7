"""What the handler refuses, waits for or breaks over."""

from __future__ import annotations

import asyncio
import gc
import socket
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import pytest
from tls_peers import CALM, LARGE, Net, Raw, eventually, prefix

from coterie.errors import RefusedError, UnreachableError
from coterie.peer.network.messages import Parcel, Receipt, encode_head


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


def test_a_full_disk_is_told_and_counted(play: Callable[..., None], caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(net: Net) -> None:
        anna, bob = await net.peer("anna"), await net.peer("bob")

        async def fail() -> None:
            raise RefusedError("disk", "cannot write")

        bob.handler.on_take = fail
        with pytest.raises(RefusedError, match="disk: cannot write"):
            await anna.ask(bob, bytes(LARGE))
        assert bob.refusals == {"disk": 1}
        assert "Traceback" not in caplog.text

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


@pytest.mark.parametrize("turns", range(5))
def test_a_connection_that_comes_while_the_transport_stops_is_closed(
    play: Callable[..., None], turns: int
) -> None:
    """Whatever the loop has done with it by then; a socket that is lost is a ResourceWarning."""

    async def scenario(net: Net) -> None:
        bob = await net.peer("bob")
        await asyncio.sleep(0.05)  # now it waits for connections
        with socket.create_connection(("127.0.0.1", bob.transport.port), timeout=5) as caller:
            for _ in range(turns):
                await asyncio.sleep(0)
            await bob.transport.stop()
            with suppress(ConnectionResetError):
                assert caller.recv(1) == b""

    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        play(scenario)
        gc.collect()
    assert [str(one.message) for one in found] == []


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
