"""Real peers that do not run, or do not answer: the page says so of each, whatever becomes of the others."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from in_browser import show
from playwright.sync_api import Page

from coterie.cli.swarm.folders import make_folders
from coterie.dashboard.peers import peer_folders, standings
from coterie.errors import RunFolderError
from coterie.peer.watch.monitoring import running

TABLE = {"algorithm": "d-psgd", "model": "mlr", "topology": "full", "peers": 3, "rounds": 5}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Anna has two rounds, of which the last was not measured; bob has none, carla's are damaged."""
    folder = tmp_path / "swarm"
    folder.mkdir()
    anna, _, carla = make_folders(folder, TABLE, ["anna", "bob", "carla"], "synchronous")
    lines = [
        {"round": 0, "metric": "rmse", "rmse": {"after_local": 0.5, "after_mixing": 0.25}},
        {"round": 1, "metric": "rmse", "rmse": {}},
    ]
    (anna / "records.jsonl").write_text(
        "".join(json.dumps(line) + "\n" for line in lines) + '{"round": 2, "me'
    )
    (carla / "records.jsonl").write_bytes(b"\xff\x00[[[[")
    return folder


def test_a_swarms_folder_stands_for_its_peers(home: Path, tmp_path: Path) -> None:
    assert [path.name for path in peer_folders([home])] == ["anna", "bob", "carla"]
    assert peer_folders([home / "bob"]) == [home / "bob"]
    with pytest.raises(RunFolderError, match=r"nor one of several: it has no peer\.toml"):
        peer_folders([tmp_path])


def test_who_does_not_run_is_shown_from_disk(home: Path) -> None:
    anna, bob, carla = standings(peer_folders([home]))["peers"]
    assert anna["state"] == "does not run; 2 rounds on disk"
    assert anna["scores"] == {"after_local": 0.5, "after_mixing": 0.25}
    assert (anna["metric"]["title"], anna["metric"]["percent"]) == ("rmse", False)
    assert (bob["state"], bob["scores"]) == ("does not run; 0 rounds on disk", {})
    assert carla["state"] == "does not run; 0 rounds on disk"


def test_who_runs_and_does_not_answer_is_shown_as_such(home: Path) -> None:
    with running(home / "bob" / "state", "bob"):
        _, bob, _ = standings(peer_folders([home]))["peers"]
    assert bob["state"].startswith("runs, but does not say how it stands: ")


def test_the_command_shows_peers_and_ends_with_ctrl_c(home: Path, tmp_path: Path, tab: Page) -> None:
    command = [sys.executable, "-m", "coterie", "dashboard", "--peer", str(home), "--port", "0"]
    process = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    try:
        assert process.stdout is not None
        address = process.stdout.readline().split()[2]
        assert address.startswith("http://127.0.0.1:")
        tab.set_viewport_size({"width": 360, "height": 740})
        show(tab, address)  # there are no runs: it begins with the peers
        assert tab.get_attribute("main", "data-peers") == "3"
        rows = tab.locator("tbody tr")
        assert rows.nth(0).inner_text().split("\t")[:5] == [
            "anna", "does not run; 2 rounds on disk", "2", "0.5", "0.25",
        ]  # fmt: skip
        assert "rmse after mixing" in tab.inner_text("thead")
        assert Axe().run(tab).violations_count == 0
        tab.goto("about:blank")
    finally:
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert (process.returncode, "Traceback" in said) == (130, False)
