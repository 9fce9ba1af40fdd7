"""Who is there, by hand: signs of life, whereabouts, addresses, and who is refused."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable

import pytest
from scripted_transport import ScriptedTransport, hello, membership_of_0, roster

from coterie.errors import RefusedError, UnreachableError
from coterie.peer.exchange.membership import NOT_STARTED, START, Membership, Position, stop
from coterie.peer.exchange.signal import Signal
from coterie.peer.network.messages import LARGEST_HEAD, Receipt, Whereabouts, encode_head
from coterie.testing import run_virtually

PEERS = roster([1, 2, 3])


def play(task: Callable[[Membership, ScriptedTransport], Awaitable[None]]) -> Membership:
    transport = ScriptedTransport()
    membership = membership_of_0(transport, [1, 2, 3], Signal())

    async def main() -> None:
        await task(membership, transport)

    run_virtually(main())
    return membership


def places(addresses: dict[str, str]) -> dict[str, Whereabouts]:
    return {name: Whereabouts(address=address) for name, address in addresses.items()}


def test_positions_are_in_the_order_of_exchanges() -> None:
    assert NOT_STARTED < START < Position(0, 1) < Position(1, 0)
    assert Position(2, 3).next == Position(2, 4)


def test_a_peer_lives_until_it_has_been_silent_for_too_long() -> None:
    async def task(membership: Membership, _: ScriptedTransport) -> None:
        assert not membership.alive(1)
        membership.heard(hello(1, round=3, slot=1), PEERS[1])
        assert membership.alive(1)
        assert membership.position(1) == Position(3, 1)
        await asyncio.sleep(3.9)
        assert membership.alive(1)
        await asyncio.sleep(0.2)
        assert not membership.alive(1)
        assert membership.position(1) == Position(3, 1), "the last that is known"

    play(task)


def test_a_stranger_never_lives() -> None:
    async def task(membership: Membership, _: ScriptedTransport) -> None:
        membership.presence(7).seen = asyncio.get_running_loop().time()
        assert not membership.alive(7)
        assert membership.member("peer-7") is None
        assert membership.member("peer-2") == PEERS[2]

    play(task)


def test_another_experiment_and_another_number_are_refused() -> None:
    async def task(membership: Membership, _: ScriptedTransport) -> None:
        with pytest.raises(RefusedError, match=r"experiment: .* must agree"):
            membership.heard(hello(1, digest="f" * 64), PEERS[1])
        membership.parts = {"model": "0" * 8, "own.py": "1" * 8, "seed": "2" * 8}
        theirs = {"model": "a" * 8, "own.py": "b" * 8, "seed": "2" * 8, "a\nline": "0" * 8}
        with pytest.raises(RefusedError) as refused:
            membership.heard(hello(1, digest="f" * 64, parts=theirs), PEERS[1])
        assert refused.value.text.endswith(r"must agree; different: model, own.py, a\nline")
        with pytest.raises(RefusedError, match="sender: peer-1 says it is number 2; its card says 1"):
            membership.heard(hello(1, number=2), PEERS[1])
        assert not membership.alive(1)

    play(task)


def test_who_has_finished_stays_finished() -> None:
    """An answer from before may arrive later."""

    async def task(membership: Membership, _: ScriptedTransport) -> None:
        membership.heard(hello(1, finished=True), PEERS[1])
        membership.heard(hello(1, finished=False), PEERS[1])
        assert membership.presence(1).finished

    play(task)


@pytest.mark.parametrize(
    ("second", "news"),
    [({}, False), ({"round": 1}, True), ({"slot": 1}, True), ({"finished": True}, True)],
)
def test_whoever_waits_is_woken_by_news_only(second: dict[str, object], news: bool) -> None:
    async def task(membership: Membership, _: ScriptedTransport) -> None:
        membership.heard(hello(1), PEERS[1])
        waiting = asyncio.create_task(membership.changed.wait(1.0))
        await asyncio.sleep(0)
        membership.heard(hello(1, **second), PEERS[1])
        assert await waiting is news

    play(task)


def test_addresses_spread_with_heartbeats_and_fall_back_to_the_card() -> None:
    async def task(membership: Membership, transport: ScriptedTransport) -> None:
        assert membership.address(PEERS[1]) == "card:1"
        told = {"peer-2": "moved:2", "peer-9": "unknown:9", "peer-1": "wrong:1"}
        membership.heard(hello(1, addresses=places(told)), PEERS[1])
        assert membership.address(PEERS[1]) == "host:1", "what it says of itself counts"
        assert membership.address(PEERS[2]) == "moved:2"
        assert membership.missing() == (2, 3)
        passed_on = membership.addresses([1, 2, 3, 9])
        assert passed_on == places({"peer-1": "host:1"}), "only the living are passed on"
        assert membership.addresses([2, 3]) == {}, "and only those who are asked for"
        transport.script["peer-2"] = [UnreachableError("nobody there")]
        await membership.ask(2)
        assert transport.asked[-1].address == "moved:2"
        assert membership.address(PEERS[2]) == "card:2"
        assert membership.presence(2).trouble == "nobody there"
        membership.heard(hello(2), PEERS[2])
        assert membership.presence(2).trouble == ""

    play(task)


def test_refusals_of_a_heartbeat_are_counted_and_shown() -> None:
    async def task(membership: Membership, transport: ScriptedTransport) -> None:
        transport.script["peer-1"] = [RefusedError("experiment", "the files differ")]
        transport.script["peer-2"] = [Receipt(sender="peer-2")]
        await membership.ask(1)
        await membership.ask(2)
        await membership.ask(9)  # not in the roster: nothing happens

    membership = play(task)
    assert membership.metrics.refused_by_others == {"experiment": 1, "unexpected": 1}
    assert membership.presence(1).trouble == "the files differ"
    assert "answered a hello with receipt" in membership.presence(2).trouble


def test_everyone_is_asked_every_second_and_nobody_twice_at_once() -> None:
    async def task(membership: Membership, transport: ScriptedTransport) -> None:
        transport.script |= {"peer-1": [hello(1)], "peer-2": [hello(2)]}  # peer 3 never answers
        beating = asyncio.create_task(membership.beat())
        await asyncio.sleep(2.5)
        await stop(beating)
        assert beating.cancelled()
        times = [round(asked.at, 3) for asked in transport.asked if asked.to == "peer-1"]
        assert times == [0.0, 1.0, 2.0]
        assert transport.kinds("peer-2") == ["hello"] * 3
        assert transport.kinds("peer-3") == ["hello"]

    play(task)


# --- addresses that their owners signed ----------------------------------------------------------


def signed(name: str, address: str, serial: int = 0) -> Whereabouts:
    """In the hand of this name."""
    told = Whereabouts(address=address, serial=serial)
    proof = base64.b64encode(name.encode() + told.statement(name)).decode()
    return told.model_copy(update={"proof": proof})


def verified(number: int, message: bytes, proof: bytes) -> bool:
    return proof == f"peer-{number}".encode() + message


def test_nobody_is_sent_to_an_address_that_its_owner_did_not_sign() -> None:
    async def task(membership: Membership, _: ScriptedTransport) -> None:
        membership.verify = verified
        forged = [
            Whereabouts(address="victim:1"),
            Whereabouts(address="victim:2", proof="AAAA"),
            Whereabouts(address="victim:3", proof="===="),
            signed("peer-1", "victim:4"),
            signed("peer-2", "real:2").model_copy(update={"address": "victim:5"}),
            signed("peer-2", "real:2").model_copy(update={"serial": 7}),
        ]
        for place in forged:
            membership.heard(hello(1, addresses={"peer-2": place}), PEERS[1])
            assert membership.address(PEERS[2]) == "card:2"
        membership.heard(hello(1, addresses={"peer-2": signed("peer-2", "real:2", 5)}), PEERS[1])
        assert membership.address(PEERS[2]) == "real:2"
        membership.presence(2).at = None  # it did not answer there
        membership.heard(hello(1, addresses={"peer-2": signed("peer-2", "old:2", 4)}), PEERS[1])
        assert membership.address(PEERS[2]) == "card:2", "a statement from before is not believed again"

    play(task)


def test_nobody_is_followed_from_address_to_address() -> None:
    async def task(membership: Membership, _: ScriptedTransport) -> None:
        dialled = set()
        for number in range(100):
            membership.heard(hello(1, at=Whereabouts(address=f"victim:{number}")), PEERS[1])
            dialled.add(membership.address(PEERS[1]))
            await asyncio.sleep(1.0)
        assert dialled == {"victim:0", "victim:60"}

    play(task)


def test_a_hello_with_many_addresses_fits_into_a_head() -> None:
    others = range(1, 200)
    members = roster(others)

    async def main() -> None:
        membership = membership_of_0(ScriptedTransport(), others, Signal())
        place = Whereabouts(address="x" * 253 + ":65535", serial=2**53, proof="A" * 900)
        for number in others:
            membership.heard(hello(number, at=place), members[number])
        found = membership.addresses(others)
        assert 20 < len(found) < 100
        said = hello(0, at=place, missing=tuple(range(100)), addresses=found)
        assert len(encode_head(said)) <= LARGEST_HEAD

    run_virtually(main())


def test_who_comes_back_is_told_with_how_long_it_was_away(caplog: pytest.LogCaptureFixture) -> None:
    async def task(membership: Membership, _: ScriptedTransport) -> None:
        membership.heard(hello(1), PEERS[1])
        await asyncio.sleep(3.0)
        membership.heard(hello(1), PEERS[1])
        await asyncio.sleep(35.0)
        membership.heard(hello(1, round=7), PEERS[1])

    play(task)
    assert caplog.messages == ["peer-1 is back after 35 s, in round 7"]
