"""Data files in the simulator: one to be split, or several, one for each peer; the rules of real peers."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import coterie
from coterie.cli import app
from coterie.data.own.one_peer import Columns, load_file, load_own
from coterie.experiments.setup.config import resolve
from coterie.experiments.setup.contents import contents
from coterie.experiments.setup.digest import experiment_digest

RNG = np.random.default_rng(1)
QUICK: dict[str, Any] = {"model": "mlr", "rounds": 1, "execution": {"executor": "looped"}}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def points(n: int) -> tuple[Any, Any]:
    y = np.arange(n) % 3
    return (np.eye(3)[y] + RNG.normal(size=(n, 3))).round(3), y


def write_csv(path: Path, n: int = 60, header: str = "a,b,c,label", ward: str = "") -> tuple[Any, Any]:
    x, y = points(n)
    lines = [header]
    for place, (row, label) in enumerate(zip(x.tolist(), y.tolist(), strict=True)):
        lines.append(",".join(map(str, [*row, *([f"{ward}{place % 2}"] if ward else []), label])))
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
    return x, y


def pool(federation: coterie.Federation) -> Any:
    rows = np.column_stack((federation.x.numpy(), federation.y.numpy()))  # type: ignore[union-attr]
    return rows[np.lexsort(rows.T)]


def test_one_file_is_split_by_the_partition(folder: Path) -> None:
    x, y = write_csv(folder / "ward.csv")
    run = coterie.simulate(data="ward.csv", partition="iid", peers=4, **QUICK)
    assert run.experiment.data == f"{folder}/ward.csv"
    assert run.result()["names"] is None
    from coterie.experiments.setup.prepare import Objects, deal

    federation, _ = deal(run.experiment, Objects())
    expected = np.column_stack((x, y)).astype(np.float32)
    assert np.allclose(pool(federation), expected[np.lexsort(expected.T)])
    assert federation.train.sizes.tolist() == [12, 12, 12, 12]  # of 48: a fifth of each class is held out


@pytest.mark.parametrize("ending", ["csv", "parquet", "npz"])
def test_a_column_of_any_kind_of_file_splits_and_names(folder: Path, ending: str) -> None:
    x, y = write_csv(folder / "all.csv", header="a,b,c,ward,label", ward="ward-")
    wards = np.array([f"ward-{place % 2}" for place in range(60)])
    if ending == "parquet":
        pandas = pytest.importorskip("pandas")
        pandas.read_csv(folder / "all.csv").to_parquet(folder / "all.parquet")
    elif ending == "npz":
        np.savez(folder / "all.npz", x=x, y=y, ward=wards)
    run = coterie.simulate(data=f"all.{ending}", partition="natural(ward)", peers=2, **QUICK)
    assert run.names == ("ward-0", "ward-1")
    assert run.module[1].in_features == 3  # the column is no feature


def test_kept_columns_of_an_npz_file_with_a_test_set(folder: Path) -> None:
    x, y = points(20)
    np.savez(folder / "a.npz", x=x, y=y, x_test=x[:6], y_test=y[:6], ward=y, ward_test=y[:6])
    found = load_file(folder / "a.npz", columns=Columns(kept=("ward",)))
    assert [len(values) for values in found.kept["ward"]] == [20, 6]
    assert len(found.arrays) == 4
    np.savez(folder / "b.npz", x=x, y=y, x_test=x[:6], y_test=y[:6], ward=y)
    with pytest.raises(coterie.CoterieError, match="there is no array 'ward_test'"):
        load_file(folder / "b.npz", columns=Columns(kept=("ward",)))


def test_each_of_several_files_is_a_peer_of_its_name(folder: Path) -> None:
    for name, n in (("south", 30), ("north", 60), ("kids", 45)):
        write_csv(folder / "wards" / f"{name}.csv", n)
    run = coterie.simulate(data="wards/*.csv", run_dir="out", **QUICK)
    assert run.names == ("kids", "north", "south")
    assert run.peers == 3
    with (folder / "out" / "peers.csv").open() as file:
        sizes = [[int(row[part]) for part in ("train", "validation", "test")] for row in csv.DictReader(file)]
    assert [sum(parts) for parts in sizes] == [45, 60, 30]


def test_files_of_one_name_in_two_folders_are_two_peers(folder: Path) -> None:
    for ward in ("north", "south"):
        write_csv(folder / ward / "data.csv")
    assert resolve({"data": "*/data.csv"}).names == ("north-data", "south-data")


def test_a_column_of_labels_may_have_any_name(folder: Path) -> None:
    _, y = write_csv(folder / "ill.csv", header="a,ill,label,last")
    table = np.loadtxt(folder / "ill.csv", delimiter=",", skiprows=1)
    arrays = load_own(folder / "ill.csv", columns=Columns(label="last"))
    assert np.array_equal(arrays[1], y)
    assert np.allclose(arrays[0], table[:, :3], atol=1e-6)  # type: ignore[arg-type]
    assert resolve({"data": "ill.csv(label=last)"}).data == f"{folder}/ill.csv(label=last)"


def test_data_files_count_by_content(folder: Path) -> None:
    write_csv(folder / "wards" / "a.csv")
    write_csv(folder / "wards" / "b.csv")
    before = resolve({"data": "wards/*.csv"})
    digests, digest = contents(before), experiment_digest(before)
    assert set(digests) == {f"{folder}/wards/a.csv", f"{folder}/wards/b.csv"}
    write_csv(folder / "wards" / "b.csv", 61)
    after = resolve({"data": "wards/*.csv"})
    assert contents(after) != digests
    assert experiment_digest(after) != digest


def test_a_run_does_not_go_on_with_other_data(folder: Path) -> None:
    write_csv(folder / "ward.csv")
    options = ["--peers", "3", "--rounds", "1", "--no-plots", "--quiet", "--model", "mlr"]
    done = CliRunner().invoke(app, ["run", "--data", "ward.csv", *options, "--run-dir", "out"])
    assert done.exit_code == 0, done.stderr
    write_csv(folder / "ward.csv", 61)
    done = CliRunner().invoke(app, ["run", "--resume", "out"])
    assert done.exit_code == 2
    assert "ward.csv changed since the run in out began" in done.stderr


@pytest.mark.parametrize(
    ("data", "more", "said"),
    [
        ("none.csv", [], ["there is no file", "none.csv"]),
        ("nowhere/*.csv", [], ["no file matches", "nowhere/*.csv"]),
        ("ward.csv(label=ill)", [], ["no column 'ill' of labels", "did you mean label?"]),
        ("ward.csv(labl=c)", [], ["no argument 'labl'", "did you mean label"]),
        ("ward.csv", ["--partition", "natural(wrd)"], ["no column 'wrd'"]),
        ("named.csv", [], ["the column 'ward' has 'w0'", "natural(ward)"]),
        ("bare.csv", [], ["the first line holds numbers"]),
        ("empty.csv", [], ["has a header, but no samples"]),
        ("ragged.csv", [], ["the header names 3 columns, and line 3 has 2"]),
        ("high.csv", [], ["high.csv", "labels run from 1 to 3", "--set classes=4"]),
        ("both/*.csv", [], ["must have the same features", "not both have 'c', 'd'"]),
        ("both/*.csv", ["--peers", "5"], ["the data has 2 peers but the experiment 5"]),
        ("both/*.csv", ["--partition", "dirichlet(1)"], ["already belong to peers"]),
        ("ward.npz(label=y)", [], ["labels of an .npz file are its array y"]),
        ("bad.parquet", [], ["is not a readable .parquet file"]),
    ],
)
def test_mistakes_get_a_sentence(folder: Path, data: str, more: list[str], said: list[str]) -> None:
    write_csv(folder / "ward.csv")
    write_csv(folder / "named.csv", header="a,b,c,ward,label", ward="w")
    write_csv(folder / "both" / "one.csv")
    same = "a,b,c,label" if "--peers" in more or "--partition" in more else "a,b,d,label"
    write_csv(folder / "both" / "two.csv", header=same)
    (folder / "bare.csv").write_text("1,2,0\n3,4,1\n")
    (folder / "empty.csv").write_text("a,b,label\n")
    (folder / "ragged.csv").write_text("a,b,label\n1,2,0\n1,2\n")
    (folder / "high.csv").write_text("a,label\n" + "".join(f"{n},{1 + n % 3}\n" for n in range(30)))
    (folder / "bad.parquet").write_bytes(b"PAR1 no")
    np.savez(folder / "ward.npz", x=np.zeros((4, 2)), y=np.arange(4))
    peers = [] if "*" in data else ["--peers", "3"]
    done = CliRunner().invoke(app, ["run", "--data", data, *peers, *more, "--rounds", "1", "--quiet"])
    assert done.exit_code == 2, done.output
    assert all(part in done.stderr for part in said), done.stderr
    assert not (folder / "runs").exists()


def test_parquet_without_its_library_says_how_to_get_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "a.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(__import__("sys").modules, "pyarrow.parquet", None)
    with pytest.raises(coterie.CoterieError, match=r"needs pyarrow.*coterie\[parquet\]"):
        load_own(folder / "a.parquet")


def test_data_show_and_json_name_the_files(folder: Path) -> None:
    for name in ("north", "south"):
        write_csv(folder / "wards" / f"{name}.csv")
    shown = CliRunner().invoke(app, ["data", "show", "--data", "wards/*.csv"])
    assert "wards/*.csv, own, 2 peers" in " ".join(shown.stdout.split())
    assert "north" in shown.stdout
    options = ["--data", "wards/*.csv", "--rounds", "1", "--json", "--quiet", "--no-plots", "--model", "mlr"]
    assert json.loads(CliRunner().invoke(app, ["run", *options]).stdout)["names"] == ["north", "south"]
