"""The accidents of `faults.py`, in a process of their own: after one Ray, those of a second may not start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FAULTS = Path(__file__).with_name("faults.py")


@pytest.mark.parametrize("accident", ["worker_is_killed", "node_is_gone", "move_away_from_a_slow_worker"])
def test_no_accident_ends_a_run(accident: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(FAULTS), "-k", accident]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False, cwd=Path(__file__).parents[3]
    )
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout
