"""A disk that is full, or read-only: one line that says so, and the last checkpoint stays as it was."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from real_peers import PATIENCE, Swarm, experiment, slow_model

ROUNDS = 40  # of which the others have most to go when a peer comes back


def mount(*arguments: str) -> None:
    made = subprocess.run(["mount", *arguments], capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"only root may mount file systems: {made.stderr.strip()}")


@contextmanager
def small_disk(place: Path) -> Iterator[None]:
    """A file system of 1 MB of its own."""
    place.mkdir()
    mount("-t", "tmpfs", "-o", "size=1m", "none", str(place))
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


@contextmanager
def read_only(place: Path) -> Iterator[None]:
    """The same folder, in which nothing can be written any more."""
    mount("--bind", str(place), str(place))
    try:
        mount("-o", "remount,bind,ro", str(place))
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(place: Path) -> Path:
    """Take all the room that is left."""
    filler = place / "filler"
    with open(filler, "wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(1024))
        except OSError:
            return filler


def make(folder: Path) -> Swarm:
    table = experiment(peers=3, rounds=ROUNDS, model=slow_model(folder, 0.02))
    return Swarm(folder, table, settings={"suspect_after": 2.0})


def fails_clearly(swarm: Swarm, cause: str) -> None:
    """Peer 0 ends with one line and exit code 1, and its checkpoint can be read."""
    swarm.processes[0].wait(PATIENCE)
    log = swarm.log(0)
    assert swarm.processes[0].code() == 1, log
    errors = [line for line in log.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, log
    assert cause in errors[0]
    assert "Traceback" not in log
    assert 0 < swarm.round(0) < ROUNDS


def test_a_full_disk(tmp_path: Path) -> None:
    with make(tmp_path) as swarm:
        state = swarm.place(0) / "state"
        with small_disk(state):
            swarm.start()
            swarm.until(lambda: swarm.round(0) >= 2, "two rounds")
            filler = fill(state)
            fails_clearly(swarm, "No space left on device")
            before = swarm.round(0)
            filler.unlink()
            swarm.start(0)
            swarm.finish()
            assert swarm.rounds() == [ROUNDS] * 3
            assert min(record["round"] for record in swarm.records(0)) == 0
            assert len(swarm.records(0)) > before


def test_a_read_only_disk(tmp_path: Path) -> None:
    with make(tmp_path) as swarm:
        swarm.start()
        swarm.until(lambda: swarm.round(0) >= 2, "two rounds")
        with read_only(swarm.place(0) / "state"):
            swarm.processes[0].wait(PATIENCE)
        fails_clearly(swarm, os.strerror(errno.EROFS))
        swarm.start(0)
        swarm.finish()
        assert swarm.rounds() == [ROUNDS] * 3
