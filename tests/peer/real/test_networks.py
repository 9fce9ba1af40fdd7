"""Peers on several hosts whose network fails: partitions, one-way cuts, lost packets, a slow link."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from network_namespaces import Hosts
from real_peers import Swarm, experiment, simulated, slow_model

pytestmark = pytest.mark.needs_network_namespaces

# Who gets no processor for some seconds must not look absent.
PACE = {"heartbeat": 0.3, "suspect_after": 4.0, "deadline": 20.0}


def on_hosts(folder: Path, hosts: Hosts, rounds: int, **changes: Any) -> Swarm:
    changes.setdefault("model", slow_model(folder, 0.02))
    table = experiment(peers=hosts.count, rounds=rounds, **changes)
    return Swarm(folder, table, PACE, hosts.addresses, hosts.namespaces)


def learned(swarm: Swarm) -> None:
    """All finished, with an accuracy near that of the undisturbed run."""
    assert swarm.rounds() == [swarm.experiment["rounds"]] * swarm.nodes
    _, history = simulated(swarm.experiment)
    undisturbed = float(history.scores("accuracy", "after_mixing")[-1].mean())
    mean = sum(swarm.accuracies()) / swarm.nodes
    assert mean >= undisturbed - 0.05


def test_a_partition_into_halves_heals(tmp_path: Path) -> None:
    with Hosts(6) as hosts, on_hosts(tmp_path, hosts, rounds=50) as swarm:
        left, right = (0, 1, 2), (3, 4, 5)
        swarm.start()
        swarm.until(lambda: min(swarm.rounds()) >= 3, "three rounds of all")
        hosts.partition(left, right)
        cut_at = swarm.rounds()
        swarm.until(
            lambda: all(now >= then + 4 for now, then in zip(swarm.rounds(), cut_at, strict=True)),
            "both halves go on",
        )
        assert max(swarm.rounds()) < 45, "the cut must end before the run does"
        hosts.heal()
        swarm.finish()
        learned(swarm)
        ends = [peer.algorithm.personal(peer.state) for peer in swarm.peers().values()]
        for end in ends[1:]:  # one average of all six: the halves hear each other again
            for name, value in end.items():
                torch.testing.assert_close(value, ends[0][name], rtol=1e-4, atol=1e-5)


def test_a_one_way_cut(tmp_path: Path) -> None:
    """Peer 0 hears the others, but nothing of it arrives: over TCP that is silence both ways.

    The others go on. Nobody told peer 0 that it may learn alone, so it waits, and joins them afterwards.
    """
    with Hosts(4) as hosts, on_hosts(tmp_path, hosts, rounds=60) as swarm:
        swarm.start()
        swarm.until(lambda: min(swarm.rounds()) >= 3, "three rounds of all")
        hosts.cut([0], [1, 2, 3])
        cut_at = swarm.rounds()
        swarm.until(
            lambda: all(now >= then + 4 for now, then in zip(swarm.rounds()[1:], cut_at[1:], strict=True)),
            "the others go on",
        )
        swarm.until(lambda: "nobody else is there" in swarm.log(0), "peer 0 waits")
        assert max(swarm.rounds()) < 55, "the cut must end before the run does"
        assert swarm.rounds()[0] <= cut_at[0] + 2, "it learned alone"
        hosts.heal()
        swarm.finish(cut_off=[0])
        assert swarm.alone(0) <= 1, "more than the round in which it was cut off"
        learned(swarm)


def test_a_fifth_of_all_packets_is_lost(tmp_path: Path) -> None:
    with Hosts(4) as hosts, on_hosts(tmp_path, hosts, rounds=8, model="mlp(16)") as swarm:
        hosts.lose(20)
        swarm.start()
        swarm.finish(timeout=240)
        learned(swarm)


def test_a_slow_link_does_not_slow_the_others_beyond_the_deadline(tmp_path: Path) -> None:
    """A model of 1.2 MB takes 5 s over 2 Mbit/s, and three of them go each way in every round: 15 s."""
    deadline = 2.5
    table = experiment(peers=4, rounds=5, model="mlp(4000)")
    settings = {"deadline": deadline, "heartbeat": 0.5, "suspect_after": 4.0}
    with Hosts(4) as hosts, Swarm(tmp_path, table, settings, hosts.addresses, hosts.namespaces) as swarm:
        hosts.slow_down(3, "2mbit")
        swarm.start()
        swarm.finish()
        assert swarm.rounds() == [5] * 4
        own_work = 8.0  # training and evaluation on a machine that is busy with other things
        for number in (0, 1, 2):
            later = swarm.records(number)[1:]  # what is needed once, such as imports, is in the first
            assert all(record["seconds"] <= deadline + own_work for record in later)
            assert "Traceback" not in swarm.log(number)
