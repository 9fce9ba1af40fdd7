"""A share that arrives and cannot be written down: it is refused, and the mass stays what it was."""

from __future__ import annotations

import errno
import logging
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from peers_in_memory import Size, World
from push_sum_mass import total_mass

from coterie.errors import RunFolderError
from coterie.peer.exchange.journal import Journal, ParcelId
from coterie.peer.process import Pace
from coterie.testing import Faults, run_virtually

FULL = "peer-1"


class FullDisk:
    """Has no room for what others bring to one peer, until they try again."""

    def __init__(self) -> None:
        self.refused: list[str] = []
        self._replace = os.replace

    def __call__(self, source: Path, target: Path) -> None:
        new = target.name.startswith(("in-", "no-")) and target.name not in self.refused
        if target.parent.name == FULL and new:
            self.refused.append(target.name)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._replace(source, target)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> FullDisk:
    full = FullDisk()
    monkeypatch.setattr("coterie.files.os.replace", full)
    return full


def play(algorithm: str, folder: Path, **changes: Any) -> World:
    pace = Pace(deadline=8.0, join=30.0, heartbeat=1.0, suspect_after=4.0, linger=6.0)
    world = World(algorithm, folder, Size(peers=4, rounds=4, samples=6), pace=pace, **changes)
    run_virtually(world.play())
    return world


def test_a_share_that_is_not_for_sure_on_the_disk_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its sender takes it back: after a restart it must not be found here too."""

    def only_files(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    journal = Journal(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", only_files)
        with pytest.raises(RunFolderError, match="a power failure may undo it"):
            journal.keep(ParcelId(1, 0, 0), b"body")
    assert not list(Journal(tmp_path).kept())


@pytest.mark.parametrize("in_step", [True, False])
@pytest.mark.parametrize("algorithm", ["osgp", "dfedpgp"])
def test_a_share_that_cannot_be_written_comes_back(
    algorithm: str, in_step: bool, disk: FullDisk, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        peers = play(algorithm, tmp_path, in_step=in_step).peers_by_number
    assert all(peer.journal.round == 4 for peer in peers.values())
    assert total_mass(peers) == pytest.approx(4, abs=1e-6)
    refused = [name for name in disk.refused if name.startswith("in-")]
    assert refused
    assert sum(peer.metrics.refused_by_others["disk"] for peer in peers.values()) == len(refused)
    assert not any(record.exc_info for record in caplog.records)
    path = tmp_path / FULL / refused[0]
    assert f"cannot write {path}: {os.strerror(errno.ENOSPC)}" in caplog.text


@pytest.mark.parametrize("seed", range(10))
def test_a_copy_of_what_was_refused_is_not_taken(seed: int, disk: FullDisk, tmp_path: Path) -> None:
    """Its sender has taken it back. Lost answers make senders ask, and that cannot be answered either."""
    faults = Faults(lost_answer=0.2, duplicated=0.5)
    world = play("osgp", tmp_path, seed=seed, faults=faults, in_step=bool(seed % 2), busy=1.0)
    assert disk.refused
    assert total_mass(world.peers_by_number) == pytest.approx(4, abs=1e-6)
