"""A peer that is stopped, not ended: the others notice and go on, and it comes back. And a wrong clock."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
from real_peers import PATIENCE, Swarm, experiment, same_as_simulated, slow_model

from coterie.peer.process import Peer

NOTICED_WITHIN = 5.0  # seconds, with the settings that a new peer has

# Time as all Python code of the process sees it.
WRONG_CLOCK = """\
import datetime, os, time

shift = {seconds}
true_time, true_time_ns, true_datetime = time.time, time.time_ns, datetime.datetime

class Shifted(true_datetime):
    @classmethod
    def now(cls, tz=None):
        return true_datetime.now(tz) + datetime.timedelta(seconds=shift)

    @classmethod
    def utcnow(cls):
        return true_datetime.utcnow() + datetime.timedelta(seconds=shift)

time.time = lambda: true_time() + shift
time.time_ns = lambda: true_time_ns() + shift * 10**9
datetime.datetime = Shifted
open(os.environ["WRONG_CLOCK_USED"], "w").close()
"""


async def silent_for(watcher: Peer, number: int, alive: bool) -> float:
    """How long it takes the watcher to notice, without the time that this process itself was held up."""
    loop = asyncio.get_running_loop()
    start = last = loop.time()
    held_up = 0.0
    while watcher.membership.alive(number) != alive:
        assert loop.time() - start < PATIENCE
        await asyncio.sleep(0.02)
        held_up += max(0.0, loop.time() - last - 0.02)
        last = loop.time()
    return loop.time() - start - held_up


def test_a_stopped_peer_is_noticed_and_comes_back(tmp_path: Path) -> None:
    table = experiment(peers=4, rounds=40, model=slow_model(tmp_path, 0.02))
    settings = {"heartbeat": 1.0, "suspect_after": 4.0}  # as by default
    with Swarm(tmp_path, table, settings=settings) as swarm:
        swarm.start(1, 2, 3)
        watcher = swarm.join(0)

        async def play() -> tuple[float, int, int]:
            running = asyncio.ensure_future(watcher.take_part())
            while watcher.peer.journal.round < 3:
                await asyncio.sleep(0.02)
            swarm.signal(3, signal.SIGSTOP)
            try:
                seconds = await silent_for(watcher.peer, 3, alive=False)
                before, stopped_at = watcher.peer.journal.round, swarm.round(3)
                while watcher.peer.journal.round < before + 3:  # the waiting exchange goes on
                    await asyncio.sleep(0.02)
                assert swarm.round(3) == stopped_at
            finally:
                swarm.signal(3, signal.SIGCONT)
            await silent_for(watcher.peer, 3, alive=True)
            back_at = watcher.peer.journal.round
            await running
            return seconds, stopped_at, back_at

        seconds, stopped_at, back_at = asyncio.run(asyncio.wait_for(play(), PATIENCE))
        swarm.finish(1, 2, 3, cut_off=[3])
        assert swarm.alone(3) <= 1, "more than the round in which it was stopped"
        assert seconds <= NOTICED_WITHIN
        assert swarm.rounds() == [40] * 4
        played = [record["round"] for record in swarm.records(3)]
        assert len([n for n in played if n > back_at]) > 0, "it learned again with the others"
        assert stopped_at < back_at


@pytest.mark.parametrize("minutes", [10, pytest.param(-10, marks=pytest.mark.slow)])
def test_a_wrong_wall_clock_has_no_effect(minutes: int, tmp_path: Path) -> None:
    clock, used = tmp_path / "clock", tmp_path / "used"
    clock.mkdir()
    (clock / "sitecustomize.py").write_text(WRONG_CLOCK.format(seconds=60 * minutes))
    table = experiment(peers=3)
    with Swarm(tmp_path, table) as swarm:
        paths = os.pathsep.join([str(clock), *filter(None, [os.environ.get("PYTHONPATH")])])
        wrong = {"PYTHONPATH": paths, "WRONG_CLOCK_USED": str(used)}
        swarm.start(0, executed=True, environment=wrong)
        swarm.start(1, 2)
        swarm.finish()
        assert used.exists()
        same_as_simulated(table, swarm.peers(), swarm)
