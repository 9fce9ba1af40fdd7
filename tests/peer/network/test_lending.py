"""Connections that a peer opens for others to ask on, because nobody can dial it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest
from tls_peers import CALM, LARGE, Net, Peer, Raw, eventually, prefix

from coterie.errors import RefusedError, UnreachableError
from coterie.peer.network.connection import AT_ONCE
from coterie.peer.network.messages import Lend, Parcel, Receipt, encode_head
from coterie.peer.trust.names import OUTGOING


async def ask_hidden(asker: Peer, hidden: Peer, body: bytes = b"", timeout: float = 10.0) -> Receipt:
    head = Parcel(sender=asker.name, round=1, slot=0)
    answer, _ = await asker.transport.request(hidden.name, OUTGOING, head, body, timeout=timeout, most=LARGE)
    assert isinstance(answer, Receipt)
    return answer


async def asked_or_nothing_sent(asker: Peer, hidden: Peer) -> bool:
    """As a peer does: it may try again as long as nothing was sent."""
    try:
        await ask_hidden(asker, hidden)
    except UnreachableError as error:
        if error.sent:  # a request met a connection that was being closed
            raise
        return False
    return True


async def anna_lends_to_bob(net: Net, **limits: float) -> tuple[Peer, Peer]:
    """Anna listens nowhere."""
    calm = replace(CALM, **limits)  # type: ignore[arg-type]
    anna, bob = await net.peer("anna", calm, start=False), await net.peer("bob", calm)
    anna.transport.port = -1
    await anna.transport.start(anna.handler)
    anna.transport.lend("bob", bob.address)
    await eventually(lambda: bob.transport.borrows("anna"))
    return anna, bob


@pytest.mark.parametrize("size", [0, AT_ONCE, AT_ONCE + 1, LARGE])
def test_both_sides_ask(play: Callable[..., None], size: int) -> None:
    async def scenario(net: Net) -> None:
        anna, bob = await anna_lends_to_bob(net)
        body = bytes(size)
        assert await ask_hidden(bob, anna, body) == Receipt(sender="anna")
        assert anna.handler.bodies == [body]
        assert anna.handler.admitted == [("bob", Parcel(sender="bob", round=1, slot=0), size)]
        assert await anna.ask(bob, body) == Receipt(sender="bob")
        assert bob.handler.bodies == [body]
        assert not anna.refusals + bob.refusals

    play(scenario)


def test_many_questions_take_turns(play: Callable[..., None]) -> None:
    async def scenario(net: Net) -> None:
        anna, bob = await anna_lends_to_bob(net)
        await asyncio.gather(*(ask_hidden(bob, anna, bytes([n]) * 200_000) for n in range(20)))
        assert sorted(body[0] for body in anna.handler.bodies) == list(range(20))

    play(scenario)


def test_without_a_loan_it_cannot_be_reached(play: Callable[..., None]) -> None:
    async def scenario(net: Net) -> None:
        anna, bob = await net.peer("anna", start=False), await net.peer("bob")
        with pytest.raises(UnreachableError, match="accepts no connections") as caught:
            await ask_hidden(bob, anna)
        assert not caught.value.sent

    play(scenario)


def test_a_loan_that_breaks_is_replaced(play: Callable[..., None]) -> None:
    async def scenario(net: Net) -> None:
        anna, bob = await anna_lends_to_bob(net)
        await eventually(lambda: bob.transport._borrowed.of("anna") == 4)
        for loan in bob.transport._borrowed._loans["anna"]:
            loan.stream._socket.shutdown(2)
        await eventually(lambda: bob.transport.borrows("anna") and len(anna.transport._lender._tasks) == 1)
        for _ in range(20):
            try:
                await ask_hidden(bob, anna, timeout=3)
                break
            except UnreachableError:
                await asyncio.sleep(0.2)
        assert anna.handler.bodies == [b""]

    play(scenario)


def test_no_request_meets_a_loan_that_is_being_closed(play: Callable[..., None]) -> None:
    async def scenario(net: Net) -> None:
        anna, bob = await anna_lends_to_bob(net, idle=0.8)
        for _ in range(4):
            await asyncio.sleep(0.5)
            while not await asked_or_nothing_sent(bob, anna):
                await asyncio.sleep(0.02)
        assert len(anna.handler.bodies) == 4

    play(scenario)


def test_who_is_removed_from_the_roster_is_not_asked_on_its_loan(play: Callable[..., None]) -> None:
    async def scenario(net: Net) -> None:
        anna, bob = await anna_lends_to_bob(net)
        bob.roster.clear()
        with pytest.raises(UnreachableError):
            await ask_hidden(bob, anna, timeout=2)
        assert anna.handler.bodies == []

    play(scenario)


def test_the_lender_refuses_who_was_removed(play: Callable[..., None]) -> None:
    async def scenario(net: Net) -> None:
        anna, bob = await anna_lends_to_bob(net)
        anna.roster.clear()
        with pytest.raises(RefusedError, match="certificate"):
            await ask_hidden(bob, anna, timeout=2)
        assert anna.refusals["certificate"] >= 1

    play(scenario)


def test_a_member_cannot_lend_more_than_it_may_connect(play: Callable[..., None]) -> None:
    """Connections that are lent count as its others do."""

    async def scenario(net: Net) -> None:
        anna, bob = await net.peer("anna"), await net.peer("bob", replace(CALM, connections_per_peer=3))
        raw = [await Raw.connect(anna, bob) for _ in range(3)]
        for one in raw:
            await asyncio.to_thread(one.tls.sendall, prefix(encode_head(Lend(sender="anna")), 0))
            assert await asyncio.to_thread(one.frame) == Receipt(sender="bob")
        assert bob.transport._borrowed.of("anna") == 3
        with pytest.raises(RefusedError, match="too many connections from anna"):
            await anna.ask(bob)
        for one in raw:
            one.close()

    play(scenario)


def test_a_liar_lends_and_answers_nonsense(play: Callable[..., None]) -> None:
    async def scenario(net: Net) -> None:
        anna, bob = await net.peer("anna"), await net.peer("bob")
        raw = await Raw.connect(anna, bob)
        await asyncio.to_thread(raw.tls.sendall, prefix(encode_head(Lend(sender="anna")), 0))
        assert await asyncio.to_thread(raw.frame) == Receipt(sender="bob")
        asking = asyncio.create_task(ask_hidden(bob, anna, timeout=5))
        assert await asyncio.to_thread(raw.frame) == Parcel(sender="bob", round=1, slot=0)
        await asyncio.to_thread(raw.tls.sendall, prefix(b"{}", 0))
        with pytest.raises(UnreachableError, match="the answer of anna cannot be used"):
            await asking
        await eventually(lambda: not bob.transport.borrows("anna"))
        raw.close()

    play(scenario)
