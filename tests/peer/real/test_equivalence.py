"""Peers that talk over TLS give the simulator's numbers, for every algorithm of the catalogue.

After 5 rounds of 5 peers (and a hub): equal accuracies, and parameters within 1e-4 relative.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from peers_in_memory import VARIANTS
from real_peers import PATIENCE, Swarm, experiment, same_as_simulated
from safetensors import safe_open

from coterie.catalogue import algorithms
from coterie.experiments.real_peers.joining import Joining

# A busy machine must not look like an absent peer.
PACE = {"heartbeat": 1.0, "suspect_after": 60.0, "deadline": 120.0}
AS_PROCESSES = ("dfedpgp", "ppdl", "fedavg")


def same_experiment(name: str) -> dict[str, Any]:
    return experiment(name, settings=VARIANTS.get(name, {}))


async def play(joinings: list[Joining]) -> None:
    """All peers in this process, each with a training thread of its own, over real sockets."""
    loop = asyncio.get_running_loop()
    threads = [ThreadPoolExecutor(1) for _ in joinings]

    def worker(thread: ThreadPoolExecutor) -> Callable[[Callable[[], Any]], Any]:
        return lambda task: loop.run_in_executor(thread, task)

    try:
        for joining, thread in zip(joinings, threads, strict=True):
            joining.peer.work = worker(thread)
        await asyncio.wait_for(asyncio.gather(*(joining.take_part() for joining in joinings)), PATIENCE)
    finally:
        for thread in threads:
            thread.shutdown()


@pytest.mark.parametrize("name", list(algorithms))
def test_peers_over_tls_give_the_numbers_of_the_simulator(name: str, tmp_path: Path) -> None:
    table = same_experiment(name)
    swarm = Swarm(tmp_path, table, settings=PACE)
    joinings = [swarm.join(number) for number in range(swarm.nodes)]
    asyncio.run(play(joinings))
    for joining in joinings:  # whoever ends may break off a handshake of its last heartbeat
        assert set(joining.peer.metrics.refused) <= {"truncated"}
        assert not joining.peer.metrics.missing
    same_as_simulated(table, {n: joining.peer for n, joining in enumerate(joinings)}, swarm)


@pytest.mark.parametrize(
    "name",
    [name if name in AS_PROCESSES else pytest.param(name, marks=pytest.mark.slow) for name in algorithms],
)
def test_processes_give_the_numbers_of_the_simulator(name: str, tmp_path: Path) -> None:
    table = same_experiment(name)
    with Swarm(tmp_path, table, settings=PACE) as swarm:
        swarm.start()
        swarm.finish()
        same_as_simulated(table, swarm.peers(), swarm)


@pytest.mark.slow
def test_programs_started_by_hand_give_the_numbers_of_the_simulator(tmp_path: Path) -> None:
    """As a user starts them: the interpreter anew for each."""
    table = same_experiment("d-psgd")
    with Swarm(tmp_path, table, settings=PACE) as swarm:
        swarm.start(executed=True)
        swarm.finish()
        same_as_simulated(table, swarm.peers(), swarm)


PARTLY_FROZEN = """
from torch import nn


class Net(nn.Sequential):
    def __init__(self, shape, n_classes):
        first, second, third = nn.Linear(64, 16), nn.Linear(16, 8), nn.Linear(8, n_classes)
        super().__init__(nn.Flatten(), first.requires_grad_(False), nn.ReLU(), second, nn.ReLU(), third)
"""
SHARED_BYTES = 4 * (16 * 8 + 8)


@pytest.mark.parametrize("name", ["d-psgd", "dfedpgp", "fedavg"])
def test_peers_send_only_what_is_shared_and_keep_only_what_trains(name: str, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(PARTLY_FROZEN)
    table = {**same_experiment(name), "model": f"{tmp_path / 'net.py'}:Net", "shared": "3"}
    swarm = Swarm(tmp_path, table, settings=PACE)
    joinings = [swarm.join(number) for number in range(swarm.nodes)]
    asyncio.run(play(joinings))
    same_as_simulated(table, {n: joining.peer for n, joining in enumerate(joinings)}, swarm)
    heading = 1000  # bytes of a message besides its numbers, at most
    for joining in joinings:
        peer = joining.peer
        with safe_open(str(peer.journal.checkpoint), framework="pt") as file:
            kept = {place.rpartition("/")[2] for place in file.keys()}  # noqa: SIM118
        assert kept - {"mass"} == {"3.weight", "3.bias", "5.weight", "5.bias"}
        sent, messages = sum(peer.metrics.bytes_out.values()), sum(peer.metrics.messages_out.values())
        assert SHARED_BYTES * messages <= sent < (SHARED_BYTES + heading) * messages
