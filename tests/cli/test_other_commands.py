"""`coterie list`, `explain`, `data show` and `new`."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coterie import catalogue
from coterie.experiments.setup.schema import Experiment
from coterie.reporting.page.explained import kind_of_algorithm, settings_of
from coterie.toml_tables import keys

Command = Callable[..., Any]
PNG = b"\x89PNG"
KINDS = {"algorithms": "algorithms", "data": "sources", "models": "models", "partitions": "partitions",
         "topologies": "topologies"}  # fmt: skip


@pytest.mark.parametrize(("kind", "registry"), KINDS.items())
def test_list_shows_every_name(coterie: Command, kind: str, registry: str) -> None:
    lines = coterie("list", kind).stdout.splitlines()
    for name in getattr(catalogue, registry):
        assert any(line.startswith(name) for line in lines)


def test_list_without_a_kind_shows_all(coterie: Command) -> None:
    text = coterie("list").stdout
    assert all(name in text for name in ("d-psgd", "digits", "mlp(hidden=128)", "iid", "ring"))


@pytest.mark.parametrize("width", [80, 130])
def test_list_shows_what_every_algorithm_sends_whole(
    coterie: Command, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setattr("coterie.reporting.tables.NARROWEST", width)
    text = coterie("list", "algorithms").stdout
    assert max(map(len, text.splitlines())) <= width
    for name, entry in zip(catalogue.algorithms, entries(text), strict=True):
        facts = catalogue.algorithms[name].facts
        assert entry.startswith(f"{name} ")
        assert f" {facts.paper}; {kind_of_algorithm(facts)}; measured" in entry
        assert entry.endswith(f"communication per round: {facts.communication}")


@pytest.mark.parametrize("width", [80, 130])
def test_list_crops_nothing(coterie: Command, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setattr("coterie.reporting.tables.NARROWEST", width)
    assert "…" not in coterie("list").stdout


def entries(listed: str) -> list[str]:
    """Each in one line; an indented line goes on with the one before."""
    found: list[str] = []
    for line in filter(str.strip, listed.splitlines()[2:]):
        words = " ".join(line.split())
        if line.startswith(" "):
            found[-1] += f" {words}"
        else:
            found.append(words)
    return found


@pytest.mark.parametrize("name", [name for kind in KINDS.values() for name in getattr(catalogue, kind)])
def test_explain_knows_every_name(coterie: Command, name: str) -> None:
    done = coterie("explain", name)
    assert done.exit_code == 0
    assert name in done.stdout.splitlines()[0]
    assert "not described" not in done.stdout


def test_explain_shows_equations_settings_presets_and_differences(coterie: Command) -> None:
    text = coterie("explain", "dfedavgm").stdout
    assert "theta_i <- sum_j W_ij y_j" in text
    assert "mixing    uniform or metropolis, default 'uniform'" in text
    assert "momentum  float, default 0.9" in text
    assert "blend-dfl: momentum = 0.9, training.epochs = 5" in text
    assert "Differs from the paper" in text
    assert "after mixing" in text


def test_explain_says_what_settings_mean(coterie: Command) -> None:
    """In the papers' symbols, from the comments in the source; inherited ones too."""
    shown = {name: coterie("explain", name).stdout for name in ("kd-pdfl", "ppdl-var", "pfedme", "fedprox")}
    assert "exchange_every  int, default 20  (T_ex)" in shown["kd-pdfl"]
    assert "default 3  (M)" in shown["ppdl-var"]
    assert "default 15.0  (lambda)" in shown["pfedme"]
    assert "default 1.0  (fraction of clients per round)" in shown["fedprox"]
    assert "mu1             float, default 1.0\n" in shown["kd-pdfl"]


def test_explain_knows_the_keys_of_an_experiment(coterie: Command) -> None:
    by_name = coterie("explain", "training.lr")
    assert by_name.exit_code == 0, by_name.stderr
    assert by_name.stdout == "training.lr  float, default 0.05  (learning rate)\n"
    assert coterie("explain", "lr").stdout == by_name.stdout
    assert coterie("explain", "peers").stdout == (
        "peers  int, default 20  (number of peers; between real peers the largest, who may come later)\n"
    )


def test_explain_shows_a_section_with_all_its_keys(coterie: Command) -> None:
    lines = coterie("explain", "faults").stdout.splitlines()
    assert lines[0] == "[faults]  What goes wrong on purpose."
    keys = [line.split()[0].removeprefix("faults.") for line in lines[2:]]
    assert keys == ["churn", "loss", "joins", "leaves", "byzantine"]
    assert lines[6].startswith("faults.byzantine  dict[str, str], default {}  (peers that lie, and how, ")


def test_every_key_says_what_it_means() -> None:
    assert [key.name for key in keys(Experiment) if not key.description] == []


def test_settings_are_explained_without_a_source_too() -> None:
    made = dataclasses.make_dataclass("Made", [("width", int, 3)])
    assert list(settings_of(made)) == ["", "settings", "  width  int, default 3"]


def test_data_show_prints_and_plots_the_labels(coterie: Command, folder: Path) -> None:
    options = ["data", "show", "--partition", "rotations(2)", "--peers", "6"]
    done = coterie(*options)
    assert done.exit_code == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines() if line.split()[0].isdigit()]
    assert [row[0] for row in rows] == list("012345")
    assert [row[1] for row in rows] == list("000111")
    plot = folder / "label-histogram.png"
    assert plot.read_bytes().startswith(PNG)


