"""All algorithms of a comparison have the same data, and all is checked before anything trains."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Command = Callable[..., Any]
LOADER = """
import numpy
from pathlib import Path
import coterie

def load(peers, seed):
    with open({calls!r}, "a") as file:
        file.write(f"{{seed}} ")
    random = numpy.random.default_rng({seeded})
    y = random.integers(0, 3, 240)
    x = numpy.eye(3)[y] + random.normal(size=(240, 3))
    return coterie.from_arrays(x.astype("float32"), y)
"""


@pytest.fixture
def own(folder: Path) -> list[str]:
    """A loader that draws other samples at each call, and writes down for which seed."""
    (folder / "own.py").write_text(LOADER.format(calls=str(folder / "calls"), seeded=""))
    return ["--data", "own.py:load", "--peers", "4", "--rounds", "2", "--executor", "stacked"]


def test_a_loader_is_called_once_per_seed(coterie: Command, own: list[str], folder: Path) -> None:
    options = ["--algorithms", "local,d-psgd,gossip-fedavg", "--seeds", "2", "--no-plots", "--json"]
    done = coterie("compare", *own, *options, "--run-dir", "c")
    assert done.exit_code == 0, done.stderr
    assert (folder / "calls").read_text().split() == ["0", "1"]
    digests = [json.loads(path.read_text())["data"] for path in folder.glob("c/*/environment.json")]
    assert len(digests) == 6
    assert len(set(digests)) == 2
    again = coterie("compare", "--resume", "c", "--no-plots")
    assert again.exit_code == 2
    assert "own.py:load returned other data than when the run in c/" in again.stderr


def test_a_sweep_in_one_process_has_the_same_data(coterie: Command, own: list[str], folder: Path) -> None:
    options = ["--over", "algorithm=local,d-psgd", "--over", "training.lr=0.1,0.2", "--seeds", "2"]
    done = coterie("sweep", *own, *options, "--jobs", "1", "--out", "s")
    assert done.exit_code == 0, done.stderr
    assert sorted((folder / "calls").read_text().split()) == ["0", "1"]


def test_a_sweep_whose_runs_had_different_data_says_so(
    coterie: Command, own: list[str], folder: Path
) -> None:
    """The second command calls the loader again, as a second process would."""
    first = coterie("sweep", *own, "--over", "algorithm=local", "--jobs", "1", "--out", "s")
    assert first.exit_code == 0, first.stderr
    done = coterie("sweep", *own, "--over", "algorithm=local,d-psgd", "--jobs", "1", "--out", "s")
    assert done.exit_code == 1
    assert "own.py:load returned different data to runs of the same seed" in done.stderr
    (folder / "own.py").write_text(LOADER.format(calls=str(folder / "calls"), seeded="seed"))
    coterie("sweep", *own, "--over", "algorithm=local", "--jobs", "1", "--out", "s")
    done = coterie("sweep", *own, "--over", "algorithm=local,d-psgd", "--jobs", "1", "--out", "s")
    assert done.exit_code == 0, done.stderr


@pytest.mark.parametrize(
    ("algorithms", "message"),
    [
        ("d-psgd,oracle", "oracle-s0: algorithm 'oracle' must be told the true clusters"),
        ("d-psgd,kd-pdfl(layer=nowhere)", "kd-pdfl(layer=nowhere)-s0: settings.layer"),
    ],
)
def test_a_mistake_in_the_second_algorithm_leaves_nothing_behind(
    coterie: Command, small: list[str], folder: Path, algorithms: str, message: str
) -> None:
    refused = coterie("compare", "--algorithms", algorithms, *small, "--seeds", "2", "--run-dir", "c")
    assert refused.exit_code == 2
    assert message in refused.stderr
    assert list(folder.iterdir()) == []
