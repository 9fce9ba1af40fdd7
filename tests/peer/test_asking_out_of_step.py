"""Methods that ask for models, among peers at their own pace: whoever is asked answers in its next round."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peers_in_memory import Size, World

from coterie.algorithms.dac import DAC
from coterie.algorithms.kin import Kin
from coterie.algorithms.random_gossip import RandomGossip
from coterie.peer.process import Peer
from coterie.peer.turn import RoundReport
from coterie.protocol import Algorithm, Exchange, Inbox, Links, Node
from coterie.protocol.wrapping import Wrapped
from coterie.testing import Crash, Faults, run_peers, run_virtually

ASKING: list[Algorithm[Any]] = [
    Kin(peers=2, private="never"),
    DAC(peers=2),
    RandomGossip(peers=2, sealed=False),
]
names = [type(algorithm).__name__ for algorithm in ASKING]


class Noted(Wrapped):
    """Notes whom each row asked in a round, and who answered."""

    def received(self, exchange: Exchange, inbox: Inbox, node: Node) -> Inbox:
        if exchange.answers and exchange.expect is not None and not exchange.sealed:
            me, round = int(node.ids[0]), node.round
            asked.setdefault(me, {})[round] = set(exchange.expect.ids.tolist())
            answered.setdefault(me, {})[round] = inbox.senders.tolist()
        return inbox


asked: dict[int, dict[int, set[int]]] = {}
answered: dict[int, dict[int, list[int]]] = {}


@pytest.fixture(autouse=True)
def nothing_noted() -> None:
    asked.clear()
    answered.clear()


@pytest.mark.parametrize("algorithm", ASKING, ids=names)
def test_answers_are_those_of_whom_one_asked_lately(algorithm: Algorithm[Any]) -> None:
    rounds = 12
    out = run_peers(Noted(algorithm), peers=5, rounds=rounds, in_step=False, seed=1)
    assert out.finished == list(range(5))
    later = 0
    for me, came in answered.items():
        assert sum(map(len, came.values())) >= rounds, f"{me} was answered more often than not"
        for round, senders in came.items():
            lately = set().union(*(asked[me][r] for r in range(max(0, round - 5), round + 1)))
            assert set(senders) <= lately
            later += len(set(senders) - asked[me][round])
    assert later > 0, "answers to earlier rounds count, too"


class Slow(World):
    """Peer 0 takes some five times as long as the others for its work."""

    def _peer(self, number: int) -> Peer:
        peer = super()._peer(number)
        if number == 0:
            usual = peer.work

            async def slowly(task: Callable[[], Any]) -> Any:
                await asyncio.sleep(1.0)
                return await usual(task)

            peer.work = slowly
        return peer


def test_a_slow_peer_is_answered_by_those_who_are_far_ahead(tmp_path: Path) -> None:
    asking = Noted(RandomGossip(peers=2, sealed=False))
    world = Slow(asking, tmp_path, Size(peers=3, rounds=30, samples=6), in_step=False, busy=0.5)
    ahead: list[int] = []

    def look(report: RoundReport) -> None:
        ahead.append(min(len(world.reports[number]) for number in (1, 2)) - report.round)

    async def play() -> None:
        for number in range(3):
            world.start(number)
        world.peers_by_number[0].observer = look
        await asyncio.gather(*world.tasks.values())

    run_virtually(play())
    assert ahead[1] > 5, "when it asks in its third round, what it trained is too old for the others"
    assert answered[0][3], "and they answer nevertheless"


@pytest.mark.parametrize("algorithm", ASKING, ids=names)
def test_everyone_finishes_when_messages_are_lost_and_a_peer_crashes(algorithm: Algorithm[Any]) -> None:
    faults = Faults(delay=0.2, lost_request=0.1, lost_answer=0.1, duplicated=0.2)
    crashes = [Crash(peer=1, at=3.0, away=4.0)]
    out = run_peers(
        Noted(algorithm), peers=5, rounds=10, in_step=False, faults=faults, crashes=crashes, seed=2
    )
    assert out.finished == list(range(5))
    for number, state in out.states.items():
        assert all(bool(leaf.isfinite().all()) for leaf in algorithm.personal(state).values()), number
    assert min(sum(map(len, came.values())) for came in answered.values()) > 0


def test_what_was_not_asked_for_is_not_used(tmp_path: Path) -> None:
    """A member that sends its model to all, unasked, is in nobody's inbox but of those who ask it."""

    class Obtrusive(World):
        def _peer(self, number: int) -> Peer:
            peer = super()._peer(number)
            if number == 3:
                peer.algorithm = ToAll(self.algorithm)
            return peer

    class ToAll(Wrapped):
        def sent(self, exchange: Exchange) -> Exchange:
            if not exchange.answers or exchange.sealed:
                return exchange
            return dataclasses.replace(exchange, to=Links(torch.zeros(3, dtype=torch.long), torch.arange(3)))

    nobodys = RandomGossip(peers=1, sealed=False)
    world = Obtrusive(Noted(nobodys), tmp_path, Size(peers=4, rounds=15, samples=6), in_step=False, busy=0.5)
    run_virtually(world.play())
    unasked = 0
    for me in range(3):
        for round, senders in answered[me].items():
            lately = set().union(*(asked[me][r] for r in range(max(0, round - 5), round + 1)))
            assert set(senders) <= lately
            unasked += 3 not in lately
    assert unasked > 0
