"""Answers that cannot be used, and nobody there."""

from __future__ import annotations

import asyncio
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
