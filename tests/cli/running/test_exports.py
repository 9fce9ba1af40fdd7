"""`--csv`, `--parquet` and `--latex` of every command that shows a table."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars
import pytest

Command = Callable[..., Any]
FILES = ("--csv", "t.csv", "--parquet", "t.parquet", "--latex", "t.tex")


def lines(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_a_comparison_is_written_as_files(coterie: Command, small: list[str], folder: Path) -> None:
    done = coterie(
        "compare", "--algorithms", "d-psgd", *small, "--seeds", "2", "--no-plots", "--json", *FILES
    )
    assert done.exit_code == 0, done.stderr
    results = [
        one["personal_accuracy"]["mean"] for one in json.loads(done.stdout) if one["algorithm"] == "d-psgd"
    ]
    found = [line for line in lines(folder / "t.csv") if line["metric"] == "personal_accuracy"]
    assert [line["algorithm"] for line in found] == ["local", "d-psgd"]
    assert float(found[1]["mean"]) == pytest.approx(sum(results) / 2)
    assert len(polars.read_parquet(folder / "t.parquet")) == len(lines(folder / "t.csv"))
    assert r"\begin{tabular}" in (folder / "t.tex").read_text()
    assert "written: t.tex" in done.stderr


def test_a_run_is_written_as_files(coterie: Command, small: list[str], folder: Path) -> None:
    done = coterie("run", "--algorithm", "d-psgd", *small, "--no-plots", "--json", *FILES)
    assert done.exit_code == 0, done.stderr
    result = json.loads(done.stdout)
    found = {line["metric"]: float(line["mean"]) for line in lines(folder / "t.csv")}
    assert found["personal_accuracy"] == pytest.approx(result["personal_accuracy"]["mean"])
    assert found["bytes_sent_per_peer"] == result["bytes_sent_per_peer"]
    assert "gain_over_local" not in found  # there is no Local beside it
    assert len(polars.read_parquet(folder / "t.parquet")) == len(found)
    assert r"d-psgd & " in (folder / "t.tex").read_text()


def test_a_sweep_is_written_as_files(coterie: Command, small: list[str], folder: Path) -> None:
    over = ("--over", "training.lr=0.01,0.1", "--out", "s")
    done = coterie("sweep", *small, *over, "--jobs", "1", *FILES)
    assert done.exit_code == 0, done.stderr
    assert {line["training.lr"] for line in lines(folder / "t.csv")} == {"0.01", "0.1"}
    text = (folder / "t.tex").read_text()
    assert "training.lr & personal accuracy" in text
    assert "% Best setting, chosen by TEST accuracy" in text  # the second table that is shown
    assert text.count(r"\begin{tabular}") == 2


def test_reproductions_are_written_as_files(coterie: Command, folder: Path) -> None:
    done = coterie("reproduce", "kd-pdfl/figure-3", "kd-pdfl/figure-5", "--tables-only", "--no-plots", *FILES)
    assert done.exit_code == 0, done.stderr
    named = {line["table"].split()[0] for line in lines(folder / "t.csv")}
    assert named == {"kd-pdfl/figure-3", "kd-pdfl/figure-5"}
    assert (folder / "t.tex").read_text().count(r"\begin{tabular}") >= 2


def test_labels_are_written_as_files(coterie: Command, folder: Path) -> None:
    done = coterie("data", "show", "--partition", "rotations(2)", "--peers", "4", *FILES)
    assert done.exit_code == 0, done.stderr
    found = lines(folder / "t.csv")
    assert [line["cluster"] for line in found] == ["0", "0", "1", "1"]
    for line in found:
        assert sum(int(line[f"class {digit}"]) for digit in range(10)) == int(line["train"])
    assert len(polars.read_parquet(folder / "t.parquet")) == 4


@pytest.mark.parametrize(
    "command", [("run",), ("compare", "--algorithms", "d-psgd"), ("sweep", "--seeds", "2")]
)
def test_a_place_that_cannot_be_written_is_found_before_anything_runs(
    coterie: Command, small: list[str], folder: Path, command: tuple[str, ...]
) -> None:
    for path, message in (("no/t.tex", "its folder does not exist"), (".", "is a folder; name a file")):
        done = coterie(*command, *small, "--latex", path)
        assert done.exit_code == 2
        assert message in done.stderr
    assert not list(folder.iterdir())


def test_parquet_without_a_library_is_refused_before_anything_runs(
    coterie: Command, small: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    done = coterie("compare", "--algorithms", "d-psgd", *small, "--parquet", "t.parquet")
    assert done.exit_code == 2
    assert "pip install 'coterie[frames]'" in done.stderr
    assert not list(folder.iterdir())
