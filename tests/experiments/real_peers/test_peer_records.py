"""A real peer's records: a line for each round, and none that a restart has to take back."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from coterie.errors import RunFolderError
from coterie.experiments.real_peers.peer_records import Records, last_scores
from coterie.peer.turn import RoundReport


def report(round: int, **changes: Any) -> RoundReport:
    given: dict[str, Any] = {
        "train_loss": 0.5,
        "scores": {"accuracy": {}},
        "diagnostics": {},
        "seconds": 1.25,
    }
    return RoundReport(round=round, **(given | changes))


@pytest.fixture
def records(tmp_path: Path) -> Records:
    records = Records(tmp_path / "records.jsonl")
    for round in range(4):
        records.append(report(round, scores={"accuracy": {"after_mixing": round / 4} if round != 3 else {}}))
    return records


def test_what_was_not_committed_is_dropped_after_a_restart(records: Records) -> None:
    records.keep_until(2)
    assert [line["round"] for line in records.read()] == [0, 1]
    assert last_scores(records.read()) == ("accuracy", {"after_mixing": 0.25})


def test_a_line_that_a_crash_cut_off_is_left_out(records: Records) -> None:
    records.path.write_bytes(records.path.read_bytes()[:-3])
    assert [line["round"] for line in records.read()] == [0, 1, 2]
    records.keep_until(3)
    assert [line["round"] for line in records.read()] == [0, 1, 2]


def test_no_number_is_null(tmp_path: Path) -> None:
    records = Records(tmp_path / "records.jsonl")
    records.append(report(0, train_loss=float("nan")))
    assert records.read()[0]["train_loss"] is None


def test_a_failure_while_they_are_cut_loses_nothing(
    records: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old file stands until the new one is whole."""
    before = records.path.read_bytes()

    def broken(*_: object) -> None:
        raise OSError(5, os.strerror(5))

    monkeypatch.setattr("os.replace", broken)
    with pytest.raises(RunFolderError):
        records.keep_until(1)
    assert records.path.read_bytes() == before
