"""Progress over many cells: what is said, and the time left."""

from __future__ import annotations

import time

import pytest

from coterie.cli.running.progress import CellProgress
from coterie.experiments.cells.cell import Cell
from coterie.experiments.cells.working_off import Event
from coterie.experiments.setup.config import resolve


def cell(seed: int) -> Cell:
    return Cell(resolve({"data": "digits", "rounds": 10, "seed": seed}), {"row": "local", "seed": seed})


def test_time_left_counts_only_what_was_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    kept, first, second, third = map(cell, range(4))
    progress = CellProgress("table", [kept, first, second, third], quiet=False)
    progress(Event("kept", kept, 10))
    assert progress.time_left() is None
    now[0] += 5
    for rounds in (1, 5):
        progress(Event("round", first, rounds))
    assert progress.time_left() == pytest.approx(25.0)  # a second for each of 25 rounds
    progress(Event("finished", first, 10))
    progress(Event("round", second, 9))  # continued: the first 8 were done earlier
    progress(Event("broken", third, message="no disk"))
    assert progress.time_left() == pytest.approx(5 * 1 / 11)
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith("table: local, seed 1: finished  2/4 cells  left ")
    assert "local, seed 3: broken (no disk)" in said[1]


def test_quiet_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with CellProgress("table", [cell(0)], quiet=True) as progress:
        progress(Event("finished", cell(0), 10))
    assert capsys.readouterr().err == ""
