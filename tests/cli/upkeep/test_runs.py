"""`coterie runs` and `coterie runs clean`: nothing is lost that was not asked for."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import coterie as package
from coterie.files import alone

Command = Callable[..., Any]


@pytest.fixture(scope="module")
def left_behind(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole run, an interrupted and a broken one, a comparison, a sweep, a reproduction, what is none."""
    folder = tmp_path_factory.mktemp("left")
    small = {"model": "mlr", "peers": 4, "rounds": 2}
    package.simulate(**small, run_dir=folder / "whole")
    package.compare(["d-psgd"], **small, run_dir=folder / "compared")
    package.sweep({"training.lr": [0.1, 0.2]}, **small, out=folder / "swept")
    table = folder / "again" / "ppdl" / "table-1" / "smoke"
    for made in (table, folder / "again" / "cells"):
        made.mkdir(parents=True)
    (table / "results.json").write_text('{"missing": ["one", "two"]}')
    for name in ("half", "broken", "notes"):
        (folder / name).mkdir()
    for file in ("config.toml", "rounds.csv"):
        (folder / "half" / file).write_text((folder / "whole" / file).read_text())
    (folder / "broken" / "config.toml").write_text("peers = [")
    (folder / "notes" / "mine.txt").write_text("keep me")
    return folder


@pytest.fixture
def runs(left_behind: Path, folder: Path) -> Path:
    """The folder of runs of a user."""
    shutil.copytree(left_behind, folder / "runs")
    return folder / "runs"


def listed(coterie: Command) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in json.loads(coterie("runs", "--json").stdout)}


def test_all_that_commands_left_is_listed_and_nothing_else(runs: Path, coterie: Command) -> None:
    found = listed(coterie)
    assert {name: (one["kind"], one["state"]) for name, one in found.items()} == {
        "again": ("reproduction", "interrupted"),
        "broken": ("run", "broken"),
        "compared": ("comparison", "finished"),
        "half": ("run", "interrupted"),
        "swept": ("sweep", "finished"),
        "whole": ("run", "finished"),
    }
    assert found["whole"]["what"] == "local, digits, 4 peers, 2 rounds"
    assert found["half"]["what"] == "local, digits, 4 peers, round 2 of 2"
    assert found["again"]["what"] == "ppdl/table-1/smoke; 2 runs to be made"
    assert found["compared"]["what"] == "local, d-psgd; digits; 2 of 2 runs"
    result = json.loads((runs / "whole" / "result.json").read_text())
    assert found["whole"]["score"] == f"accuracy {100 * result['personal_accuracy']['mean']:.1f}"
    assert found["whole"]["bytes"] == sum(path.stat().st_size for path in (runs / "whole").iterdir())
    shown = coterie("runs").stdout
    assert all(name in shown for name in found)


def test_clean_asks_and_takes_no_silence_for_yes(runs: Path, coterie: Command) -> None:
    done = coterie("runs", "clean")
    assert done.exit_code == 2
    assert "nobody is there to ask; add --yes" in done.stderr
    assert len(listed(coterie)) == 6


@pytest.mark.parametrize(("answer", "left"), [("y", {"notes"}), ("n", None)])
def test_clean_does_what_is_answered(
    runs: Path, coterie: Command, monkeypatch: pytest.MonkeyPatch, answer: str, left: set[str] | None
) -> None:
    before = {path.name for path in runs.iterdir()}
    monkeypatch.setattr("coterie.cli.upkeep.runs._somebody_is_there", lambda: True)
    monkeypatch.setattr("typer.confirm", lambda question: answer == "y")
    assert coterie("runs", "clean").exit_code == 0
    assert {path.name for path in runs.iterdir()} == (before if left is None else left)
    assert (runs / "notes" / "mine.txt").read_text() == "keep me"


def test_clean_removes_what_it_is_told(runs: Path, coterie: Command) -> None:
    old = time.time() - 40 * 24 * 60 * 60
    for path in (runs / "compared").rglob("*"):
        os.utime(path, (old, old))
    assert coterie("runs", "clean", "--older-than", "30", "--yes").exit_code == 0
    assert listed(coterie).keys() == {"again", "broken", "half", "swept", "whole"}
    assert coterie("runs", "clean", "--unfinished", "--yes").exit_code == 0
    assert listed(coterie).keys() == {"swept", "whole"}
    assert coterie("runs", "clean", "runs/whole", "--yes").exit_code == 0
    assert listed(coterie).keys() == {"swept"}
    done = coterie("runs", "clean", "swpet", "--yes")
    assert done.exit_code == 2
    assert "there is no run 'swpet' in runs" in done.stderr
    assert "swept" in done.stderr


def test_what_is_going_on_stays(runs: Path, coterie: Command) -> None:
    with alone(runs / "half" / ".lock", wait=False):
        assert listed(coterie)["half"]["state"] == "running"
        done = coterie("runs", "clean", "half", "--yes")
        assert done.exit_code == 2
        assert "half is in use" in done.stderr
        coterie("runs", "clean", "--yes")
        assert listed(coterie).keys() == {"half"}


def test_an_empty_or_missing_folder_is_no_mistake(coterie: Command) -> None:
    assert coterie("runs").stdout == "there are no runs in runs\n"
    assert coterie("runs", "clean", "--yes").stdout == "there is nothing to remove\n"


def test_links_to_folders_elsewhere_are_not_followed(runs: Path, coterie: Command, folder: Path) -> None:
    (runs / "whole").rename(folder / "elsewhere")
    (runs / "whole").symlink_to(folder / "elsewhere", target_is_directory=True)
    assert "whole" not in listed(coterie)
    coterie("runs", "clean", "--yes")
    assert (folder / "elsewhere" / "config.toml").is_file()
