"""A member that nobody can dial: its models are used all the same, and nobody waits for a deadline."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from network_namespaces import Hosts
from real_peers import Swarm, experiment, same_as_simulated, slow_model

from coterie.peer.network.relay import Relay

DEADLINE = 20.0
PACE = {"heartbeat": 0.3, "suspect_after": 3.0, "deadline": DEADLINE, "alone": True}


def swarm_of(folder: Path, hosts: Hosts, **changes: Any) -> Swarm:
    changes.setdefault("model", slow_model(folder, 0.02))
    table = experiment(peers=hosts.count, **changes)
    return Swarm(folder, table, PACE, hosts.addresses, hosts.namespaces)


def set_listen_nowhere(swarm: Swarm, number: int) -> None:
    """As its operator does: `listen = ""`, and a new card for the others."""
    set_address(swarm, number, "outgoing")


def set_address(swarm: Swarm, number: int, address: str) -> None:
    place = swarm.place(number) / "peer.toml"
    text = place.read_text().replace(f'listen = "{swarm.hosts[number]}:7400"', 'listen = ""')
    place.write_text(text.replace('address = ""', f'address = "{address}"'))
    for other in range(swarm.nodes):
        if other != number:
            roster = swarm.place(other) / "roster.toml"
            changed = roster.read_text().replace(
                f'address = "{swarm.hosts[number]}:7400"', f'address = "{address}"'
            )
            assert f'address = "{address}"' in changed
            roster.write_text(changed)


@pytest.mark.needs_network_namespaces
def test_a_firewall_that_nobody_knew_of(tmp_path: Path) -> None:
    """Peer 2 listens, but its host lets nobody in. The others find out, and ask over its own connections."""
    with Hosts(3) as hosts, swarm_of(tmp_path, hosts, rounds=40) as swarm:
        hosts.refuse_inbound(2)
        swarm.start()
        swarm.finish()
        assert swarm.rounds() == [40] * 3
        for number in (0, 1):
            late = swarm.records(number)[-10:]
            assert all(record["seconds"] < DEADLINE / 2 for record in late), "nobody waits for a deadline"
            assert swarm.log(number).count("peer-2 is heard of, but no longer waited for") == 1
        last = [peer.algorithm.personal(peer.state) for peer in swarm.peers().values()]
        for end in last[1:]:  # d-psgd on a full graph: one average of all three
            for name, value in end.items():
                assert value.sub(last[0][name]).abs().max() < 1e-4


def test_a_peer_that_listens_nowhere_gives_the_numbers_of_the_simulator(tmp_path: Path) -> None:
    """It says so itself, so nobody tries to dial it, and no round is lost."""
    table = experiment(peers=3, rounds=6)
    with Swarm(tmp_path, table, PACE) as swarm:
        set_listen_nowhere(swarm, 1)
        swarm.start()
        swarm.finish()
        same_as_simulated(table, swarm.peers(), swarm)
        for number in (0, 2):
            assert "no longer waited for" not in swarm.log(number)


def test_a_hidden_peer_takes_part_in_sealed_sums(tmp_path: Path) -> None:
    table = experiment("gossip-fedavg", peers=4, rounds=4, settings={"sealed": True})
    with Swarm(tmp_path, table, PACE) as swarm:
        set_listen_nowhere(swarm, 3)
        swarm.start()
        swarm.finish()
        same_as_simulated(table, swarm.peers(), swarm)


def test_two_peers_that_only_dial_out_meet_at_a_relay(tmp_path: Path) -> None:
    """All three listen nowhere; the relay runs in a thread of this process and counts what it forwards."""
    table = experiment(peers=3, rounds=4)
    loop, relay = asyncio.new_event_loop(), Relay()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        port = asyncio.run_coroutine_threadsafe(relay.start("127.0.0.1", 0), loop).result(30)
        with Swarm(tmp_path, table, PACE) as swarm:
            for number in range(3):
                set_address(swarm, number, f"relay/127.0.0.1:{port}/{number:016x}")
            swarm.start()
            swarm.finish()
            same_as_simulated(table, swarm.peers(), swarm)
        assert relay.counts["calls"] >= 6  # each calls both others
        assert relay.counts["bytes"] > 4 * 6 * 4000  # of 1,210 numbers each
        asyncio.run_coroutine_threadsafe(relay.stop(), loop).result(30)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
