"""Tables of a sweep, from records written by hand, against NumPy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from coterie.errors import ConfigError
from coterie.experiments.cells import Cell
from coterie.reporting import comparison

Write = Callable[..., Cell]
FINAL = {"a": [0.80, 0.84, 0.91], "b": [0.70, 0.78, 0.80]}  # accuracy of the last round by seed
T_TWO = 4.302653  # Student's 97.5 % quantile for two degrees of freedom


@pytest.fixture
def cells(tmp_path: Path, write_cell: Write) -> list[Cell]:
    return [
        write_cell(
            tmp_path, {"training.lr": name, "seed": seed}, [[0.4, 0.4], [value - 0.05, value + 0.05]],
            training={"lr": 0.1 if name == "a" else 0.2},
        )
        for name, values in FINAL.items()
        for seed, value in enumerate(values)
    ]  # fmt: skip


def test_the_tidy_table_has_a_line_for_each_run(cells: list[Cell], tmp_path: Path) -> None:
    lines = comparison.tidy(comparison.read(cells, tmp_path))
    assert [(line["training.lr"], line["seed"]) for line in lines] == [(n, s) for n in "ab" for s in range(3)]
    assert lines[4]["personal_accuracy"] == pytest.approx(0.78)
    assert {line["status"] for line in lines} == {"finished"}
    path = comparison.write_csv(lines, tmp_path / "results.csv")
    assert path.read_text().splitlines()[0].startswith("training.lr,seed,personal_accuracy,")


def test_the_mean_and_its_interval(cells: list[Cell], tmp_path: Path) -> None:
    lines = comparison.summary(comparison.read(cells, tmp_path))
    line = next(one for one in lines if one["training.lr"] == "b" and one["metric"] == "personal_accuracy")
    half = T_TWO * np.std(FINAL["b"], ddof=1) / np.sqrt(3)
    assert line["mean"] == pytest.approx(np.mean(FINAL["b"]))
    assert (line["low"], line["high"]) == (
        pytest.approx(line["mean"] - half, abs=1e-6),
        pytest.approx(line["mean"] + half, abs=1e-6),
    )


def test_the_paired_difference_and_its_interval(cells: list[Cell], tmp_path: Path) -> None:
    lines = comparison.compare(comparison.read(cells, tmp_path), "a", "b")
    (line,) = [one for one in lines if one["metric"] == "personal_accuracy"]
    differences = np.subtract(FINAL["a"], FINAL["b"])
    half = T_TWO * differences.std(ddof=1) / np.sqrt(3)
    assert line["difference"] == "a - b"
    assert line["mean"] == pytest.approx(differences.mean())
    assert line["low"] == pytest.approx(differences.mean() - half, abs=1e-6)
    assert line["high"] == pytest.approx(differences.mean() + half, abs=1e-6)


def test_rounds_and_bytes_to_the_target(cells: list[Cell], tmp_path: Path) -> None:
    a, b = comparison.to_target(comparison.read(cells, tmp_path), 0.79)
    assert (a["reached"], a["seeds"], a["rounds"], a["bytes_per_peer"]) == (3, 3, 2.0, 20.0)
    assert (b["reached"], b["seeds"], b["rounds"]) == (1, 3, 2.0)
    (easy, _) = comparison.to_target(comparison.read(cells, tmp_path), 0.4)
    assert (easy["rounds"], easy["bytes_per_peer"]) == (1.0, 10.0)


def test_a_cell_without_records_is_named(cells: list[Cell], tmp_path: Path) -> None:
    (tmp_path / cells[0].name / "result.json").unlink()
    lines = comparison.tidy(comparison.read(cells, tmp_path))
    assert lines[0]["status"] == "not run"
    assert lines[0]["personal_accuracy"] is None
    assert comparison.compare(comparison.read(cells, tmp_path), "a", "b")[0]["seeds"] == 2


def test_only_runs_on_the_same_data_are_paired(tmp_path: Path, write_cell: Write) -> None:
    cells = [
        write_cell(tmp_path, {"partition": name, "seed": 0}, [[0.5]], partition=name)
        for name in ("iid", "dirichlet(0.3)")
    ]
    with pytest.raises(ConfigError, match="different data"):
        comparison.compared_key(cells, "iid", "dirichlet(0.3)")
    with pytest.raises(ConfigError, match="did you mean iid"):
        comparison.compared_key(cells, "iidd", "iid")
