"""Ctrl-C, pressed again and again until the process has ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

RUN = ["run", "--algorithm", "d-psgd", "--peers", "6", "--rounds", "100000", "--workers", "3", "--no-plots"]


def test_an_impatient_user_gets_one_line_and_no_abort(tmp_path: Path) -> None:
    """A worker that computed on while the interpreter ended made C++ abort the process, above all of a run
    that was resumed."""
    folder = tmp_path / "run"
    _interrupted([*RUN, "--executor", "stacked", "--run-dir", str(folder)], folder)
    _interrupted(["run", "--resume", str(folder), "--no-plots"], folder)


@pytest.mark.slow
def test_ctrl_c_at_any_time_of_a_resumed_run(tmp_path: Path) -> None:
    """A stress test: once, or until it has ended, at twenty different times."""
    folder = tmp_path / "run"
    _interrupted([*RUN, "--executor", "stacked", "--run-dir", str(folder)], folder)
    for number in range(20):
        later = 0.1 * number / 20
        _interrupted(["run", "--resume", str(folder), "--no-plots"], folder, later, again=number % 2 == 0)


def _interrupted(command: list[str], folder: Path, later: float = 0.0, again: bool = True) -> None:
    """Start it, press Ctrl-C once it is at work, and see what it says."""
    before = _size(folder / "rounds.csv")
    with subprocess.Popen(
        [sys.executable, "-m", "coterie", *command],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    ) as process:
        try:
            _wait_until_it_writes(folder / "rounds.csv", before, process)
            time.sleep(later)
            process.send_signal(signal.SIGINT)
            deadline = time.monotonic() + 120
            while process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.003)
                if again:
                    process.send_signal(signal.SIGINT)
        finally:
            process.kill()
        assert process.stderr is not None
        said = process.stderr.read().splitlines()
    assert process.returncode == 130, said
    assert said[-1] == f"interrupted; go on with: coterie run --resume {folder}"
    assert not any("terminate" in line for line in said)


def _wait_until_it_writes(path: Path, before: int, process: subprocess.Popen[str]) -> None:
    """Going on, a run first cuts the records off that are after its checkpoint, and then adds to them."""
    deadline, smallest = time.monotonic() + 120, before
    while process.poll() is None and time.monotonic() < deadline:
        size = _size(path)
        smallest = min(smallest, size)
        if size > smallest:
            return
        time.sleep(0.02)
    raise AssertionError(f"{path} does not grow")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
