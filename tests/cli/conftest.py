"""Runs commands in an empty folder, in this process; `process` starts a real one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from coterie.cli import app

Command = Callable[..., Any]
SMALL = ["--data", "digits", "--model", "mlr", "--peers", "4", "--rounds", "2", "--executor", "stacked"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The empty folder that commands run in."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COTERIE_DATA", raising=False)
    return tmp_path


@pytest.fixture
def coterie() -> Command:
    """coterie("run", "--peers", "4"): the result has exit_code, stdout and stderr."""

    def invoke(*arguments: str) -> Any:
        result = CliRunner().invoke(app, list(arguments), prog_name="coterie")
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return invoke


@pytest.fixture
def small() -> list[str]:
    """Options of a run that takes a moment."""
    return list(SMALL)


@pytest.fixture
def process() -> Command:
    """The command in a process of its own."""

    def start(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "coterie", *arguments],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "NO_COLOR": "1"},
        )

    return start
