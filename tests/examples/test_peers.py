"""examples/five_peers.py and examples/sealed_sums.py run, at small scale, and show what they are about."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def printed(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *options: str
) -> list[str]:
    monkeypatch.setattr(sys, "argv", [name, *options])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    return capsys.readouterr().out.splitlines()


def test_real_peers_have_the_simulators_accuracies(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = printed("five_peers.py", monkeypatch, capsys, "--peers", "2", "--rounds", "2")
    (name, *_), *rows = (line.split() for line in lines if line.startswith(("peer ", "clinic-")))
    assert name == "peer"
    assert [row[0] for row in rows] == ["clinic-0", "clinic-1"]
    assert all(0 < float(real) == float(simulated) <= 100 for _, real, simulated in rows)


def test_sealed_sums_learn_as_well_as_plain_ones(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = printed("sealed_sums.py", monkeypatch, capsys, "--peers", "4", "--rounds", "2")
    assert lines[3] == "clinic 3 falls silent; the sum of the others is [4.5, -3.0, 0.75]"
    plain, quantised, masked = (float(line.split()[2]) for line in lines[4:7])
    assert quantised == masked == pytest.approx(plain, abs=0.5)
    assert lines[-1] == "masked and quantised sums give the same models, bit for bit"


def test_what_a_member_of_a_sealed_sum_sends_is_never_the_same_twice(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    example = runpy.run_path(str(EXAMPLES / "sealed_sums.py"))
    example["one_sum"]()
    first = capsys.readouterr().out.splitlines()
    example["one_sum"]()
    second = capsys.readouterr().out.splitlines()
    assert first[-1] == second[-1]
    assert all(one != other for one, other in zip(first[:-1], second[:-1], strict=True))
