"""Members who are slow, silent or out of reach: waited for a few times, then no more, and named with why."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from lying import QUICK
from peers_in_memory import Size, World

from coterie.peer.exchange.membership import Position
from coterie.peer.network.messages import Hello, Parcel
from coterie.peer.process import Peer
from coterie.peer.watch.standing import Neighbour, standing_of
from coterie.testing import MemoryTransport, run_virtually

MISSES = QUICK.misses


class Uneven(World):
    """`slow`: virtual seconds by which a peer's rounds take longer, by its number."""

    slow: Mapping[int, float] = MappingProxyType({})

    def _peer(self, number: int) -> Peer:
        peer = super()._peer(number)
        plain = peer.work

        async def work(task: Any) -> Any:
            first = peer.joined and peer.mailbox.at.slot == 0
            await asyncio.sleep(self.slow.get(number, 0.0) if first else 0.0)
            return await plain(task)

        peer.work = work
        return peer


def neighbour(world: World, of: int, number: int) -> Neighbour:
    return next(one for one in standing_of(world.peers_by_number[of]).neighbours if one.number == number)


def test_who_is_slow_costs_a_few_deadlines_and_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = Uneven("d-psgd", tmp_path, Size(peers=4, rounds=30, samples=6), pace=QUICK)
    world.slow = {3: QUICK.deadline + 1.8}
    shown: list[Neighbour] = []

    async def main() -> None:
        tasks = [world.start(number) for number in range(4)]
        while world.peers_by_number[0].journal.round < 25:
            await asyncio.sleep(0.5)
        shown.append(neighbour(world, 0, 3))
        await asyncio.gather(*tasks)

    run_virtually(main())
    seconds = [report.seconds for report in world.reports[0]]
    assert sum(spent >= QUICK.deadline for spent in seconds) == MISSES
    assert max(seconds[MISSES:]) < 1, "afterwards nobody waits"
    assert "peer-3 is no longer waited for: slow by 11.6 s a round" in caplog.text
    (one,) = shown
    assert (one.alive, one.awaited, one.reason) == (True, False, "slow")
    assert one.trouble.startswith("slow by ")
    assert float(one.trouble.split()[2]) > QUICK.deadline


def test_who_is_quick_again_is_waited_for_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The others take longer than nothing for a round, so that it can be there in time."""
    world = Uneven("d-psgd", tmp_path, Size(peers=3, rounds=60, samples=6), pace=QUICK)
    world.slow = {0: 0.5, 1: 0.5, 2: QUICK.deadline + 1.8}
    used: list[int] = []

    async def main() -> None:
        tasks = [world.start(number) for number in range(3)]
        while "peer-2 is no longer waited for" not in caplog.text:
            await asyncio.sleep(0.5)
        world.slow = {**world.slow, 2: 0.7}  # slower than they are, but in time
        await asyncio.sleep(2 * QUICK.deadline)
        used.append(world.peers_by_number[0].metrics.messages_in["peer-2"])
        await asyncio.gather(*tasks)

    run_virtually(main())
    assert "peer-2 is waited for again" in caplog.text
    later = world.peers_by_number[0].metrics.messages_in["peer-2"] - used[0]
    assert later >= 25, "from then on its models are used again"


def test_a_receiver_in_one_direction_is_waited_for_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It sends nothing to those who wait for its receipts: it is back when it takes a parcel in time."""
    world = Uneven("osgp", tmp_path, Size(peers=4, rounds=60, samples=6), pace=QUICK)
    world.slow = {0: 0.5, 1: 0.5, 2: 0.5, 3: QUICK.deadline + 1.8}

    async def main() -> None:
        tasks = [world.start(number) for number in range(4)]
        while "peer-3 is no longer waited for" not in caplog.text:
            await asyncio.sleep(0.5)
        world.slow = {**world.slow, 3: 0.7}
        await asyncio.gather(*tasks)

    run_virtually(main())
    assert "peer-3 is waited for again" in caplog.text
    assert all(peer.journal.round == 60 for peer in world.peers_by_number.values())


def test_who_can_only_dial_out_costs_no_deadline(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The others hear of peer 2, but nothing that they ask arrives there."""
    world = Uneven("d-psgd", tmp_path, Size(peers=3, rounds=30, samples=6), pace=QUICK)
    world.slow = dict.fromkeys(range(3), 0.5)
    plain = MemoryTransport._deliver

    async def deliver(self: MemoryTransport, to: str, *rest: Any) -> Any:
        if to == "peer-2":
            await asyncio.sleep(3600)
        return await plain(self, to, *rest)

    shown: list[Neighbour] = []

    async def main() -> None:
        tasks = [world.start(number) for number in range(3)]
        while world.peers_by_number[0].journal.round < 20:
            await asyncio.sleep(0.5)
        shown.append(neighbour(world, 0, 2))
        await asyncio.gather(*tasks)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MemoryTransport, "_deliver", deliver)
        run_virtually(main())
    seconds = [report.seconds for report in world.reports[0]]
    assert sum(spent >= QUICK.deadline for spent in seconds) <= MISSES
    assert [spent for spent in seconds[MISSES:] if spent > 2] == []
    (one,) = shown
    assert (one.alive, one.awaited, one.reason) == (True, False, "unreachable")
    assert one.trouble == "peer-2 did not answer"
    assert "peer-2 is heard of, but no longer waited for: peer-2 did not answer" in caplog.text


def test_silence_and_wrong_clocks_are_named(tmp_path: Path) -> None:
    world = World("d-psgd", tmp_path, Size(peers=4, rounds=200, samples=6), pace=QUICK, busy=1.0)
    hello = Peer._hello

    def ahead(self: Peer, *wanted: Any) -> Hello:
        said = hello(self, *wanted)
        if self.number != 1:
            return said
        late = said.at.model_copy(update={"serial": int(time.time()) + 3600})
        return said.model_copy(update={"at": late})

    shown: list[Neighbour] = []

    async def main() -> None:
        for number in range(4):
            world.start(number)
        await asyncio.sleep(5)
        await world.crash(3)
        await asyncio.sleep(20)
        shown.extend(neighbour(world, 0, number) for number in (1, 2, 3))
        for task in world.tasks.values():
            task.cancel()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Peer, "_hello", ahead)
        run_virtually(main())
    assert [one.reason for one in shown] == ["clock", "", "silent"]
    assert 3590 < float(shown[0].trouble.removeprefix("its clock is ").split()[0]) < 3610
    assert shown[0].trouble.endswith(" s ahead of ours")
    assert [one.awaited for one in shown] == [True, True, False]


def test_a_parcel_of_long_ago_says_nothing_and_one_of_the_future_does(tmp_path: Path) -> None:
    world = World("d-psgd", tmp_path, Size(peers=3, rounds=2, samples=6), pace=QUICK)

    async def main() -> None:
        peer = world._peer(0)
        patience = peer.membership.patience
        for round in range(100):
            patience.opened((round, 0))
        await asyncio.sleep(5)
        patience.missed([1, 1, 1])
        assert not patience.lasts(1)
        peer.mailbox.begin(Position(5, 0))
        with pytest.raises(Exception, match="is over"):
            peer.admit("peer-1", Parcel(sender="peer-1", round=0, slot=0), 0)
        assert patience.conduct(1).behind is None
        patience.came(1, (99, 0))
        assert patience.conduct(1).behind == pytest.approx(5)
        assert patience.lasts(1)
        patience.missed([1])
        assert not patience.lasts(1), "one more chance, not three"
        patience.came(1, (100, 0))
        assert patience.conduct(1).behind == 0
        assert patience.lasts(1)

    run_virtually(main())
