"""Alone after a restart, or when all others vanish: waiting, never a silence, and counted."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from lying import QUICK
from peers_in_memory import Size, World
from real_peers import Swarm, experiment, slow_model

from coterie.errors import PeerError
from coterie.testing import Cut, Faults, run_virtually

SIZE = Size(peers=3, rounds=8, samples=6)


def world(folder: Path, **settings: Any) -> World:
    return World("d-psgd", folder, SIZE, **{"pace": QUICK, "alone": False, "busy": 1.0, **settings})


async def power_failure(peers: World, after: float, apart: float) -> None:
    """All crash at once, and boot one after the other; then all play to the end."""
    for number in range(peers.nodes):
        peers.start(number)
    await asyncio.sleep(after)
    for number in range(peers.nodes):
        await peers.crash(number)
    for number in range(peers.nodes):
        peers.start(number)
        await asyncio.sleep(apart)
    await asyncio.gather(*peers.tasks.values())


def test_after_a_power_failure_the_first_waits_for_the_others(tmp_path: Path) -> None:
    peers = world(tmp_path)
    run_virtually(power_failure(peers, after=3.0, apart=12.0))
    for number, peer in peers.peers_by_number.items():
        assert peer.journal.round == SIZE.rounds
        assert peer.metrics.alone == 0
        assert not any(report.alone for report in peers.reports[number])
        assert sum(report.skipped for report in peers.reports[number]) == 0


@pytest.mark.slow
def test_after_a_power_failure_processes_wait_too(tmp_path: Path) -> None:
    """The first one is up long before the others: it learns nothing by itself, and all finish together."""
    table = experiment(peers=3, rounds=15, model=slow_model(tmp_path / "model", 0.02))
    with Swarm(tmp_path / "peers", table) as swarm:
        swarm.start()
        swarm.until(lambda: min(swarm.rounds()) >= 3, "three rounds of all")
        for number in range(3):
            swarm.kill(number)
        before = swarm.rounds()
        swarm.start(0)
        swarm.until(lambda: "goes on after round" in swarm.log(0), "the first one is up")
        time.sleep(8.0)  # after 4 s it used to play alone, a dozen rounds in a second
        assert swarm.rounds() == before
        swarm.start(1, 2)
        swarm.finish()
        assert swarm.rounds() == [15] * 3
        assert [swarm.alone(number) for number in range(3)] == [0, 0, 0]


def test_a_quorum_is_enough_after_a_restart(tmp_path: Path) -> None:
    """The third never comes back, and the two others do not wait for it."""
    peers = world(tmp_path)
    plain = peers._peer

    def made(number: int) -> Any:
        peer = plain(number)
        peer.quorum = 1
        peer.__post_init__()
        return peer

    peers._peer = made  # type: ignore[method-assign]

    async def main() -> float:
        for number in range(3):
            peers.start(number)
        await asyncio.sleep(3.0)
        for number in range(3):
            await peers.crash(number)
        began = asyncio.get_running_loop().time()
        await asyncio.gather(peers.start(0), peers.start(1))
        return asyncio.get_running_loop().time() - began

    assert run_virtually(main()) < QUICK.join
    assert [peers.peers_by_number[number].journal.round for number in (0, 1)] == [SIZE.rounds] * 2


def test_nobody_plays_on_alone_unless_it_was_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    peers = world(tmp_path)

    async def main() -> None:
        for number in range(3):
            peers.start(number)
        await asyncio.sleep(3.0)
        for number in (1, 2):
            await peers.crash(number)
        with pytest.raises(PeerError, match="none of the 2 members of the roster answered in 30 s"):
            await peers.tasks[0]

    run_virtually(main())
    first = peers.peers_by_number[0]
    assert first.journal.round < SIZE.rounds
    assert first.metrics.alone <= 1, "the round in which they vanished"
    assert any(text.startswith("nobody else is there: waiting 30 s") for text in caplog.messages)


def test_a_cut_that_ends_is_waited_for(tmp_path: Path) -> None:
    """Two peers lose sight of each other: both wait, and go on together."""
    cut = Faults(cut=Cut({"peer-0"}, start=3.0, seconds=20.0))
    peers = World("d-psgd", tmp_path, Size(2, 8, 6), faults=cut, pace=QUICK, alone=False, busy=1.0)
    run_virtually(peers.play())
    for peer in peers.peers_by_number.values():
        assert peer.journal.round == 8
        assert peer.metrics.alone <= 1


def test_who_may_be_alone_is_and_counts_it(tmp_path: Path) -> None:
    peers = world(tmp_path, alone=True)

    async def main() -> None:
        for number in range(3):
            peers.start(number)
        await asyncio.sleep(3.0)
        for number in (1, 2):
            await peers.crash(number)
        await peers.tasks[0]

    run_virtually(main())
    first = peers.peers_by_number[0]
    assert first.journal.round == SIZE.rounds
    alone = [report.round for report in peers.reports[0] if report.alone]
    assert first.metrics.alone == len(alone) >= 4
    assert alone == list(range(alone[0], SIZE.rounds)), "from when the others vanished"


def test_a_process_that_was_alone_says_so_when_it_ends(tmp_path: Path) -> None:
    table = experiment(peers=2, rounds=12, model=slow_model(tmp_path / "model", 0.03))
    with Swarm(tmp_path / "peers", table, {"alone": True, "suspect_after": 1.5, "deadline": 10.0}) as swarm:
        swarm.start()
        swarm.until(lambda: min(swarm.rounds()) >= 2, "two rounds of both")
        swarm.kill(1)
        swarm.finish(0, cut_off=[0])  # exit code 3, as its records say
        assert swarm.round(0) == 12
        assert swarm.alone(0) == 12 - len([one for one in swarm.records(0) if not one.get("alone")]) >= 3
        swarm.start(0)  # again, when there is nothing more to do
        swarm.finish(0, cut_off=[0])
        assert "has finished its 12 rounds already" in swarm.log(0)


def test_the_last_of_all_finishes_by_itself(tmp_path: Path) -> None:
    """At their own pace the others may be done long before: nobody will come back."""
    peers = world(tmp_path, in_step=False)
    slow = peers._work

    async def work(task: Any) -> Any:
        await asyncio.sleep(20.0 if asyncio.current_task() is peers.tasks[2] else 0.0)
        return await slow(task)

    peers._work = work  # type: ignore[method-assign]
    run_virtually(peers.play())
    assert [peer.journal.round for peer in peers.peers_by_number.values()] == [SIZE.rounds] * 3
