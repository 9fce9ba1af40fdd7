"""Tables of a sweep, from records written by hand, against NumPy."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from coterie.experiments.cells.cell import Cell
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


def test_a_cell_with_unreadable_records_is_broken_and_the_others_are_shown(
    cells: list[Cell], tmp_path: Path
) -> None:
    path = tmp_path / cells[0].name / "metrics.csv"
    path.unlink()
    swept = comparison.read(cells, tmp_path)
    assert [one.unreadable for one in swept] == [True] + 5 * [False]
    assert f"{path} cannot be read" in comparison.tidy(swept)[0]["status"]
    assert comparison.summary(swept)[0]["seeds"] == 2
    assert comparison.to_target(swept, 0.5)[0]["seeds"] == 2


def test_a_numeric_axis_is_a_numeric_column_of_the_parquet_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: dict[str, list[Any]] = {}

    class Frame:
        def __init__(self, columns: dict[str, list[Any]], strict: bool) -> None:
            written.update(columns)

        def write_parquet(self, file: io.BytesIO) -> None:
            file.write(b"PAR1")

    monkeypatch.setattr(comparison.importlib.util, "find_spec", lambda name: name == "polars" or None)
    monkeypatch.setattr(comparison.importlib, "import_module", lambda name: SimpleNamespace(DataFrame=Frame))
    lines = [
        {
            "lr": "0.10",
            "peers": "4",
            "mu": "1",
            "flag": "true",
            "topology": "ring",
            "seed": 0,
            "global": None,
        },
        {"lr": "1e-2", "peers": "8", "mu": ".5", "flag": "false", "topology": "3", "seed": 1, "global": 0.5},
    ]
    comparison.write_parquet(lines, tmp_path / "results.parquet")
    assert written == {
        "lr": [0.1, 0.01], "peers": [4, 8], "mu": [1.0, 0.5], "flag": ["true", "false"],
        "topology": ["ring", "3"], "seed": [0, 1], "global": [None, 0.5],
    }  # fmt: skip
    assert [type(value) for name in ("peers", "mu") for value in written[name]] == [int, int, float, float]
    path = comparison.write_csv(lines, tmp_path / "results.csv")
    assert path.read_text().splitlines()[1].startswith("0.10,4,1,true,ring,0,")


def test_lines_that_trained_otherwise_are_found_beside_local_of_the_same_labels() -> None:
    """Local took 10 steps on few peers and 20 on many; without Local the median, 10, is the measure."""

    def line(algorithm: str | None, peers: int, steps: float | None) -> dict[str, Any]:
        named = {} if algorithm is None else {"algorithm": algorithm}
        numbers = {"mean": 0.5, "std": 0.1, "low": 0.4, "high": 0.6, "seeds": 3}
        return {**named, "peers": peers, "metric": "personal_accuracy", **numbers, "steps_per_peer": steps}

    lines = [
        line("local(best)", 4, 20.0),
        line("kd-pdfl", 4, 10.0),
        line("local(best)", 8, 10.0),
        line("kd-pdfl", 8, 10.0),
    ]
    assert comparison.trained_otherwise(lines) == [False, True, False, False]
    alone = [line(None, 4, steps) for steps in (10.0, 10.0, 30.0, None)]
    assert comparison.trained_otherwise(alone) == [False, False, True, False]
