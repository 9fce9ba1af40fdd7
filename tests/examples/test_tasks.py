"""examples/hospitals_auc.py and examples/regression.py run, at small scale, and show what they are about."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import coterie
from coterie.cli import app

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize(("name", "rows"), [("hospitals_auc.py", 3), ("regression.py", 3)])
def test_they_print_a_table(
    name: str, rows: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [name, "--peers", "4", "--rounds", "2"])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + rows
    assert all(float(line.split()[-1]) == float(line.split()[-1]) for line in lines[1:])


def test_hospitals_admit_different_shares_of_patients() -> None:
    example = runpy.run_path(str(EXAMPLES / "hospitals_auc.py"))
    shares = [example["hospital"](number, 6, 0, 1000)[1].mean() for number in range(6)]
    assert shares == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.6], abs=0.002)


def test_hospitals_gain_from_each_other_in_auc() -> None:
    load = runpy.run_path(str(EXAMPLES / "hospitals_auc.py"))["load"]
    auc = {
        algorithm: coterie.simulate(
            algorithm,
            data=load(4, seed=0),
            task="binary",
            metrics=["auc"],
            model="mlp(16)",
            rounds=8,
            training={"lr": 0.2, "batch_size": 16},
        ).personal_scores.mean()
        for algorithm in ("local", "d-psgd")
    }
    assert auc["d-psgd"] > auc["local"] + 0.01


def test_the_table_of_a_regression_says_that_lower_is_better(tmp_path: Path) -> None:
    asked = [
        "--data",
        f"{EXAMPLES / 'regression.py'}:load",
        "--task",
        "regression",
        "--peers",
        "4",
        "--rounds",
        "2",
    ]
    done = CliRunner().invoke(
        app, ["compare", "--algorithms", "local,d-psgd", *asked, "--run-dir", str(tmp_path / "runs")]
    )
    assert done.exit_code == 0, done.output
    assert "rmse on each peer's own test data (lower is better)" in done.output
    assert (tmp_path / "runs" / "per_peer_rmse.png").is_file()
