"""A Ray that is there already, with its client server and a token, joined by its address."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from ray_cluster import Head, head

import coterie

pytestmark = pytest.mark.slow  # a Ray with processes of its own for every client

USUAL: dict[str, Any] = {"algorithm": "d-psgd", "data": "digits", "peers": 4, "rounds": 2, "topology": "ring"}
HERE = {"executor": "looped"}


@pytest.fixture(scope="module")
def there() -> Iterator[Head]:
    with head() as found:
        yield found


@pytest.fixture(scope="module")
def alone() -> coterie.Run:
    return coterie.simulate(**USUAL, execution=HERE)


def assert_same(ours: coterie.Run, theirs: coterie.Run) -> None:
    assert torch.equal(ours.personal_accuracy, theirs.personal_accuracy)
    for name, value in ours.params.items():
        assert torch.equal(value, theirs.params[name]), name


def test_a_run_through_a_client(there: Head, alone: coterie.Run) -> None:
    run = coterie.simulate(**USUAL, execution={**HERE, "engine": there.client, "workers": 2})
    assert_same(alone, run)


def test_a_sweep_through_a_client_that_the_environment_names(
    there: Head, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", there.client)
    over = {"training.lr": [0.1, 0.3]}
    ours = coterie.sweep(over, **USUAL, out=tmp_path / "here", execution=HERE)
    found = coterie.sweep(over, **USUAL, out=tmp_path / "there", execution={**HERE, "engine": "ray"})
    for one, other in zip(ours.runs, found.runs, strict=True):
        assert torch.equal(one.personal_accuracy, other.personal_accuracy)


def test_a_run_where_a_driver_is(there: Head, alone: coterie.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not a client: on a machine of the cluster, as jobs of Slurm and Kubernetes are."""
    monkeypatch.setenv("RAY_ADDRESS", there.address)
    assert_same(alone, coterie.simulate(**USUAL, execution={**HERE, "engine": "ray", "workers": 2}))


def test_another_token(there: Head, tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "coterie",
        "run",
        "--rounds",
        "1",
        "--peers",
        "4",
        "-q",
        "--engine",
        "ray",
    ]
    environment = {**os.environ, "RAY_ADDRESS": there.address, "RAY_AUTH_TOKEN": "0" * 64}
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    assert "RAY_AUTH_TOKEN" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir())
