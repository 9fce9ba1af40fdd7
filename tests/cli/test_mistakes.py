"""Whatever a user gets wrong: one line on stderr, the right exit code, nothing written."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coterie.errors import DivergedError

Command = Callable[..., Any]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "--algorithm", "d-psdg"], "did you mean d-psgd"),
        (["run", "--data", "digit"], "did you mean digits?"),
        (["run", "--set", "training.lrr=1"], "did you mean lr"),
        (["run", "--algorithm", "D-PSGD"], "did you mean d-psgd"),
        (["run", "--data", "MNIST"], "did you mean mnist"),
        (["run", "--set", "lr=0.1"], "unknown key 'lr'; did you mean training.lr?"),
        (["run", "--set", "training.churn=0.1"], "unknown key 'training.churn'; did you mean faults.churn?"),
        (["run", "--set", "faults.Lr=0.1"], "did you mean training.lr?"),
        (["explain", "trainng.lr"], "did you mean training.lr"),
        (["run", "--set", "nonsense"], "key=value"),
        (["run", "--peers", "0"], "peers"),
        (["run", "--config", "missing.toml"], "missing.toml"),
        (["run", "--resume", "missing"], "missing"),
        (["run", "--resume", "missing", "--peers", "3", "--set", "seed=1"], "--peers, --set"),
        (["run", "--data", "mnist", "--data-dir", "missing"], "missing"),
        (["run", "--topology", "random-regular(3)", "--peers", "5", "--algorithm", "d-psgd"], "odd"),
        (["run", "--algorithm", "oracle", "--partition", "iid"], "clusters"),
        (["run", "--algorithm", "dfedavgm", "--set", "training.optimizer=adam", "--peers", "4"], "momentum"),
        (
            [
                "run",
                "--algorithm",
                "ppdl",
                "--peers",
                "5",
                "--rounds",
                "1",
                "--set",
                "splitting.validation=0",
            ],
            "splitting.validation",
        ),
        (["compare", "--algorithms", "local,fedavgg"], "did you mean fedavg"),
        (["compare", "--algorithms", "d-psgd,d-psgd"], "twice"),
        (["compare", "--algorithms", "local,oracle", "--partition", "iid"], "clusters"),
        (["compare", "--algorithms", "d-psgd", "--data", "mnist", "--data-dir", "missing"], "missing"),
        (["compare", "--resume", "missing"], "compare.json"),
        (["explain", "fedavgg"], "did you mean fedavg"),
        (["data", "show", "--partition", "idd"], "did you mean iid"),
        (["data", "show", "--out", "missing/plot.png"], "missing"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing(
    coterie: Command, folder: Path, arguments: list[str], words: str
) -> None:
    done = coterie(*arguments)
    assert done.exit_code == 2
    errors = [line for line in done.stderr.splitlines() if not line.startswith("note: ")]
    assert len(errors) == 1
    assert errors[0].startswith("error: ")
    assert words in errors[0]
    assert done.stdout == ""
    assert not list(folder.iterdir())


@pytest.mark.parametrize(
    "arguments",
    [["run", "--peers", "many"], ["runn"], ["run", "--peer", "3"], ["list", "algorithm"], ["explain"]],
)
def test_wrong_usage(coterie: Command, folder: Path, arguments: list[str]) -> None:
    done = coterie(*arguments)
    assert done.exit_code == 2
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert not list(folder.iterdir())


def test_a_file_that_is_not_toml(coterie: Command, folder: Path) -> None:
    (folder / "e.toml").write_text("peers = = 3\n")
    done = coterie("run", "--config", "e.toml")
    assert done.exit_code == 2
    assert "e.toml is not valid TOML" in done.stderr


@pytest.mark.parametrize("command", [["run"], ["compare", "--algorithms", "d-psgd"]])
def test_an_existing_folder_is_not_touched(coterie: Command, folder: Path, command: list[str]) -> None:
    (folder / "kept").mkdir()
    (folder / "kept" / "notes.txt").write_text("mine")
    done = coterie(*command, "--run-dir", "kept")
    assert done.exit_code == 2
    assert "kept exists already" in done.stderr
    assert [path.name for path in (folder / "kept").iterdir()] == ["notes.txt"]


def test_failures_during_a_run_exit_with_1(
    coterie: Command, small: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full_disk(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "metrics.csv")

    def diverge(*_: object, **__: object) -> None:
        raise DivergedError("round 1: the loss of peer 2 is NaN")

    for number, (problem, words) in enumerate(((full_disk, "No space left"), (diverge, "peer 2"))):
        with monkeypatch.context() as patch:
            target = "append" if problem is full_disk else "flush"
            patch.setattr(f"coterie.experiments.runs.records.RunRecords.{target}", problem)
            done = coterie("run", *small, "--run-dir", str(number))
        assert done.exit_code == 1
        assert words in done.stderr.splitlines()[-1]


def test_a_real_process_without_a_traceback(process: Command) -> None:
    done = process("run", "--algorithm", "d-psdg")
    assert done.returncode == 2
    assert done.stderr.startswith("error: unknown algorithm 'd-psdg'; did you mean d-psgd")
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


def test_version_and_help(coterie: Command) -> None:
    assert coterie("--version").stdout.startswith("coterie 0.")
    text = coterie("--help").stdout
    assert all(name in text for name in ("run", "compare", "list", "explain", "data", "new", "demo"))


UNKNOWN = [
    ["run", "--algorithm", "d-psdg"],
    ["run", "--data", "minst"],
    ["run", "--model", "mlpp(64)"],
    ["run", "--partition", "dirichlett(1)"],
    ["run", "--algorithm", "d-psgd(mixing=uniform)", "--topology", "rng"],
    ["run", "--set", 'models={"mlpp"="0-1"}'],
    ["run", "--set", "training.lrr=1"],
    ["run", "--resume", "missing"],
    ["compare", "--algorithms", "local,d-psdg"],
    ["data", "show", "--partition", "idd"],
    ["swarm", "--algorithm", "d-psdg"],
    ["explain", "d-psdg"],
]


def test_an_unknown_name_is_told_before_pytorch_is_imported() -> None:
    code = f"""
import sys
from typer.testing import CliRunner
from coterie.cli import app
for arguments in {UNKNOWN}:
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 2 and done.stderr.startswith("error: "), (arguments, done.stderr)
    slow = {{"torch", "numpy", "matplotlib"}} & set(sys.modules)
    assert not slow, (arguments, slow)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
