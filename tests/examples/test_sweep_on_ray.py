"""examples/sweep_on_ray.py runs, at small scale, and Ray's numbers are those of one process."""

from __future__ import annotations

import logging
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from ray_cluster import one_node

EXAMPLE = Path(__file__).parents[2] / "examples" / "sweep_on_ray.py"


@pytest.fixture(autouse=True)
def log_as_before() -> Iterator[None]:
    level = logging.getLogger("coterie").level
    yield
    logging.getLogger("coterie").setLevel(level)


def printed(engine: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> list[str]:
    options = ["--engine", engine, "--peers", "4", "--rounds", "1", "--seeds", "1"]
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), *options])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    return capsys.readouterr().out.splitlines()


def test_ray_gives_the_numbers_of_one_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with one_node():
        there = printed("ray", monkeypatch, capsys)
    here = printed("local", monkeypatch, capsys)
    assert there == here
    assert len(there) == 3 * 3 + 1
    assert there[-1].startswith("best: ")
