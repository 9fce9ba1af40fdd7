"""Answers that cannot be used, and nobody there."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable

import pytest
from tls_peers import Net, prefix

from coterie.errors import UnreachableError
from coterie.peer.network.messages import Inquiry, Receipt, encode_head


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


@pytest.mark.parametrize(("size", "most", "fits"), [(0, 0, True), (1, 0, False), (1000, 1000, True)])
def test_an_answer_has_no_larger_body_than_was_asked_for(
    play: Callable[..., None], size: int, most: int, fits: bool
) -> None:
    async def scenario(net: Net) -> None:
        anna, bob = await net.peer("anna"), await net.peer("bob")
        bob.handler.answer = b"x" * size
        if fits:
            await anna.ask(bob, most=most)
        else:
            with pytest.raises(UnreachableError, match=f"a body of {size} bytes; at most {most} are allowed"):
                await anna.ask(bob, most=most)
            assert anna.refusals == {"oversized": 1}

    play(scenario)


def test_a_large_answer_is_not_read(play: Callable[..., None]) -> None:
    """A hello has no body: whoever announces 250 MiB gets rid of a few packets at most."""

    async def scenario(net: Net) -> None:
        anna, bob = await net.peer("anna"), await net.peer("bob", start=False)
        sent = 0

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal sent
            writer.write(bytes(12))
            await reader.read(12)
            writer.write(prefix(encode_head(Receipt(sender="bob")), 250 << 20))
            with contextlib.suppress(OSError):
                for _ in range(250):
                    writer.write(bytes(1 << 20))
                    await writer.drain()
                    sent += 1
            writer.close()

        context = bob.context(ssl.PROTOCOL_TLS_SERVER)
        server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
        bob.transport.port = server.sockets[0].getsockname()[1]
        with pytest.raises(UnreachableError, match="at most 0 are allowed"):
            await anna.ask(bob, most=0)
        await asyncio.sleep(0.2)
        assert sent < 20, "what the buffers of both sides hold"
        server.close()
        await server.wait_closed()

    play(scenario)
