"""Ctrl-C, pressed again and again until the process has ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

RUN = ["run", "--algorithm", "d-psgd", "--peers", "6", "--rounds", "100000", "--workers", "3", "--no-plots"]


def test_an_impatient_user_gets_one_line_and_no_abort(tmp_path: Path) -> None:
    """A worker that computed on while the interpreter ended made C++ abort the process."""
    folder = tmp_path / "run"
    with subprocess.Popen(
        [sys.executable, "-m", "coterie", *RUN, "--executor", "stacked", "--run-dir", str(folder)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    ) as process:
        try:
            _wait_for(folder / "rounds.csv", process)
            while process.poll() is None:
                process.send_signal(signal.SIGINT)
                time.sleep(0.003)
        finally:
            process.kill()
        assert process.stderr is not None
        said = process.stderr.read().splitlines()
    assert process.returncode == 130, said
    assert said[-1] == f"interrupted; go on with: coterie run --resume {folder}"


def _wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 120
    while not path.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    assert path.exists()
