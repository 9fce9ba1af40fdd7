"""Cells as tasks of Ray: the numbers of one process, in the folder of who asked, whatever is lost."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ray_cluster import one_node
from typer.testing import CliRunner

import coterie
from coterie.cli import app
from coterie.errors import ConfigError
from coterie.experiments.cells import on_ray
from coterie.experiments.cells.notices import Notice
from coterie.experiments.cells.on_ray import Task, _Teller, run_tasks
from coterie.experiments.runs.records import History
from coterie.experiments.runs.running import run_or_resume
from coterie.experiments.setup.config import resolve
from coterie.experiments.setup.prepare import Objects
from coterie.experiments.setup.schema import Experiment
from coterie.results import comparison

USUAL: dict[str, Any] = {"data": "digits", "peers": 4, "rounds": 2, "topology": "ring"}
RAY = {"engine": "ray", "executor": "looped"}


@pytest.fixture(scope="module", autouse=True)
def ray() -> Iterator[Any]:
    with one_node() as found:
        found.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import a test
        yield found
        found.cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


def test_a_sweep(tmp_path: Path) -> None:
    over = {"training.lr": [0.1, 0.3]}
    ours = coterie.sweep(
        over, algorithm="d-psgd", **USUAL, out=tmp_path / "here", execution={"executor": "looped"}
    )
    there = coterie.sweep(over, algorithm="d-psgd", **USUAL, out=tmp_path / "there", execution=RAY)
    assert [one.personal_accuracy.tolist() for one in ours.runs] == [
        one.personal_accuracy.tolist() for one in there.runs
    ]
    assert not list((tmp_path / "there").rglob("*.broken.json"))
    names = {path.name for path in (tmp_path / "there" / "cells").iterdir()}
    assert names - {".locks"} == {cell.name for cell in there.cells}  # and nothing else is left


def test_files_come_back_where_no_folder_is_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_ray, "_sign", lambda where: contextlib.nullcontext(".not there"))
    found = coterie.sweep({"training.lr": [0.1]}, algorithm="local", **USUAL, out=tmp_path, execution=RAY)
    (run,) = found.runs
    trained = {"lr": 0.1, "work": "equal"}
    ours = coterie.simulate("local", **USUAL, training=trained, execution={"executor": "looped"})
    assert torch.equal(run.personal_accuracy, ours.personal_accuracy)
    assert {path.name for path in (tmp_path / "cells").iterdir()} == {found.cells[0].name}


@dataclass(frozen=True)
class Own(coterie.ModelAlgorithm):
    """D-PSGD once more, which is defined nowhere but here."""

    facts = coterie.Facts(paper="none", measured="after_mixing", communication="one model per link")

    def round(self, state: coterie.ModelState, node: coterie.Node) -> coterie.Round[coterie.ModelState]:
        mine = node.train(state.params)
        node.measure(after_local=mine)
        inbox = yield coterie.Exchange(mine)
        return coterie.ModelState(coterie.average(mine, inbox))


def test_a_comparison_also_of_an_object(tmp_path: Path) -> None:
    names: list[Any] = ["local", "d-psgd", Own()]
    ours = coterie.compare(names, **USUAL, execution={"executor": "looped"})
    there = coterie.compare(names, **USUAL, execution=RAY)
    assert list(ours.runs) == list(there.runs)
    for label, (run,) in ours.runs.items():
        assert torch.equal(run.personal_accuracy, there.runs[label][0].personal_accuracy)
        for name, value in run.params.items():
            assert torch.equal(value, there.runs[label][0].params[name])
    kept = coterie.compare(names[:2], **USUAL, run_dir=tmp_path / "kept", execution=RAY)
    again = coterie.compare(names[:2], **USUAL, run_dir=tmp_path / "other", execution={"executor": "looped"})
    assert [one.personal_accuracy.tolist() for (one,) in kept.runs.values()] == [
        one.personal_accuracy.tolist() for (one,) in again.runs.values()
    ]


class Waits(coterie.Observer):
    """Goes on after the first round when somebody has heard of it."""

    def __init__(self, heard: Path) -> None:
        self.heard = heard

    def round(self, record: Any, history: Any) -> str | None:
        deadline = time.monotonic() + 120
        while record.round == 0 and not self.heard.exists():
            if time.monotonic() > deadline:
                return "nobody heard of it"
            time.sleep(0.05)
        return None


def run_and_wait(experiment: Experiment, folder: Path, objects: Objects, watching: Any) -> str | None:
    return run_or_resume(experiment, folder, observer=[watching, Waits(folder.parent / "heard")]).stopped


def test_a_cell_tells_how_far_it_is_while_it_runs(tmp_path: Path) -> None:
    notices: list[Notice] = []
    ends: list[str | None] = []

    def told(task: Task, notice: Notice) -> None:
        notices.append(notice)
        (tmp_path / "heard").touch()

    task = Task("cell", resolve({**USUAL, "algorithm": "d-psgd", "execution": RAY}), Objects())
    run_tasks([task], tmp_path, run_and_wait, lambda task, message: ends.append(message), told)
    assert ends == [None]
    assert [one.done for one in notices] == [1, 2]
    run = coterie.open(tmp_path / "cell")
    assert notices[-1].mean == pytest.approx(float(run.personal_accuracy.mean()))
    assert notices[-1].metric == "accuracy"
    assert all(1 << 20 < one.memory[0] < 1 << 36 for one in notices)


def write_for_ever(experiment: Experiment, folder: Path, objects: Objects, watching: Any) -> str | None:
    """One that breaks as soon as the other writes, which it does until it is ended."""
    pages = folder.parent / "pages"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if folder.name == "breaks" and pages.exists():
            raise ConfigError("broken")
        if folder.name == "writes":
            pages.mkdir(exist_ok=True)
            (pages / f"{os.getpid()}-{time.monotonic_ns()}").touch()
    return "nobody ended it"


def writes(process: int) -> bool:
    """Whether it lives; whose parent has not looked after it does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_an_error_ends_those_who_still_write(tmp_path: Path) -> None:
    asked = resolve({**USUAL, "algorithm": "d-psgd", "execution": RAY})
    tasks = [Task(name, asked, Objects()) for name in ("writes", "breaks")]
    with pytest.raises(ConfigError, match="broken"):
        run_tasks(tasks, tmp_path, write_for_ever, lambda task, message: None)
    writer = int(next((tmp_path / "pages").iterdir()).name.partition("-")[0])
    until = time.monotonic() + 60
    while writes(writer) and time.monotonic() < until:
        time.sleep(0.05)
    assert not writes(writer)


