"""How a run stands: in words, from a folder written by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from coterie.files import alone
from coterie.reporting.numbers.folders import OfFolder
from coterie.reporting.page.states import in_time, state_of


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Four of ten rounds; the last ones took two and four seconds by turns."""
    made = tmp_path / "run"
    made.mkdir()
    (made / "config.toml").write_text('algorithm = "kin"\npeers = 2\nrounds = 10\nseed = 0\ndata = "d"\n')
    lines = [f"{number},{2 + 2 * (number % 2)},2,8,0" for number in range(4)]
    (made / "rounds.csv").write_text("\n".join(["round,seconds,messages,bytes,hub_bytes", *lines, ""]))
    scores = [f"{number},{peer},0.5,0.5" for number in range(4) for peer in range(2)]
    head = "round,peer,accuracy_after_local,accuracy_after_mixing"
    (made / "metrics.csv").write_text("\n".join([head, *scores, ""]))
    return made


def test_a_run_that_goes_on_has_time_left(folder: Path) -> None:
    with alone(folder / ".lock", wait=False):
        state = state_of(OfFolder(folder))
    assert (state.kind, state.text) == ("running", "running, round 4 of 10, 18 s left")  # six of 3 s
    assert state.left == 18


def test_without_a_process_it_was_interrupted(folder: Path) -> None:
    state = state_of(OfFolder(folder))
    assert (state.kind, state.text) == ("interrupted", "interrupted after 4 of 10 rounds")


def test_what_broke_it_is_said(folder: Path) -> None:
    folder.with_name("run.broken.json").write_text(json.dumps({"error": "the loss is not finite"}))
    assert state_of(OfFolder(folder)).text == "broken: the loss is not finite"
    folder.with_name("run.broken.json").write_text("{")
    assert state_of(OfFolder(folder)).text == "broken: the note on why it failed cannot be read"


def test_a_finished_run_may_have_ended_early(folder: Path) -> None:
    (folder / "result.json").write_text('{"metric": "accuracy"}')
    assert state_of(OfFolder(folder)).text == "finished"
    (folder / "result.json").write_text('{"metric": "accuracy", "stopped": "no gain in 3 rounds"}')
    assert state_of(OfFolder(folder)).text == "finished early after 4 of 10 rounds: no gain in 3 rounds"


@pytest.mark.parametrize(
    ("seconds", "text"), [(1.6, "1.6 s"), (3, "3 s"), (42.4, "42 s"), (720, "12 min"), (10_900, "3 h")]
)
def test_time_is_rounded(seconds: float, text: str) -> None:
    assert in_time(seconds) == text
