"""`coterie reproduce`, on a file of one's own and small runs on the digits."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Command = Callable[..., Any]

TABLE = """
title = "Mixing helps on the common test set"
source = "nobody, never"
shows = "d-psgd is above local."
setting = "digits"
metrics = ["global", "personal"]

[experiment]
data = "digits"
model = "mlr"
topology = "ring"
peers = 4
rounds = 2
execution = { executor = "stacked" }

[scales]
smoke = { note = "small" }
laptop = { experiment = { rounds = 3 } }
paper = {}

[[columns]]
name = "dir"
experiment = { partition = "dirichlet(0.3)" }

[[rows]]
name = "local"
experiment = { algorithm = "local" }
printed.dir = 50.0

[[rows]]
name = "d-psgd"
experiment = { algorithm = "d-psgd" }
printed.dir = { value = 70.0, note = "made up" }

[[figures]]
form = "curves"

[[claims]]
says = "mixing helps"
higher = "d-psgd"
lower = "local"
visible = "smoke"
"""
BROKEN = """
[[rows]]
name = "wild"
experiment = { training = { lr = 1e38, clip = 0.0 } }
"""
IMPOSSIBLE = """
[[rows]]
name = "oracle"
experiment = { algorithm = "oracle" }
"""


@pytest.fixture
def table(folder: Path) -> str:
    (folder / "own.toml").write_text(TABLE)
    return "own.toml"


def test_list_names_everything(coterie: Command) -> None:
    done = coterie("reproduce", "list")
    assert done.exit_code == 0, done.stderr
    assert "pfedkd-wcl/table-1" in done.stdout
    entries = json.loads(coterie("reproduce", "list", "--json").stdout)
    assert {"name", "title", "source", "shows", "scales"} <= entries[0].keys()


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("ppdl/tabel-1", "did you mean ppdl/table-1"),
        ("pdpl", "did you mean ppdl"),
        ("al", "did you mean all"),
    ],
)
def test_a_wrong_name_gets_the_nearest_one(coterie: Command, name: str, hint: str) -> None:
    done = coterie("reproduce", name)
    assert done.exit_code == 2
    assert hint in done.stderr


def test_data_files_must_be_known_before_anything_runs(coterie: Command, folder: Path) -> None:
    done = coterie("reproduce", "ppdl/table-1")
    assert done.exit_code == 2
    assert "--data-dir" in done.stderr
    assert not list(folder.iterdir())


def test_the_folder_of_data_files_must_exist(
    coterie: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COTERIE_DATA", str(folder / "nowhere"))
    done = coterie("reproduce", "ppdl/table-1")
    assert done.exit_code == 2
    assert "nowhere does not exist; data set" in done.stderr
    assert "COTERIE_DATA" in done.stderr
    assert not list(folder.iterdir())


def test_data_that_need_no_files_do_not_care_about_the_folder(
    coterie: Command, table: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COTERIE_DATA", str(folder / "nowhere"))
    done = coterie("reproduce", table, "--jobs", "1", "--no-plots", "--only", "local")
    assert done.exit_code == 0, done.stderr


def test_an_interruption_before_the_first_cell_says_how_to_go_on(
    coterie: Command, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from coterie.cli.running import reproduce as command

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "_plans", interrupt)
    done = coterie("reproduce", table)
    assert done.exit_code == 130
    assert "go on with: coterie" in done.stderr


def test_the_table_stands_beside_the_papers(coterie: Command, table: str, folder: Path) -> None:
    done = coterie("reproduce", table, "--seeds", "2", "--jobs", "1", "--out", "out")
    assert done.exit_code == 0, done.stderr
    assert "(70.0†)" in done.stdout
    assert "mixing helps: HOLDS" in done.stdout
    made = folder / "out" / "own" / "smoke"
    assert {path.name for path in made.iterdir()} == {
        "table.md", "numbers.csv", "cells.csv", "results.json", "figure-1.png", "figure-1.svg", "report.html",
    }  # fmt: skip
    assert len(list((folder / "out" / "cells").glob("*/result.json"))) == 4


def test_deleted_tables_are_rebuilt_from_the_records(coterie: Command, table: str, folder: Path) -> None:
    options = ("--jobs", "1", "--out", "out", "--json")
    first = coterie("reproduce", table, *options)
    made = folder / "out" / "own"
    before = (made / "smoke" / "table.md").read_text()
    shutil.rmtree(made)
    again = coterie("reproduce", table, *options, "--tables-only")
    assert json.loads(again.stdout) == json.loads(first.stdout)
    assert (made / "smoke" / "table.md").read_text() == before
    assert "finished" not in again.stderr


def test_tables_need_records_and_no_data_files(
    coterie: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COTERIE_DATA", raising=False)
    options = ("reproduce", "dfedpgp/table-4", "--scale", "laptop", "--out", "out", "--no-plots", "--json")
    assert coterie(*options).exit_code == 2
    done = coterie(*options, "--tables-only")
    assert done.exit_code == 0, done.stderr
    (result,) = json.loads(done.stdout)
    assert len(result["missing"]) == 10


def test_two_files_of_one_name_are_refused(coterie: Command, table: str, folder: Path) -> None:
    other = folder / "elsewhere"
    other.mkdir()
    (other / table).write_text(TABLE.replace("digits", "synthetic(0.5,0.5)"))
    done = coterie("reproduce", table, f"elsewhere/{table}")
    assert done.exit_code == 2
    assert "two files are called own.toml" in done.stderr
    (folder / "cells.toml").write_text(TABLE)
    done = coterie("reproduce", "cells.toml")
    assert done.exit_code == 2
    assert "another name" in done.stderr
    assert not (folder / "reproductions").exists()


def test_another_scale_is_another_table(coterie: Command, table: str, folder: Path) -> None:
    coterie("reproduce", table, "--jobs", "1", "--out", "out", "--no-plots")
    done = coterie("reproduce", table, "--scale", "laptop", "--out", "out", "--json", "--tables-only")
    (result,) = json.loads(done.stdout)
    assert len(result["missing"]) == 2
    assert {claim["status"] for claim in result["claims"]} == {"unknown"}


def test_only_some_rows_or_columns_are_run(coterie: Command, table: str, folder: Path) -> None:
    options = ("--jobs", "1", "--out", "out", "--no-plots", "--json")
    done = coterie("reproduce", table, "--only", "local", *options)
    assert done.exit_code == 0, done.stderr
    (result,) = json.loads(done.stdout)
    assert [cell["row"] for cell in result["missing"]] == ["d-psgd"]
    done = coterie("reproduce", table, "--only", "dir", "--only", "d-psgd", *options)
    (result,) = json.loads(done.stdout)
    assert result["missing"] == []
    wrong = coterie("reproduce", table, "--only", "locl", *options)
    assert wrong.exit_code == 2
    assert "did you mean local" in wrong.stderr


def test_a_broken_cell_is_reported_while_the_others_finish(coterie: Command, folder: Path) -> None:
    (folder / "own.toml").write_text(TABLE.replace("[[figures]]", BROKEN + "\n[[figures]]"))
    done = coterie("reproduce", "own.toml", "--jobs", "1", "--out", "out")
    assert done.exit_code == 1
    assert "wild, dir, seed 0: broken (the loss of peer" in done.stderr
    assert "mixing helps: HOLDS" in done.stdout
    assert "Broken cells" in done.stdout


def test_a_row_that_cannot_run_is_found_before_the_others_train(coterie: Command, folder: Path) -> None:
    (folder / "own.toml").write_text(TABLE.replace("[[figures]]", IMPOSSIBLE + "\n[[figures]]"))
    done = coterie("reproduce", "own.toml", "--jobs", "1", "--out", "out")
    assert done.exit_code == 2
    assert "oracle, dir, seed 0: algorithm 'oracle' must be told the true clusters" in done.stderr
    assert [path.name for path in folder.iterdir()] == ["own.toml"]
    done = coterie("reproduce", "own.toml", "--only", "local", "--jobs", "1", "--out", "out", "--no-plots")
    assert done.exit_code == 0, done.stderr  # the others can be had by themselves


def test_methods_that_train_longer_are_marked(coterie: Command, table: str, folder: Path) -> None:
    """d-psgd trains for three epochs where local trains for one."""
    options = ("reproduce", "--jobs", "1", "--out", "out", "--no-plots")
    assert "≠" not in coterie(*options, table).stdout
    longer = 'experiment = { algorithm = "d-psgd", training = { epochs = 3 } }'
    (folder / "longer.toml").write_text(TABLE.replace('experiment = { algorithm = "d-psgd" }', longer))
    done = coterie(*options, "longer.toml")
    assert done.exit_code == 0, done.stderr
    written = folder / "out" / "longer" / "smoke"
    steps = json.loads((written / "results.json").read_text())["gradient_steps_per_peer"]["dir"]
    assert steps["d-psgd"] == 3 * steps["local"]
    counted = f"- dir: local {steps['local']:.0f}, d-psgd {steps['d-psgd']:.0f}≠\n"
    for text in (done.stdout, (written / "table.md").read_text()):
        assert counted in text
        assert "≠ (70.0†)" in text
        assert "≠: its steps differ from those of Local" in text


def test_unreadable_records_break_their_cell_alone(coterie: Command, table: str, folder: Path) -> None:
    options = ("reproduce", table, "--jobs", "1", "--out", "out", "--no-plots")
    assert coterie(*options).exit_code == 0
    path = next((folder / "out" / "cells").glob("local*/result.json"))
    path.write_bytes(path.read_bytes()[:50])
    before = sorted(path.parent.iterdir())
    for more in ((), ("--tables-only",)):
        done = coterie(*options, "--json", *more)
        assert done.exit_code == 1
        (result,) = json.loads(done.stdout)
        assert [(cell["row"], cell["seed"]) for cell in result["broken"]] == [("local", 0)]
        assert f"{path.relative_to(folder)} cannot be read" in result["broken"][0]["error"]
        numbers = {(line["row"], line["metric"]): line["mean"] for line in result["numbers"]}
        assert numbers["d-psgd", "global"] is not None
        assert numbers["local", "global"] is None
    assert sorted(path.parent.iterdir()) == before  # nothing is deleted


def test_what_has_none_of_the_names_is_skipped(coterie: Command, table: str, folder: Path) -> None:
    (folder / "other.toml").write_text(TABLE.replace('"d-psgd"', '"gossip-fedavg"'))
    options = ("--jobs", "1", "--out", "out", "--no-plots", "--json")
    done = coterie("reproduce", table, "other.toml", "--only", "gossip-fedavg", *options)
    assert done.exit_code == 0, done.stderr
    assert [result["name"] for result in json.loads(done.stdout)] == ["other"]
    assert "note: skipped, for lack of a row or column called gossip-fedavg: own\n" in done.stderr
    assert len(list((folder / "out" / "cells").glob("*/result.json"))) == 1
    wrong = coterie("reproduce", table, "other.toml", "--only", "gossip-fedav", *options)
    assert wrong.exit_code == 2
    assert "did you mean gossip-fedavg" in wrong.stderr


def test_whatever_is_wrong_with_a_cell_its_row_and_column_are_named(coterie: Command, folder: Path) -> None:
    """A topology that does not fit is another kind of error than an unknown name."""
    (folder / "own.toml").write_text(TABLE.replace('topology = "ring"', 'topology = "grid(3,3)"'))
    done = coterie("reproduce", "own.toml")
    assert done.exit_code == 2
    assert "own, row local, column dir, scale smoke: grid(3,3)" in done.stderr


def test_an_interruption_says_how_to_go_on(table: str, folder: Path) -> None:
    """Ctrl-C in a real process with two workers, after the first cell; the same command does the rest."""
    (folder / "own.toml").write_text(TABLE.replace("rounds = 2", "rounds = 100"))
    command = [
        sys.executable,
        "-m",
        "coterie",
        "reproduce",
        table,
        "--seeds",
        "2",
        "--jobs",
        "2",
        "--no-plots",
    ]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        assert process.stderr is not None
        while "finished" not in (line := process.stderr.readline()):
            assert line, "the process ended before a cell was finished"
        process.send_signal(2)
        rest = process.stderr.read()
    if process.returncode == 0:
        pytest.fail("it was too quick to be interrupted: give it more rounds")
    assert process.returncode == 130
    assert f"go on with: coterie reproduce {table}" in rest
    kept = len(list((folder / "reproductions" / "cells").glob("*/facts.json")))
    assert 1 <= kept < 4
    again = subprocess.run(command, capture_output=True, text=True, check=False, env=dict(os.environ))
    assert again.returncode == 0, again.stderr
    assert again.stderr.count(": finished") == 4 - kept
