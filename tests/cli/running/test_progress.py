"""Progress over many cells: what is said, and the time left."""

from __future__ import annotations

import time

import pytest

from coterie.cli.running.progress import CellProgress
from coterie.experiments.cells.cell import Cell
from coterie.experiments.cells.working_off import Event
from coterie.experiments.setup.config import resolve
from coterie.reporting.tables import in_bytes


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


def test_cells_elsewhere_show_their_workers_and_what_these_use(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They tell of some rounds only, and from where they went on."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    first, second, third = map(cell, range(3))
    progress = CellProgress("sweep", [first, second, third], quiet=False)
    now[0] += 6
    progress(Event("round", first, 7, kept=5, memory=300_000_000))
    progress(Event("round", second, 4, kept=0, memory=200_000_000))
    progress(Event("round", third, 1, kept=0, memory=100_000_000))
    assert progress.time_left() == pytest.approx(6 / 7 * 18)  # seven rounds were done of thirty, five found
    progress(Event("finished", first, 10))
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("sweep: local, seed 0: finished  1/3 cells  left ")
    assert line.endswith(f"  2 workers with {in_bytes(300_000_000)}")


def test_quiet_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with CellProgress("table", [cell(0)], quiet=True) as progress:
        progress(Event("finished", cell(0), 10))
    assert capsys.readouterr().err == ""
