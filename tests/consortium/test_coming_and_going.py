"""Members who come into a running experiment and members who leave it, with the numbers of the simulator."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from peers_in_memory import Size, World, simulated
from push_sum_mass import total_mass

from coterie.errors import PeerError
from coterie.peer.process import Pace
from coterie.testing import Faults, Join, Leave, run_virtually
from coterie.testing.peers import Event
from coterie.topology import Attendance, make

SIZE = Size(peers=5, rounds=14)
PACE = Pace(deadline=30.0, join=60.0, heartbeat=1.0, suspect_after=4.0)


def played(name: str, folder: Path, events: Sequence[Event], **settings: object) -> World:
    world = World(name, folder, SIZE, pace=PACE, busy=1.0, **settings)  # type: ignore[arg-type]
    ends = run_virtually(world.play_with(events))
    assert all(end is None for end in ends.values()), ends
    return world


def attended(world: World) -> tuple[dict[int, int], dict[int, int]]:
    """When members came and went, as they agreed."""
    passages = {number: peer.passage for number, peer in world.peers_by_number.items()}
    joins = {number: passage.since for number, passage in passages.items() if passage.since}
    leaves = {number: passage.until for number, passage in passages.items() if passage.until is not None}
    return joins, leaves


@pytest.mark.parametrize("name", ["d-psgd", "osgp", "dfedpgp", "gossip-fedavg", "kd-pdfl"])
def test_one_comes_and_one_goes_as_in_the_simulator(name: str, tmp_path: Path) -> None:
    world = played(name, tmp_path, [Join(4, at=2.0), Leave(1, at=5.0)])
    joins, leaves = attended(world)
    assert joins.keys() == {4}
    assert leaves.keys() == {1}
    assert 1 <= joins[4] < world.rounds
    assert joins[4] < leaves[1] < world.rounds
    assert [report.round for report in world.reports[4]] == list(range(joins[4], world.rounds))
    assert [report.round for report in world.reports[1]] == list(range(leaves[1]))
    assert all(report.skipped == 0 for reports in world.reports.values() for report in reports)
    assert world.topology is not None
    world.topology = Attendance(world.topology, joins, leaves)
    expected, _, _ = simulated(world)
    for number, peer in world.peers_by_number.items():
        for leaf, value in peer.algorithm.personal(peer.state).items():
            torch.testing.assert_close(value[0], expected[leaf][number], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["osgp", "dfedpgp"])
@pytest.mark.parametrize("in_step", [True, False])
def test_mass_is_handed_over_although_messages_are_lost(name: str, in_step: bool, tmp_path: Path) -> None:
    faults = Faults(lost_request=0.05, lost_answer=0.05)
    events = [Join(4, at=1.5), Leave(0, at=3.0), Leave(2, at=3.0)]
    world = played(name, tmp_path, events, faults=faults, in_step=in_step, seed=3)
    for number in (0, 2):
        peer = world.peers_by_number[number]
        assert peer.left
        assert float(peer.state.mass[0]) <= 1e-8
        assert peer.journal.round < world.rounds
    assert total_mass(world.peers_by_number) == pytest.approx(5, abs=1e-4)


def test_who_leaves_is_not_waited_for(tmp_path: Path) -> None:
    world = played("d-psgd", tmp_path, [Leave(3, at=2.0)])
    stays = world.peers_by_number[0]
    assert not stays.metrics.missing
    assert all(report.seconds < 5.0 for report in world.reports[0])  # of the virtual clock: no deadline
    assert stays.membership.presence(3).until == stays.attendance.leaves[3] == len(world.reports[3])


def test_a_wish_to_leave_at_the_very_end_changes_nothing(tmp_path: Path) -> None:
    world = played("osgp", tmp_path, [Leave(3, at=500.0)])
    assert {peer.journal.round for peer in world.peers_by_number.values()} == {world.rounds}


def test_nobody_to_take_the_mass(tmp_path: Path) -> None:
    """The last of all cannot hand its mass to anybody, and says so."""
    pair = make("full", peers=2, seed=0)
    world = World("osgp", tmp_path, Size(peers=2, rounds=40), pace=PACE, busy=1.0, topology=pair)
    events = [Leave(0, at=1.0), Leave(1, at=1.0)]
    ends = run_virtually(world.play_with(events))
    assert sum(isinstance(end, PeerError) for end in ends.values()) >= 1
    assert total_mass(world.peers_by_number) == pytest.approx(2, abs=1e-6)
