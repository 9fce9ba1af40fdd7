"""examples/compare_to_latex.py runs, at small scale, and its table is the comparison's."""

from __future__ import annotations

import logging
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "compare_to_latex.py"


@pytest.fixture(autouse=True)
def log_as_before() -> Iterator[None]:
    level = logging.getLogger("coterie").level
    yield
    logging.getLogger("coterie").setLevel(level)


def test_it_prints_the_best_and_writes_the_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    options = ["--peers", "8", "--rounds", "2", "--seeds", "2", "--out", str(tmp_path / "table.tex")]
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), *options])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    printed, table = capsys.readouterr().out, (tmp_path / "table.tex").read_text()
    assert table in printed
    rows = [line.split(" & ") for line in table.splitlines() if " & " in line]
    assert [row[0] for row in rows] == ["algorithm", "local", "d-psgd", "random-gossip", "oracle"]
    best = printed.partition("best: ")[2].partition("\n")[0]
    assert "mathbf" in next(row for row in rows if row[0] == best)[1]
    assert "oracle takes 100 % from its own cluster" in printed
