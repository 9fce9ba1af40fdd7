"""Memory is bounded: a model of 50 MB to and from ten neighbours."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import exchange_memory
import pytest
from acting_peer import Actor
from real_peers import PATIENCE, Swarm, experiment

from coterie.peer.network.messages import Parcel, encode_tree

MODEL = 50_000_000  # bytes
NEIGHBOURS = 10
MOST = 400_000_000  # above what the process had when its exchange began


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="memory is read from Linux' /proc")
@pytest.mark.parametrize(
    "answered", [pytest.param(False, marks=pytest.mark.slow), True], ids=["sends", "sends and receives"]
)
def test_large_models_and_many_neighbours(answered: bool, tmp_path: Path) -> None:
    hidden = MODEL // 4 // (64 + 1 + 10)
    table = experiment(peers=NEIGHBOURS + 1, rounds=1, model=f"mlp({hidden})")
    table |= {"splitting": {"samples_per_peer": 20, "test_samples_per_peer": 10}}
    swarm = Swarm(tmp_path, table, settings={"join_seconds": 600.0, "deadline": 600.0, "suspect_after": 60.0})
    peer = swarm.join(1).peer
    asyncio.run(peer.load())
    body = encode_tree(peer.algorithm.personal(peer.state))
    assert len(body) > 0.99 * MODEL

    async def play() -> dict[str, int]:
        actors = [Actor(swarm, number) for number in range(1, NEIGHBOURS + 1)]
        for actor in actors:
            await actor.transport.start(actor)
        process = await asyncio.create_subprocess_exec(
            sys.executable, exchange_memory.__file__, str(swarm.place(0)), stdout=asyncio.subprocess.PIPE
        )
        try:
            await asyncio.gather(*(reply(actor, body if answered else b"") for actor in actors))
            out, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
            for actor in actors:
                await actor.transport.stop()
        found: dict[str, int] = json.loads(out)
        return found

    async def reply(actor: Actor, content: bytes) -> None:
        while not actor.greeted:
            await asyncio.sleep(0.05)
        head = Parcel(sender=actor.name, round=0, slot=0, empty=not content)
        await actor.say(0, head, content, timeout=PATIENCE)
        actor.round, actor.finished = 1, True

    found = asyncio.run(asyncio.wait_for(play(), 2 * PATIENCE))
    assert found["sent"] >= NEIGHBOURS * MODEL * 0.99
    assert found["received"] >= NEIGHBOURS * MODEL * 0.99 * answered
    assert found["most"] - found["base"] < MOST, found