def test_a_folder_into_which_somebody_still_writes_goes_when_they_have_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[Path] = []
    remove = shutil.rmtree

    def not_yet(folder: Path, ignore_errors: bool) -> None:
        tried.append(folder)
        if len(tried) == 3:
            remove(folder)

    monkeypatch.setattr(comparison.shutil, "rmtree", not_yet)
    with comparison._apart() as folder:
        (folder / "file").touch()
    assert tried == [folder] * 3
    assert not folder.exists()


def test_a_cell_tells_no_more_than_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what it goes on from."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    left: list[Notice] = []
    board = SimpleNamespace(leave=SimpleNamespace(remote=lambda name, notice: left.append(notice)))
    history = History(seconds=[0.5] * 3)
    teller = _Teller("cell", board)
    teller.begin(resolve({**USUAL, "algorithm": "d-psgd"}), history)
    for round in range(3, 43):  # eight in a second
        history.seconds.append(0.1)
        teller.round(SimpleNamespace(round=round, memory=()), history)  # type: ignore[arg-type]
        now[0] += 0.125
    assert [one.done for one in left] == [4, 12, 20, 28, 36]
    assert {one.before for one in left} == {3}
    assert teller.last is not None
    assert teller.last.done == 43
    assert teller.last.each == pytest.approx(0.1)


def test_a_comparison_shows_the_usual_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    asked = ["compare", "--algorithms", "d-psgd", "--peers", "4", "--rounds", "2", "--no-plots"]
    there = [*asked, "--engine", "ray", "--set", "execution.executor=looped"]
    done = CliRunner().invoke(app, [*there, "--run-dir", "there"])
    assert done.exit_code == 0, done.output
    for label in ("local", "d-psgd"):
        assert re.search(rf"{label}: round 2/2  accuracy 0\.\d+ .* s/round .* 1 worker with \d", done.output)
    tracked = CliRunner().invoke(app, [*there, "--track", "tensorboard"])
    assert tracked.exit_code == 2
    assert "--track follows runs of this process" in tracked.output


def die_first(experiment: Experiment, folder: Path, objects: Objects, watching: Any) -> str | None:
    folder.mkdir(exist_ok=True)
    if not (folder / "died").exists():
        (folder / "died").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return None


def die_always(experiment: Experiment, folder: Path, objects: Objects, watching: Any) -> str | None:
    os.kill(os.getpid(), signal.SIGKILL)
    return None


def test_a_lost_task_runs_again_and_not_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_ray, "_ATTEMPTS", 2)
    ends: dict[str, str | None] = {}
    task = Task("cell", resolve({**USUAL, "execution": RAY}), Objects())
    run_tasks([task], tmp_path, die_first, lambda task, message: ends.update({"first": message}))
    run_tasks([task], tmp_path, die_always, lambda task, message: ends.update({"always": message}))
    assert ends["first"] is None
    assert "lost" in str(ends["always"])
    assert "2 times" in str(ends["always"])


def test_what_no_node_has_is_refused(tmp_path: Path) -> None:
    task = Task("cell", resolve({**USUAL, "execution": {**RAY, "cpus": 64}}), Objects())
    with pytest.raises(ConfigError, match="no node of Ray has 64 CPUs"):
        run_tasks([task], tmp_path, die_always, lambda *_: None)
    assert not list(tmp_path.iterdir())


TABLE = """
title = "Mixing"
source = "nobody, never"
shows = "two rows"
setting = "digits"
metrics = ["personal"]
experiment = { data = "digits", model = "mlr", topology = "ring", peers = 4, rounds = 2 }
scales = { smoke = { note = "small" }, laptop = {}, paper = {} }
columns = [{ name = "iid", experiment = { partition = "iid" } }]
rows = [
  { name = "local", experiment = { algorithm = "local" }, printed = { iid = 50.0 } },
  { name = "d-psgd", experiment = { algorithm = "d-psgd" }, printed = { iid = 60.0 } },
]
"""


def test_a_table_of_a_paper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`reproduce --engine ray` leaves what `reproduce` finds finished."""
    monkeypatch.chdir(tmp_path)
    Path("table.toml").write_text(TABLE)
    asked = ["reproduce", "table.toml", "--json", "--no-plots"]
    there = CliRunner().invoke(app, [*asked, "--engine", "ray"])
    assert there.exit_code == 0, there.output
    cells = {path: path.stat().st_mtime_ns for path in Path("reproductions/cells").glob("*/result.json")}
    assert len(cells) == 2
    here = CliRunner().invoke(app, asked)
    assert here.stdout == there.stdout
    assert {path: path.stat().st_mtime_ns for path in cells} == cells
    assert "unknown" in CliRunner().invoke(app, [*asked, "--engine", "rey"]).output
