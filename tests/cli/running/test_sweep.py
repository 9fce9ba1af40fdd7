"""`coterie sweep`."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Command = Callable[..., Any]


def sweep(coterie: Command, small: list[str], *options: str) -> Any:
    return coterie("sweep", *small, "--jobs", "1", *options)


def test_one_tidy_table_and_what_follows_from_it(coterie: Command, small: list[str], folder: Path) -> None:
    done = sweep(
        coterie, small, "--over", "algorithm=local,d-psgd(metropolis)", "--over", "training.lr=0.05,0.2",
        "--seeds", "2", "--compare", "d-psgd(metropolis)", "local", "--target", "0.3", "--out", "s", "--json",
    )  # fmt: skip
    assert done.exit_code == 0, done.stderr
    tables = json.loads(done.stdout)
    assert tables.keys() == {"results", "summary", "comparison", "targets", "chosen"}
    with open(folder / "s" / "results.csv", newline="") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 8
    assert {(line["algorithm"], line["training.lr"], line["seed"]) for line in lines} == {
        (name, lr, seed)
        for name in ("local", "d-psgd(metropolis)")
        for lr in ("0.05", "0.2")
        for seed in "01"
    }
    assert {line["training.lr"] for line in tables["comparison"]} == {"0.05", "0.2"}
    assert {"summary.csv", "comparison.csv", "targets.csv"} <= {
        path.name for path in (folder / "s").iterdir()
    }


def test_the_same_command_goes_on_where_it_was(coterie: Command, small: list[str], folder: Path) -> None:
    options = ("--over", "training.lr=0.05,0.2")
    first = sweep(coterie, small, *options)
    (made,) = (folder / "runs").iterdir()
    cell = next((made / "cells").glob("*/facts.json"))
    before = (made / "results.csv").read_text()
    assert first.stderr.count(": finished") == 2
    cell.unlink()  # as if it had been killed just before the end
    again = sweep(coterie, small, *options)
    assert again.stderr.count(": finished") == 1
    assert (made / "results.csv").read_text().splitlines()[0] == before.splitlines()[0]


def test_a_file_and_flags_together(coterie: Command, folder: Path) -> None:
    (folder / "e.toml").write_text(
        'data = "digits"\nmodel = "mlr"\npeers = 4\nrounds = 1\nalgorithm = "d-psgd"\n'
    )
    done = coterie(
        "sweep", "e.toml", "--rounds", "2", "--over", "topology=ring,full", "--jobs", "1", "--json"
    )
    assert done.exit_code == 0, done.stderr
    assert [line["topology"] for line in json.loads(done.stdout)["results"]] == ["ring", "full"]


def test_a_hub_gets_its_star(coterie: Command, small: list[str]) -> None:
    done = sweep(coterie, small, "--over", "algorithm=d-psgd,fedavg", "--topology", "ring")
    assert done.exit_code == 0, done.stderr
    assert done.stderr.count("fedavg goes through a hub: topology star instead of ring") == 1
    assert "personal_accuracy" in done.stdout


def test_a_broken_cell_does_not_stop_the_others(coterie: Command, small: list[str]) -> None:
    done = sweep(coterie, small, "--over", "training.lr=0.1,1e38", "--json", "--set", "training.clip=0")
    assert done.exit_code == 1
    fine, wild = json.loads(done.stdout)["results"]
    assert fine["status"] == "finished"
    assert "became NaN or infinite" in wild["status"]


def test_all_cells_are_checked_before_the_first_one_trains(
    coterie: Command, small: list[str], folder: Path
) -> None:
    axes = ("--over", "algorithm=local,oracle", "--over", "partition=rotations(2),iid", "--seeds", "2")
    done = sweep(coterie, small, *axes, "--out", "s")
    assert done.exit_code == 2
    assert done.stderr.count("oracle, iid, seed 0: algorithm 'oracle' must be told the true clusters") == 1
    assert "seed 1" not in done.stderr
    assert list(folder.iterdir()) == []


def test_unreadable_records_do_not_hide_the_others(coterie: Command, small: list[str], folder: Path) -> None:
    options = ("--over", "training.lr=0.05,0.2", "--out", "s", "--json")
    assert sweep(coterie, small, *options).exit_code == 0
    path = next((folder / "s" / "cells").glob("*/metrics.csv"))
    path.unlink()
    for more in ((), ("--tables-only",)):
        done = sweep(coterie, small, *options, *more)
        assert done.exit_code == 1, done.stderr
        statuses = {
            line["status"] == "finished": line["status"] for line in json.loads(done.stdout)["results"]
        }
        assert statuses.keys() == {True, False}
        assert str(path.relative_to(folder)) in statuses[False]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "what to sweep over"),
        (["--over", "trainin.lr=1,2"], "did you mean training"),
        (["--over", "algorithm=loca,d-psgd"], "did you mean local"),
        (["--over", "algorithm=local,d-psgd", "--compare", "local", "d-psg"], "did you mean d-psgd"),
        (
            ["--over", "algorithm=local", "--over", "peers=4,5", "--compare", "local", "4"],
            "two different keys",
        ),
        (["--over", "algorithm=local,d-psgd", "--compare", "local", "local"], "the same value twice"),
        (
            ["--over", "partition=iid,dirichlet(0.3)", "--seeds", "2", "--compare", "iid", "dirichlet(0.3)"],
            "different data",
        ),
        (
            [
                "--over",
                "training.lr=0.1,0.2",
                "--over",
                "training.momentum=0.1,0.2",
                "--compare",
                "0.1",
                "0.2",
            ],
            "training.lr and training.momentum both take these values",
        ),
        (["--over", "training.lr=0.1,0.10"], "0.1 and 0.10 are the same value"),
        (["--over", "execution.workers=1,2"], "1 and 2 would share one run"),
        (["--over", "data_dir=here,there"], "here and there would share one run"),
        (["--seeds", "2", "--target", "80"], "between 0 and 1"),
        (
            ["--seeds", "2", "--data", "mnist", "--data-dir", "nowhere"],
            "nowhere does not exist",
        ),
        (["--seeds", "2", "--data", "mnist"], "--data-dir"),
    ],
)
def test_mistakes_are_found_before_anything_runs(
    coterie: Command, folder: Path, options: list[str], message: str
) -> None:
    done = coterie("sweep", *options)
    assert done.exit_code == 2
    assert message in done.stderr
    assert not list(folder.iterdir())


def test_without_parquet_writers_it_says_so(
    coterie: Command, small: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from coterie.reporting import comparison

    monkeypatch.setattr(comparison.importlib.util, "find_spec", lambda name: None)
    done = sweep(coterie, small, "--seeds", "2", "--out", "s")
    assert done.exit_code == 0, done.stderr
    assert "install polars" in done.stderr
    assert not (folder / "s" / "results.parquet").exists()


def test_a_parquet_file_is_named_when_it_is_written(
    coterie: Command, small: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from coterie.reporting import comparison

    monkeypatch.setattr(comparison, "write_parquet", lambda lines, path: path)
    done = sweep(coterie, small, "--seeds", "2", "--out", "s")
    assert f"written: {Path('s') / 'results.parquet'}" in done.stderr


def test_a_difference_has_a_sign_and_its_spread_has_none() -> None:
    from coterie.cli.running.cells import _text

    assert _text("comparison", "mean", 0.02, True) == "+2.00"
    assert _text("comparison", "low", -0.01, True) == "-1.00"
    assert _text("comparison", "std", 0.013, True) == "1.30"


def test_an_interruption_before_the_first_cell_says_how_to_go_on(
    coterie: Command, small: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from coterie.cli.running import sweep as command

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "plan_cells", interrupt)
    done = sweep(coterie, small, "--seeds", "2")
    assert done.exit_code == 130
    assert "go on with: coterie" in done.stderr


def test_local_work_is_equal_unless_it_is_swept_over(coterie: Command, small: list[str]) -> None:
    options = ("--over", "algorithm=local,random-gossip", "--json")
    lines = json.loads(sweep(coterie, small, *options).stdout)["results"]
    assert [line["work"] for line in lines] == ["equal", "equal"]
    assert lines[0]["gradient_steps_per_peer"] == lines[1]["gradient_steps_per_peer"]
    done = sweep(
        coterie, small, "--over", "algorithm=local,random-gossip", "--over", "training.work=own,equal"
    )
    assert done.exit_code == 0, done.stderr
    assert "Local work as each method sets it" in done.stdout
    assert "≠" in done.stdout


@pytest.mark.parametrize(
    "command",
    [
        ["sweep", "--over", "algorithm=d-psgd,loca"],
        ["sweep", "--over", "algorithm=random-gossip(3)", "--over", "data=digits,minst"],
        ["sweep", "--over", "algorithm=random-gossip(3)", "--over", "training.lrr=1,2"],
        ["compare", "--algorithms", "d-psgd,loca"],
        ["compare", "--algorithms", "random-gossip(3)", "--data", "minst"],
    ],
)
def test_no_algorithm_is_imported_before_all_names_are_known(command: list[str]) -> None:
    code = f"""
