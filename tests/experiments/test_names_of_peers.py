"""Peers' names: where they come from, and where they are shown."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import coterie
from coterie.cli import app
from coterie.errors import ConfigError
from coterie.experiments.setup.config import resolve
from coterie.experiments.setup.digest import experiment_digest, fingerprint
from coterie.reporting.plots import per_peer_scores, who_learned_from_whom
from coterie.reporting.tables import by_peer

RNG = np.random.default_rng(0)


def some_data(n: int = 40) -> tuple[Any, Any]:
    y = RNG.integers(0, 3, n)
    return np.eye(3)[y] + RNG.normal(size=(n, 3)), y


WARDS = {"north": some_data(), "south": some_data(60), "kids": some_data(50)}
QUICK: dict[str, Any] = {"model": "mlr", "rounds": 1, "execution": {"executor": "looped"}}


def test_keys_of_a_dict_are_names() -> None:
    federation = coterie.from_peers(WARDS)
    assert federation.names == ("north", "south", "kids")
    assert (federation.train.sizes + federation.test.sizes).tolist() == [40, 60, 50]
    same = coterie.from_peers(list(WARDS.values()))
    assert same.names == ()
    assert torch.equal(federation.x, same.x)  # type: ignore[arg-type]


def test_the_data_of_one_peer_are_no_dict_of_peers() -> None:
    with pytest.raises(ConfigError, match="holds the data of one peer"):
        coterie.from_peers({"train": some_data(), "test": some_data()})


def test_mistakes_in_a_peers_data_name_the_peer() -> None:
    with pytest.raises(coterie.CoterieError, match="peer south"):
        coterie.from_peers({**WARDS, "south": (np.zeros((4, 3)), np.arange(3))})


def test_values_of_a_column_are_names() -> None:
    x, y = some_data(200)
    wards = np.array(["b-ward", "a-ward"])[np.arange(200) % 2]
    source = coterie.from_arrays(x, y, columns={"ward": wards, "number": np.arange(200) % 2})
    named = coterie.split(source, "natural(ward)", peers=2, seed=0)
    assert named.names == ("a-ward", "b-ward")
    assert named.take(torch.tensor([1])).names == ("b-ward",)
    assert coterie.split(source, "natural(number)", peers=2, seed=0).names == ()  # numbers as they are


def test_names_of_an_experiment_hold_before_those_of_the_data() -> None:
    run = coterie.simulate(data=WARDS, names=["x", "y", "z"], **QUICK)
    assert run.names == ("x", "y", "z")
    assert run.result()["names"] == ["x", "y", "z"]
    assert coterie.simulate(data=WARDS, **QUICK).result()["names"] == ["north", "south", "kids"]
    assert coterie.simulate(peers=2, **QUICK).result()["names"] is None


def test_there_are_as_many_peers_as_names() -> None:
    assert resolve({"names": ["a", "b", "c"]}).peers == 3
    for names, peers, words in (
        (["a", "b"], 3, "2 names for 3 peers"),
        (["a", "a"], 2, "'a' is the name of two peers"),
        (["a", " "], 2, "not a name that can be shown"),
        (["a", "b\n"], 2, "not a name that can be shown"),
    ):
        with pytest.raises(ConfigError, match=words):
            resolve({"names": names, "peers": peers})


def test_names_decide_no_results() -> None:
    named, other = resolve({"names": ["a", "b"]}), resolve({"peers": 2})
    assert fingerprint(named) == fingerprint(other)
    assert experiment_digest(named) == experiment_digest(other)


def test_records_frames_and_opened_runs_have_names(tmp_path: Path) -> None:
    run = coterie.simulate(data=WARDS, run_dir=tmp_path / "run", **QUICK)
    with open(tmp_path / "run" / "peers.csv", newline="") as file:
        lines = list(csv.DictReader(file))
    assert [line["name"] for line in lines] == ["north", "south", "kids"]
    assert [sum(int(line[part]) for part in ("train", "validation", "test")) for line in lines] == [
        40,
        60,
        50,
    ]
    assert json.loads((tmp_path / "run" / "result.json").read_text())["names"] == list(run.names)
    assert coterie.open(tmp_path / "run", data=WARDS).names == run.names
    assert list(run.frame("peers", "pandas")["name"]) == list(run.names)


def test_tables_and_plots_show_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [coterie.simulate(algorithm=name, data=WARDS, **QUICK) for name in ("local", "d-psgd")]
    table = by_peer([[run.result()] for run in runs], ["local", "d-psgd"])
    assert table is not None
    (names, *columns) = [list(column.cells) for column in table.renderables[1].columns]  # type: ignore[union-attr]
    assert list(map(str, names)) == ["north", "south", "kids"]
    for column, run in zip(columns, runs, strict=True):
        assert column == [f"{100 * score:.1f}" for score in run.personal_scores.tolist()]
    ticks: list[list[str]] = []
    monkeypatch.setattr("coterie.reporting.plots.save", lambda figure, path: ticks.extend(_ticks(figure)))
    groups = [[run] for run in runs]
    per_peer_scores(groups, ["local", "d-psgd"], tmp_path / "a.png")
    who_learned_from_whom(groups, ["local", "d-psgd"], tmp_path / "b.png")
    order = np.argsort(runs[0].personal_scores.numpy(), kind="stable")
    by_local = [runs[0].names[peer] for peer in order]
    assert by_local in ticks
    assert ticks.count(["north", "south", "kids"]) >= 2  # of the map, senders and receivers


def _ticks(figure: Any) -> list[list[str]]:
    axes = [one for one in figure.axes if one.get_visible()]
    return [
        [text.get_text() for text in axis.get_ticklabels()] for one in axes for axis in (one.xaxis, one.yaxis)
    ]


def test_commands_show_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wards.toml").write_text(
        'names = ["north", "south", "a ward of another [kind]"]\nmodel = "mlr"\nrounds = 1\n'
    )
    shown = CliRunner().invoke(app, ["data", "show", "--config", "wards.toml"]).stdout
    assert "south" in shown
    assert "a ward of another [kind]" in shown
    done = CliRunner().invoke(app, ["run", "--config", "wards.toml", "--no-plots", "--quiet"])
    assert done.exit_code == 0, done.stderr
    assert "a ward of another [kind]" in done.stdout
    hub = CliRunner().invoke(app, ["swarm", "--config", "wards.toml"])
    assert "names: 'a ward of another [kind]': a name has at most 64 letters" in hub.stderr