def test_data_show_again_keeps_the_plots_before(coterie: Command, folder: Path) -> None:
    (folder / "label-histogram.png").write_text("precious")
    assert "plot: label-histogram-2.png" in coterie("data", "show", "--peers", "3").stdout
    assert (folder / "label-histogram-2.png").read_bytes().startswith(PNG)
    refused = coterie("data", "show", "--peers", "3", "--out", "label-histogram.png")
    assert refused.exit_code == 2
    assert "--force" in refused.stderr
    assert (folder / "label-histogram.png").read_text() == "precious"
    assert "plot: label-histogram.png" in coterie("data", "show", "--peers", "3", "--force").stdout
    assert (folder / "label-histogram.png").read_bytes().startswith(PNG)


def test_data_show_shortens_a_long_list(coterie: Command, folder: Path) -> None:
    done = coterie("data", "show", "--partition", "iid", "--peers", "60", "--out", "many.png")
    assert "the first 20 of 60 peers" in " ".join(done.stdout.split())
    assert (folder / "many.png").exists()


def test_a_new_experiment_runs_at_once(coterie: Command, folder: Path) -> None:
    assert coterie("new", "mine").exit_code == 0
    assert {path.name for path in (folder / "mine").iterdir()} == {
        "experiment.toml",
        "experiment.py",
        "README.md",
    }
    done = coterie(
        "run",
        "--config",
        "mine/experiment.toml",
        "--rounds",
        "2",
        "--json",
        "--quiet",
        "--no-plots",
        "--executor",
        "stacked",
    )
    assert done.exit_code == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["peers"] == 8
    assert result["model"].endswith("experiment.py:Net(hidden=32)")
    assert result["algorithm"].endswith("experiment.py:Mine")
    assert result["settings"] == {"share": "0.3"}
    shown = coterie("data", "show", "--config", "mine/experiment.toml")
    assert shown.exit_code == 0, shown.stderr


def test_what_a_new_experiment_says_can_be_typed(
    coterie: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All commands of its README but the first, which is tried above, and those of its TOML file."""
    coterie("new", "mine")
    head = (folder / "mine/experiment.toml").read_text().partition("\n\n")[0]
    comments = head.replace("\\\n#", "").replace("#", "").splitlines()
    typed = [line.split(":", 1)[1] for line in comments if ": " in line]
    quicker = {"compare": ["--rounds", "1", "--no-plots"], "sweep": ["--rounds", "1", "--jobs", "1"]}
    quicker["run"] = quicker["compare"]
    for line in filter(lambda line: " list" not in line, typed):
        command, *options = shlex.split(line)[1:]
        done = coterie(command, *options, *quicker[command])
        assert done.exit_code == 0, (line, done.stderr)
    monkeypatch.chdir(folder / "mine")
    lines = [line for line in Path("README.md").read_text().splitlines() if line.startswith("    coterie")]
    assert [line.split()[1] for line in lines] == ["run", "data", "compare", "sweep", "explain", "swarm"]
    for line in lines[1:-1]:  # real peers are started elsewhere
        command, *options = shlex.split(line.partition(" # ")[0])[1:]
        done = coterie(command, *options, *quicker.get(command, []))
        assert done.exit_code == 0, (line, done.stderr)


OWN_PEERS = """\
import numpy as np

def load(peers, seed):
    return [(np.eye(4).repeat(5, axis=0), np.arange(20) // 5) for _ in range(peers)]
"""


def test_data_that_belong_to_peers_are_shown_as_their_own(coterie: Command, folder: Path) -> None:
    (folder / "mine.py").write_text(OWN_PEERS)
    options = ["--data", "mine.py:load", "--peers", "3"]
    refused = coterie("data", "show", *options, "--partition", "pathological(1)")
    assert refused.exit_code == 2
    assert "the data already belong to peers: leave out partition;" in refused.stderr
    shown = coterie("data", "show", *options)
    assert shown.exit_code == 0, shown.stderr
    assert ":load,own,3peers" in "".join(shown.stdout.split())  # the title is broken over lines


def test_the_config_of_a_run_with_data_that_belong_to_peers_can_be_run(
    coterie: Command, folder: Path
) -> None:
    (folder / "mine.py").write_text(OWN_PEERS)
    options = ["--rounds", "1", "--no-plots", "--quiet", "--json"]
    mine = ["--data", "mine.py:load", "--peers", "3", "--executor", "stacked"]
    first = coterie("run", *mine, *options, "--run-dir", "r")
    assert first.exit_code == 0, first.stderr
    second = coterie("run", "--config", "r/config.toml", *options)
    assert second.exit_code == 0, second.stderr
    results = [json.loads(done.stdout) for done in (first, second)]
    assert [result["partition"] for result in results] == ["own", "own"]
    compared = coterie("compare", "--algorithms", "d-psgd", *mine, *options, "--run-dir", "c")
    assert compared.exit_code == 0, compared.stderr
    assert coterie("compare", "--resume", "c", *options[2:]).exit_code == 0


def test_new_refuses_a_folder_that_is_not_empty(coterie: Command, folder: Path) -> None:
    (folder / "full").mkdir()
    (folder / "full" / "kept.txt").write_text("mine")
    done = coterie("new", "full")
    assert done.exit_code == 2
    assert [path.name for path in (folder / "full").iterdir()] == ["kept.txt"]
    (folder / "empty").mkdir()
    assert coterie("new", "empty").exit_code == 0


def test_every_flag_is_a_key_of_the_experiment() -> None:
    from coterie.cli.options import _FLAGS

    dumped = Experiment().model_dump()
    for key, _ in _FLAGS.values():
        section, _, name = key.rpartition(".")
        assert name in (dumped[section] if section else dumped)