import sys
from typer.testing import CliRunner
from coterie.cli import app
done = CliRunner().invoke(app, {command!r})
assert done.exit_code == 2 and "did you mean" in done.stderr, done.stderr
assert "torch" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def words(done: Any) -> str:
    """What was printed, wherever its lines were broken."""
    return " ".join(done.stdout.split())


def mean_of(lines: list[dict[str, Any]], column: str, lr: str) -> float:
    values = [line[column] for line in lines if line["training.lr"] == lr]
    return sum(values) / len(values)


def test_validation_data_choose_where_there_are_any(coterie: Command, small: list[str]) -> None:
    """By hand from the lines of the runs: the best mean over seeds, and the test score beside it."""
    options = ("--over", "training.lr=0.0001,0.3", "--seeds", "2", "--out", "s")
    with_some = (*options, "--set", "splitting.validation=0.2")
    tables = json.loads(sweep(coterie, small, *with_some, "--json").stdout)
    (chosen,) = tables["chosen"]
    scores = {lr: mean_of(tables["results"], "validation_accuracy", lr) for lr in ("0.0001", "0.3")}
    assert chosen["training.lr"] == max(scores, key=lambda lr: scores[lr]) == "0.3"
    assert chosen["chosen_by"] == "validation"
    assert chosen["settings"] == 2
    assert chosen["validation_accuracy"] == pytest.approx(scores["0.3"])
    expected = mean_of(tables["results"], "personal_accuracy", "0.3")
    assert chosen["personal_accuracy"] == pytest.approx(expected)
    shown = words(sweep(coterie, small, *with_some))
    assert "chosen by validation accuracy; test data had no say" in shown
    by_test = words(sweep(coterie, small, *with_some, "--select", "test"))
    assert "chosen by TEST accuracy: being chosen makes its number too good" in by_test


