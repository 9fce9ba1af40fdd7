"""`coterie.open` reads the folder that `coterie swarm --dir` left: real peers, seen as a run."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import coterie
from coterie.errors import RunFolderError

SETTINGS: dict[str, Any] = {"model": "mlr", "partition": "iid", "peers": 2, "rounds": 2}


@pytest.fixture(scope="module")
def swarm(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The folder, and what the command printed. FedAvg has a hub, which is a process and no peer."""
    home = tmp_path_factory.mktemp("swarm") / "peers"
    asked = [part for key, value in SETTINGS.items() for part in (f"--{key}", str(value))]
    done = subprocess.run(
        [sys.executable, "-m", "coterie", "swarm", "--algorithm", "fedavg", *asked, "--dir", home, "--json"],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    return home, json.loads(done.stdout)


def test_its_numbers_are_those_that_were_printed(swarm: tuple[Path, dict[str, Any]]) -> None:
    home, printed = swarm
    found = coterie.open(home).result()
    assert found.keys() == printed.keys() - {"swarm"}
    for key in found.keys() - {"seconds", "seconds_per_round", "names", "run_dir"}:
        assert found[key] == printed[key], key
    assert found["names"] == ["peer-0", "peer-1"]


def test_models_and_scores_are_those_of_a_simulation(swarm: tuple[Path, dict[str, Any]]) -> None:
    opened = coterie.open(swarm[0])
    run = coterie.simulate("fedavg", **SETTINGS, execution={"executor": "looped"})
    assert isinstance(opened, coterie.Run)
    assert repr(opened).startswith("<Run fedavg on digits, 2 peers, 2 rounds, seed 0, accuracy 0.")
    torch.testing.assert_close(
        opened.accuracy_over_time().float(), run.accuracy_over_time(), atol=1e-6, rtol=0
    )
    x = torch.rand(5, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(opened.predict("peer-1", x), run.predict(1, x), atol=1e-5, rtol=0)
    rounds, processes = opened.frame("rounds"), swarm[1]["swarm"]["processes"]
    assert rounds["bytes"].sum() == sum(one["bytes_in"] for one in processes)
    assert rounds["hub_bytes"].sum() == processes[-1]["bytes_out"]
    assert len(opened.frame("peers")) == 4
    assert opened.frame("links").empty  # peers heard the hub only


def test_interrupted_and_strange_folders(swarm: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    """A peer that has one round of two, without a word at its end, makes the run an interrupted one."""
    home = shutil.copytree(swarm[0], tmp_path / "peers")
    records = home / "peer-1" / "records.jsonl"
    records.write_text(records.read_text().splitlines()[0] + "\n")
    (home / "peer-1" / "result.json").write_text("")
    opened = coterie.open(home)
    assert not opened.finished
    assert "interrupted" in repr(opened)
    known = opened.accuracy_over_time().isnan()
    assert known.tolist() == [[False, False], [False, True]]
    shutil.rmtree(home / "peer-1")
    with pytest.raises(RunFolderError, match="its peers are not those of their experiment"):
        coterie.open(home)
