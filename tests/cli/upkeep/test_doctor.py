"""`coterie doctor`: every look is taken, and what is wrong is named."""

from __future__ import annotations

import importlib.util
import json
import socket
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coterie.cli.upkeep import doctor

Command = Callable[..., Any]


def said(what: str, state: str) -> list[str]:
    return [one.said for one in doctor.examine() if (one.what, one.state) == (what, state)]


def test_a_machine_that_runs_the_tests_has_nothing_to_fix(coterie: Command) -> None:
    done = coterie("doctor", "--json")
    assert done.exit_code == 0
    found = json.loads(done.stdout)
    assert {one["what"] for one in found} == {
        "Python", "package", "extra", "threads", "memory", "GPU", "Ray", "disk", "data", "network",
    }  # fmt: skip
    assert not [one for one in found if one["state"] == "fix"]
    assert "\x1b" not in coterie("doctor").stdout  # no colours where there is no terminal


def test_every_extra_for_users_is_looked_for() -> None:
    pyproject = Path(__file__).parents[3] / "pyproject.toml"
    extras = tomllib.loads(pyproject.read_text())["project"]["optional-dependencies"]
    assert doctor.EXTRAS.keys() == extras.keys() - {"test", "dev", "docs", "fuzz"}


def test_a_missing_extra_is_a_note_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    there = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "optuna" else there(name))
    assert said("extra", "note") == [
        "optuna is not installed (searches by Optuna): pip install 'coterie[optuna]'"
    ]


def test_the_data_folder_is_examined(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path / "gone"))
    assert said("data", "fix") == [f"COTERIE_DATA is {tmp_path / 'gone'}, which is no folder"]
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path))
    (missing,) = (line for line in said("data", "note") if line.startswith("mnist "))
    assert str(tmp_path) in missing


def test_a_ray_elsewhere_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    (here,) = said("Ray", "fine")
    assert here.endswith("--engine ray starts one on this machine")
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        monkeypatch.setenv("RAY_ADDRESS", f"ray://{address}")
        (problem,) = said("Ray", "fix")  # nobody listens
        assert problem.startswith(f"RAY_ADDRESS is ray://{address}, which does not answer: ")
        listening.listen()
        assert said("Ray", "fine")[0].endswith(f"RAY_ADDRESS is ray://{address}, which answers")


def test_a_port_that_is_taken_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        monkeypatch.setattr(doctor, "PAGE_PORT", port)
        assert said("network", "note") == [
            f"port {port}, the page's, is in use: coterie dashboard --port 0 takes another"
        ]


def test_what_breaks_is_said_and_the_rest_is_still_examined(
    coterie: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> Any:
        raise RuntimeError("no GPU driver")
        yield

    broken.__name__ = "_gpu"
    monkeypatch.setattr(doctor, "_gpu", broken)
    done = coterie("doctor")
    assert done.exit_code == 1
    assert "cannot be examined: no GPU driver" in done.stdout
    assert "TLS 1.3" in done.stdout


def test_looking_leaves_nothing_behind(coterie: Command, folder: Path) -> None:
    coterie("doctor")
    assert list(folder.iterdir()) == []
