"""Peers that are killed at random moments and started again: everyone finishes, nothing committed is lost.

When a kill happens is drawn from a seed, as a point of the run's progress and a moment after it, so that the
kills spread over the whole run and hit training, exchanges and commits alike.
"""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
from push_sum_mass import total_mass
from real_peers import Swarm, experiment, simulated, slow_model

PEERS = 6
TO_COME_BACK = 15  # rounds of the others: who comes back when all have finished finds nobody
PUSH_SUM = "dfedpgp"


def make(folder: Path, algorithm: str, rounds: int) -> Swarm:
    table = experiment(
        algorithm,
        peers=PEERS,
        rounds=rounds,
        model=slow_model(folder, 0.01),
        splitting={"samples_per_peer": 100, "test_samples_per_peer": 100},
    )
    return Swarm(folder, table, settings={"suspect_after": 2.0, "deadline": 10.0})


def kill_at_random(swarm: Swarm, kills: int, seed: int) -> None:
    """Kill and restart, one after the other, as the run goes on; check what is committed each time."""
    rng = random.Random(f"kills-{seed}")
    rounds = swarm.experiment["rounds"]
    for kill in range(kills):
        _reach(swarm, 1 + kill * (rounds - TO_COME_BACK) // kills)
        time.sleep(rng.uniform(0, 0.3))
        victim = rng.choice([n for n in range(swarm.nodes) if swarm.running(n)])
        before = swarm.round(victim)
        swarm.kill(victim)
        assert swarm.round(victim) >= before
        time.sleep(rng.uniform(0, 0.5))
        committed = swarm.round(victim)
        swarm.start(victim)
        assert swarm.round(victim) >= committed


def _reach(swarm: Swarm, round: int) -> None:
    """Wait for the first peer in this round; nobody's checkpoint may go back meanwhile."""
    highest = swarm.rounds()

    def reached() -> bool:
        now = swarm.rounds()
        assert all(new >= old for new, old in zip(now, highest, strict=True)), "a committed round was lost"
        highest[:] = now
        return max(now) >= round

    swarm.until(reached, f"round {round}")


def check_end(swarm: Swarm) -> None:
    rounds = swarm.experiment["rounds"]
    assert swarm.rounds() == [rounds] * swarm.nodes
    _, history = simulated(swarm.experiment)
    undisturbed = float(history.scores("accuracy", "after_mixing")[-1].mean())
    mean = sum(swarm.accuracies()) / PEERS
    assert abs(mean - undisturbed) <= 0.02, f"{mean} with kills, {undisturbed} without"
    for number in range(swarm.nodes):
        played = [record["round"] for record in swarm.records(number)]
        assert played == sorted(set(played)), "a round was played twice after it was committed"
        left = [path.name for path in (swarm.place(number) / "state").iterdir() if path.name.endswith(".tmp")]
        assert not left, "half-written files of a killed process"
    if swarm.experiment["algorithm"] == PUSH_SUM:
        assert total_mass(swarm.peers()) == pytest.approx(PEERS, abs=1e-6)


@pytest.mark.parametrize("algorithm", [pytest.param("d-psgd", marks=pytest.mark.slow), PUSH_SUM])
def test_five_kills(algorithm: str, tmp_path: Path) -> None:
    with make(tmp_path, algorithm, rounds=30) as swarm:
        swarm.start()
        kill_at_random(swarm, kills=5, seed=1)
        swarm.finish()
        check_end(swarm)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["d-psgd", PUSH_SUM])
@pytest.mark.parametrize("seed", range(3))
def test_twenty_kills(algorithm: str, seed: int, tmp_path: Path) -> None:
    with make(tmp_path, algorithm, rounds=100) as swarm:
        swarm.start()
        kill_at_random(swarm, kills=20, seed=seed)
        swarm.finish(timeout=300)
        check_end(swarm)
