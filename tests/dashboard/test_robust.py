"""Whatever is in the folders, the page says so and goes on: damaged files, and very many runs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from in_browser import show
from playwright.sync_api import Page

import coterie
from coterie.dashboard.server import Dashboard
from coterie.reporting.page.found import FoundRuns


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "run"
    small: dict[str, Any] = {"partition": "rotations(2)", "topology": "full", "peers": 4, "rounds": 3}
    coterie.simulate("kd-pdfl", **small, model="mlr", run_dir=folder)
    return folder


def damaged(content: bytes, rng: np.random.Generator) -> bytes:
    """Cut off somewhere, with some bytes changed, lost or doubled."""
    text = bytearray(content[: rng.integers(len(content) + 1)] if rng.random() < 0.5 else content)
    for _ in range(rng.integers(1, 6)):
        place = int(rng.integers(len(text) + 1))
        piece = bytes(text[place : place + 20])
        text[place : place + int(rng.integers(3))] = (b"", b"\0", b"\xff", b"-1", b"nan", b"9" * 30, piece)[
            rng.integers(7)
        ]
    return bytes(text)


def test_damaged_folders_are_lines_that_say_so(whole: Path, tmp_path: Path) -> None:
    """Every file of a run, in 60 ways; each view answers, or says in a sentence why it cannot."""
    files = [
        path.name for path in whole.iterdir() if path.suffix in (".toml", ".json", ".csv", ".jsonl", ".npz")
    ]
    assert {"config.toml", "result.json", "links.csv", "metrics.csv", "shares.npz"} <= set(files)
    rng, root = np.random.default_rng(7), tmp_path / "runs"
    shutil.copytree(whole, root / "whole")
    for number in range(60):
        folder = root / f"damaged-{number:03}"
        shutil.copytree(whole, folder, ignore=shutil.ignore_patterns("*.safetensors"))
        name = files[number % len(files)]
        (folder / name).write_bytes(damaged((folder / name).read_bytes(), rng))
    board = Dashboard(root)
    try:
        board.runs.look()
        rows = {row["id"]: row for row in board.runs.table()["runs"]}
        assert len(rows) == 61
        assert rows["whole"]["state"]["kind"] == "finished"
        json.dumps(list(rows.values()), allow_nan=False)
        broken = [name for name, row in rows.items() if row["state"]["kind"] == "broken"]
        assert broken
        assert all(rows[name]["state"]["text"] != "broken: " for name in broken)
        answers = {200: 0, 404: 0}
        for name in rows:
            for path, query in views_of(name):
                status, answer = board.answer(path, query)
                answers[status] += 1
                json.dumps(answer, allow_nan=False)
                assert status == 200 or answer["error"]
        assert answers[200] > 100
        assert answers[404] > len(broken)
        status, answer = board.answer("compare", {"ids": ",".join(rows)})
        assert status == 200, answer
        assert len(answer["notes"]) >= len(broken)
    finally:
        board.stop()


def views_of(name: str) -> list[tuple[str, dict[str, str]]]:
    one = {"id": name}
    links = [
        ("links", {**one, "kind": kind, "round": "2"}) for kind in ("so far", "in this round", "weights")
    ]
    return [("run", one), *links, ("peer", {**one, "place": "1"}), ("explain", one)]


def test_questions_that_make_no_sense_get_a_sentence(whole: Path) -> None:
    board = Dashboard(whole.parent)
    try:
        board.runs.look()
        for path, query in (
            ("links", {"id": "run", "kind": "so far", "round": "99"}),
            ("links", {"id": "run", "kind": "so far", "round": "x"}),
            ("links", {"id": "run", "kind": "tea", "round": "1"}),
            ("peer", {"id": "run", "place": "99"}),
            ("peer", {"id": "run", "place": "-1"}),
            ("run", {}),
            ("compare", {"ids": ""}),
            ("compare", {"ids": "../.."}),
        ):
            status, answer = board.answer(path, query)
            assert status == 404
            assert answer["error"]
    finally:
        board.stop()


@pytest.mark.parametrize("many", [1000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_very_many_runs_are_found_and_searched(many: int, tmp_path: Path, tab: Page) -> None:
    """All of them; the page draws the first two hundred, and more when it is asked to."""
    for number in range(many):
        folder = tmp_path / f"run-{number:05}"
        folder.mkdir()
        (folder / "config.toml").write_text(f'algorithm = "local"\npeers = 4\nrounds = 9\nseed = {number}\n')
    board = Dashboard(tmp_path)
    while len(board.runs.look(300)) == 300:
        pass
    board.start()
    try:
        show(tab, f"{board.url}#/runs")
        assert tab.inner_text("main [role=status]") == f"{many} runs"
        assert tab.locator("tbody tr").count() == 200
        assert tab.inner_text("button:has-text('Show more')") == f"Show more ({many - 200})"
        tab.click("text=Show more")
        assert tab.locator("tbody tr").count() == min(many, 1200)
        tab.fill("input[type=search]", "run-00711")
        assert tab.locator("tbody tr").count() == 1
    finally:
        tab.goto("about:blank")
        board.stop()


def test_what_is_no_folder_of_runs_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text("{}")  # somebody else's
    (tmp_path / "link").symlink_to(tmp_path)
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden" / "config.toml").write_text("peers = 3")
    found = FoundRuns(tmp_path)
    found.look()
    assert found.table()["runs"] == []
