"""examples/own_model_and_data.py runs as it is, and is as short as it says."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_model_and_data.py"


def test_it_prints_a_line_for_each_algorithm(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    scores = [re.fullmatch(r"(\S+) +accuracy (0\.\d{3}|1\.000)", line) for line in lines]
    assert [match and match[1] for match in scores] == ["local", "d-psgd", "kin"]


def test_it_has_thirty_lines() -> None:
    assert len(EXAMPLE.read_text(encoding="utf-8").splitlines()) <= 30
