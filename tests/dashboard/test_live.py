"""What changes while one looks: a run that goes on, folders that vanish, real peers."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from in_browser import show
from playwright.sync_api import Page

import coterie
from coterie.dashboard.server import Dashboard
from coterie.experiments.runs.records import History
from coterie.reporting.page.found import FoundRuns

SMALL: dict[str, Any] = {"partition": "rotations(2)", "topology": "full", "peers": 4, "model": "mlr"}


class Gate(coterie.Observer):
    """Lets a round pass when it is told to."""

    def __init__(self) -> None:
        self.passes = threading.Semaphore(0)
        self.done = threading.Semaphore(0)

    def round(self, record: object, history: History) -> None:
        self.done.release()
        self.passes.acquire()


def test_a_run_is_followed_round_by_round(tmp_path: Path, tab: Page) -> None:
    gate, folder = Gate(), tmp_path / "runs" / "going"
    kept = {"execution": {"checkpoint_seconds": 0.0}}
    run = threading.Thread(
        target=lambda: coterie.simulate("d-psgd", rounds=3, **SMALL, **kept, run_dir=folder, observer=gate),
        daemon=True,
    )
    board = Dashboard(tmp_path / "runs")
    board.start()
    try:
        run.start()
        gate.done.acquire()
        show(tab, f"{board.url}#/runs")
        tab.wait_for_selector("tr[data-id=going] >> text=round 1 of 3")
        tab.focus("tr[data-id=going] a")
        gate.passes.release()
        gate.done.acquire()
        tab.wait_for_selector("tr[data-id=going] >> text=round 2 of 3")
        assert tab.evaluate(
            "document.activeElement.matches('tr[data-id=going] a')"
        )  # the keyboard stays there
        tab.keyboard.press("Enter")
        for done in (2, 3):
            tab.wait_for_selector(f"main[data-rounds='{done}']")
            assert re.match(rf"running, round {done} of 3, [\d.]+ s left", tab.inner_text("#state"))
            scores = board.runs.run("going").run.scores("after_mixing")[done - 1]
            assert float(tab.get_attribute("main", "data-mean") or "nan") == pytest.approx(
                float(scores.mean()), abs=1e-6
            )
            gate.passes.release()
            if done < 3:
                gate.done.acquire()
        run.join()
        tab.wait_for_selector("text=finished")
        tab.goto(f"{board.url}#/runs")
        tab.wait_for_selector("tr[data-id=going]")
        shutil.rmtree(folder)
        tab.wait_for_selector("text=There are no runs in")
    finally:
        for _ in range(3):
            gate.passes.release()
        run.join()
        tab.goto("about:blank")
        board.stop()


def test_a_run_that_vanishes_while_one_looks_at_it(tmp_path: Path, browser: Any) -> None:
    coterie.simulate("d-psgd", rounds=2, **SMALL, run_dir=tmp_path / "runs" / "gone")
    board = Dashboard(tmp_path / "runs")
    board.start()
    tab = browser.new_page()  # not one without errors: the browser logs that an answer was 404
    try:
        show(tab, f"{board.url}#/run?id=gone")
        tab.wait_for_selector("#links-said[data-total]")
        shutil.rmtree(tmp_path / "runs" / "gone")
        tab.wait_for_selector("text=there is no run 'gone' here, or no longer")
        tab.click("text=to the runs")
        tab.wait_for_selector("text=There are no runs in")
    finally:
        tab.close()
        board.stop()


def test_what_is_chosen_stays_while_others_change(tmp_path: Path) -> None:
    """Positions are computed once: a round more does not move a peer."""
    gate, folder = Gate(), tmp_path / "runs" / "going"
    chosen = {**SMALL, "partition": "dirichlet(0.3)", "peers": 8, "topology": "ring"}  # no true clusters
    run = threading.Thread(
        target=lambda: coterie.simulate("random-gossip", rounds=3, **chosen, run_dir=folder, observer=gate),
        daemon=True,
    )
    run.start()
    found, positions = FoundRuns(tmp_path / "runs"), []
    for done in (1, 2, 3):
        gate.done.acquire()
        found.look()
        shown = found.one("going")
        assert shown["rounds"]["done"] == done
        assert shown["links"]["group_kind"] == "found community"
        positions.append(shown["links"]["positions"])
        gate.passes.release()
    run.join()
    assert positions[0] == positions[1] == positions[2]


def test_a_swarm_shows_its_peers(tmp_path: Path, tab: Page) -> None:
    """Real processes; the page says of each how it stands, and what it thinks of the others."""
    command = [
        sys.executable,
        "-m",
        "coterie",
        "swarm",
        "--model",
        "mlr",
        "--peers",
        "3",
        "--rounds",
        "100000",
    ]
    process = subprocess.Popen(
        [*command, "--dashboard", "--dir", str(tmp_path / "swarm")],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    try:
        assert process.stderr is not None
        line = next(line for line in process.stderr if line.startswith("the page: "))
        show(tab, line.split()[2])
        tab.wait_for_selector("text=As peer-0 sees the others", timeout=120_000)
        tab.wait_for_selector("td:has-text('learning')", timeout=120_000)
        text = tab.inner_text("main")
        assert all(f"peer-{number}" in text for number in range(3))
        assert tab.get_attribute("main", "data-peers") == "3"
        assert "alive" in tab.inner_text("[aria-label='Neighbours of peer-0']")
    finally:
        tab.goto("about:blank")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=120)
    assert process.returncode == 130
