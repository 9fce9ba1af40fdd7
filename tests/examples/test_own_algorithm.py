"""examples/own_algorithm.py runs, at small scale, and Coterie finds the algorithm in it."""

from __future__ import annotations

import logging
import re
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import coterie
from coterie import catalogue

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_algorithm.py"


@pytest.fixture(autouse=True)
def all_as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The names that the example registers and the log that it silences."""
    monkeypatch.setattr(catalogue.algorithms, "_factories", dict(catalogue.algorithms._factories))
    level = logging.getLogger("coterie").level
    yield
    logging.getLogger("coterie").setLevel(level)


def test_it_runs_and_prints_its_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), "--peers", "4", "--rounds", "2"])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    *rows, last = capsys.readouterr().out.splitlines()
    assert [row.split()[0] for row in rows] == ["local", "d-psgd", "Cautious(share=0.3,"]
    assert all(re.search(r"mean +\d+\.\d %   worst +\d+\.\d %$", row) for row in rows)
    assert last == "with lost messages and a crash, 4 of 4 peers finish"


def test_its_guard_does_what_its_equation_says() -> None:
    """With a slack of -1 no mixed model is taken, since losses are above 0: it is training alone."""
    common = {
        "partition": "iid",
        "topology": "ring",
        "peers": 3,
        "rounds": 2,
        "execution": {"executor": "looped"},
    }
    guarded = coterie.simulate(algorithm=f"{EXAMPLE}:Cautious(slack=-1)", **common)  # type: ignore[arg-type]
    alone = coterie.simulate(algorithm="local", **common)  # type: ignore[arg-type]
    assert all(guarded.params[name].equal(values) for name, values in alone.params.items())