def test_a_choice_by_test_data_says_so(coterie: Command, small: list[str], folder: Path) -> None:
    options = ("--over", "training.lr=0.1,0.2", "--out", "s")
    done = sweep(coterie, small, *options)
    assert "chosen by TEST accuracy" in words(done)
    assert "chosen_by" in (folder / "s" / "chosen.csv").read_text()
    refused = sweep(coterie, small, *options, "--select", "validation")
    assert refused.exit_code == 2
    assert "add --set splitting.validation=0.2" in refused.stderr


def test_a_setting_is_chosen_for_each_algorithm_on_each_data(coterie: Command, small: list[str]) -> None:
    axes = ("--over", "algorithm=local,d-psgd", "--over", "partition=iid,dirichlet(0.3)")
    more = ("--over", "training.lr=0.1,0.2", "--json")
    chosen = json.loads(sweep(coterie, small, *axes, *more).stdout)["chosen"]
    assert sorted((line["algorithm"], line["partition"]) for line in chosen) == [
        ("d-psgd", "dirichlet(0.3)"), ("d-psgd", "iid"), ("local", "dirichlet(0.3)"), ("local", "iid"),
    ]  # fmt: skip
    one = ("--over", "algorithm=local,d-psgd", "--over", "partition=iid,dirichlet(0.3)", "--json")
    chosen = json.loads(sweep(coterie, small, *one).stdout)["chosen"]  # of the algorithms themselves
    assert [line["partition"] for line in chosen] == ["iid", "dirichlet(0.3)"]
    assert "chosen" not in json.loads(sweep(coterie, small, "--seeds", "2", "--json").stdout)


def test_optuna_searches_and_says_which_data_chose(coterie: Command, small: list[str], folder: Path) -> None:
    over = ("--over", "training.lr=log(0.01,1)", "--out", "found")
    done = coterie("sweep", *small, *over, "--optuna", "2", "--json")
    assert done.exit_code == 0, done.stderr
    assert len(json.loads(done.stdout)["results"]) == 2
    assert "trial 2: training.lr" in done.stderr
    assert "best by TEST data" in done.stderr
    assert (folder / "found" / "study.journal").is_file()
    for options, message in (
        (["--optuna", "0"], "greater than or equal to 1"),
        (["--optuna", "2", "--jobs", "2"], "leave out --jobs"),
        ([], "is a range of numbers"),
    ):
        refused = coterie("sweep", *small, *over, *options)
        assert refused.exit_code == 2
        assert message in refused.stderr
