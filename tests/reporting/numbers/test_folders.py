"""What a folder says is what the run in memory said, without PyTorch and without the data."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import coterie
from coterie.errors import RunFolderError
from coterie.experiments.runs.run import Run
from coterie.reporting.numbers.folders import OfFolder
from coterie.reporting.numbers.known import POINTS, OfRun


def a_run(folder: Path, algorithm: str, **more: object) -> Run:
    options = {
        "partition": "rotations(2)",
        "topology": "full",
        "peers": 4,
        "rounds": 3,
        "model": "mlr",
        **more,
    }
    return coterie.simulate(algorithm, execution={"executor": "stacked"}, run_dir=folder, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("algorithm", ["local", "d-psgd", "oracle", "kd-pdfl", "fedavg"])
def test_a_folder_says_what_the_run_said(algorithm: str, tmp_path: Path) -> None:
    topology = "star" if algorithm == "fedavg" else "full"
    memory = OfRun(a_run(tmp_path / "run", algorithm, topology=topology))
    folder = OfFolder(tmp_path / "run")
    assert (folder.metric.name, folder.point) == (memory.metric.name, memory.point)
    assert folder.rounds == memory.rounds
    assert folder.received == memory.received
    assert folder.clusters is not None
    assert folder.clusters.tolist() == [0, 0, 1, 1]
    assert np.allclose(folder.shares, memory.shares, atol=1e-7)
    assert folder.own_cluster_share == memory.own_cluster_share
    assert np.array_equal(folder.reported, memory.reported)
    for point in POINTS:
        assert np.allclose(folder.scores(point), memory.scores(point), equal_nan=True)


def test_an_interrupted_run_is_read_as_far_as_it_came(tmp_path: Path) -> None:
    memory = a_run(tmp_path / "run", "d-psgd")
    (tmp_path / "run" / "result.json").unlink()
    rounds = (tmp_path / "run" / "rounds.csv").read_text().splitlines(keepends=True)
    (tmp_path / "run" / "rounds.csv").write_text("".join(rounds[:-1]) + rounds[-1][:3])  # cut within a line
    folder = OfFolder(tmp_path / "run")
    assert folder.rounds == [1, 2]
    assert np.allclose(folder.reported, memory.accuracy_over_time()[1].numpy())
    assert folder.own_cluster_share == pytest.approx(1 / 3)  # of three others, one is in the cluster


def test_people_have_the_labels_that_the_data_have(tmp_path: Path) -> None:
    a_run(tmp_path / "run", "local", partition="pathological(2)")
    folder = OfFolder(tmp_path / "run")
    labels = folder.people.labels
    assert labels is not None
    assert folder.people.classes == [str(digit) for digit in range(10)]
    assert labels.sum(1).tolist() == folder.people.train
    assert ((labels > 0).sum(1) <= 2).all()
    with open(tmp_path / "run" / "peers.csv", newline="") as file:
        assert next(csv.reader(file))[:7] == [
            "peer",
            "name",
            "train",
            "validation",
            "test",
            "cluster",
            "class 0",
        ]


def test_messages_are_counted_as_the_router_counts(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run", "random-gossip")
    assert np.array_equal(OfFolder(tmp_path / "run").counts(0, 3), run.graph.numpy())


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.toml", "peers = 'many'"),
        ("config.toml", "peers ="),
        ("result.json", "{"),
        ("result.json", "[]"),
        ("rounds.csv", "round,seconds\n0,1\n"),
        ("metrics.csv", "peer\n1\n"),
        ("metrics.csv", "round,peer,accuracy_after_local\n0,x,0.5\n"),
    ],
)
def test_what_is_damaged_is_named(name: str, content: str, tmp_path: Path) -> None:
    a_run(tmp_path / "run", "local")
    (tmp_path / "run" / name).write_text(content)
    with pytest.raises(RunFolderError, match=name):
        OfFolder(tmp_path / "run")


def test_links_that_make_no_sense_are_named(tmp_path: Path) -> None:
    a_run(tmp_path / "run", "d-psgd")
    for content in ("a,b\n1,2\n", "round,exchange,sender,receiver,bytes,delivered\n0,0,-1,2,5,1\n"):
        (tmp_path / "run" / "links.csv").write_text(content)
        with pytest.raises(RunFolderError, match=r"links\.csv"):
            _ = OfFolder(tmp_path / "run").messages


def test_pytorch_and_matplotlib_are_not_needed() -> None:
    said = "import sys, coterie.reporting.numbers.folders; print({'torch', 'matplotlib'} & set(sys.modules))"
    shown = subprocess.run([sys.executable, "-c", said], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "set()"
