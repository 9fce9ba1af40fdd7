"""One's own algorithm, model, partition, topology and data, from one file, in every command."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import coterie as public

Command = Callable[..., Any]
SOURCE = '''
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

import coterie
from coterie.data import Assignment
from coterie.learning.tasks import Classification
from coterie.topology import GraphKind, both_ways


@dataclass(frozen=True)
class Keeping(coterie.ModelAlgorithm):
    """Keeps a share of its own model."""

    keep: float = 0.5  # of one's own model

    facts = coterie.Facts(paper="ours", measured="after_mixing", communication="one model per link")

    def round(self, state, node):
        mine = node.train(state.params)
        inbox = yield coterie.Exchange(mine)
        mixed = coterie.average(mine, inbox)
        return coterie.ModelState({k: self.keep * mine[k] + (1 - self.keep) * mixed[k] for k in mine})


class Net(nn.Module):
    """One hidden layer."""

    def __init__(self, shape, n_classes, hidden: int = 5):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(shape[0], hidden), nn.ReLU(), nn.Linear(hidden, n_classes))

    def forward(self, x):
        return self.layers(x)


def load(peers, seed, noise=1.0):
    """Three classes of points."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, size=240)
    return coterie.from_arrays(np.eye(3)[y] + noise * rng.normal(size=(240, 3)), y, seed=seed)


@dataclass(frozen=True)
class Points:
    """The same as a data set with arguments."""

    noise: float

    def load(self, data_dir, peers, seed):
        return load(peers, seed, self.noise)


@dataclass(frozen=True)
class FirstHasMost:
    """So many samples for the first peer, the others share the rest."""

    most: int

    def assign(self, source, peers, rng):
        owner = np.arange(len(source.y_train)) % (peers - 1) + 1
        owner[: self.most] = 0
        return Assignment(owner)


@dataclass(frozen=True)
class Line(GraphKind):
    """Each with the next but so many."""

    step: int = 1

    def links(self, peers, seed, phase):
        first = torch.arange(peers - self.step)
        return both_ways(first, first + self.step)


@dataclass(frozen=True)
class Scaled(Classification):
    """Classification whose loss counts so many times."""

    times: float = 2.0

    name = "scaled"

    def losses(self, outputs, y):
        return self.times * super().losses(outputs, y)


def sure(y, predictions, bound: float = 0.5):
    """How many samples have their class with more than this probability."""
    return float((predictions[np.arange(len(y)), y] > bound).mean())


sure.percent = True


def friends():
    """A graph from networkx."""
    import networkx

    return networkx.path_graph(4)
'''
SMALL = ["--data", "own.py:load", "--peers", "4", "--rounds", "2", "--executor", "stacked", "--quiet"]


@pytest.fixture(autouse=True)
def own(folder: Path) -> Path:
    (folder / "own.py").write_text(SOURCE)
    return folder / "own.py"


def test_all_parts_of_a_run_may_be_ones_own(coterie: Command, folder: Path) -> None:
    done = coterie(
        "run", "--algorithm", "own.py:Keeping(0.25)", "--data", "own.py:load(noise=0.1)", "--model",
        "own.py:Net(hidden=7)", "--partition", "own.py:FirstHasMost(90)", "--topology", "own.py:Line(2)",
        "--peers", "4", "--rounds", "2", "--json", "--no-plots", "--quiet", "--run-dir", "out",
    )  # fmt: skip
    result = json.loads(done.stdout)
    assert result["settings"] == {"keep": "0.25"}
    assert result["algorithm"] == f"{folder}/own.py:Keeping"
    # 3 x 7 + 7 + 7 x 3 + 3 numbers of 4 bytes, to one neighbour, in two rounds
    assert result["bytes_sent_per_peer"] == (21 + 7 + 21 + 3) * 4 * 2
    steps = result["gradient_steps_per_peer"]  # 90 samples in batches of 32, and 34 of the other 102
    assert (steps["max"], steps["min"]) == (3 * 2, 2 * 2)
    lines = (folder / "out/links.csv").read_text().splitlines()[1:]
    assert {tuple(line.split(",")[2:4]) for line in lines} == {("0", "2"), ("2", "0"), ("1", "3"), ("3", "1")}


def test_what_a_share_of_ones_own_does(own: Path) -> None:
    """keep = 1 is Local, keep = 0 is D-PSGD."""
    common: dict[str, Any] = {"data": f"{own}:load", "model": f"{own}:Net", "peers": 3, "rounds": 2}
    runs = {
        name: public.simulate(algorithm=name, topology="ring", execution={"executor": "looped"}, **common)
        for name in (f"{own}:Keeping(1)", f"{own}:Keeping(keep=0)", "local", "d-psgd")
    }
    alone, mixed, local, d_psgd = runs.values()
    for one, other in ((alone, local), (mixed, d_psgd)):
        for name, values in one.params.items():
            assert torch.allclose(values, other.params[name], atol=1e-7), name


def test_a_task_and_metrics_of_ones_own_in_every_command(coterie: Command, folder: Path) -> None:
    """A loss that counts twice, at half the rate, is the same plain step."""
    own = ["--task", "own.py:Scaled(2)", "--set", "metrics=own.py:sure(0.6),accuracy"]
    rates = ["--set", "training.momentum=0", "--set", "training.clip=0"]
    done = coterie("run", *SMALL, *own, *rates, "--lr", "0.1", "--json", "--no-plots", "--run-dir", "r")
    result = json.loads(done.stdout)
    assert (result["metric"], result["percent"]) == ("sure_0_6", True)
    metrics = ["--set", "metrics=own.py:sure(0.6),accuracy"]
    plain = coterie("run", *SMALL, *metrics, *rates, "--lr", "0.2", "--json", "--no-plots")
    expected = json.loads(plain.stdout)["personal_sure_0_6"]["per_peer"]
    assert result["personal_sure_0_6"]["per_peer"] == pytest.approx(expected, abs=1e-6)
    assert "sure_0_6_after_local" in (folder / "r/metrics.csv").read_text().partition("\n")[0]
    shown = coterie("compare", "--algorithms", "d-psgd", *SMALL, *own, "--no-plots", "--run-dir", "c").stdout
    assert "sure 0 6 in % on each peer's own test data" in shown
    over = ["--over", "task=own.py:Scaled(1),own.py:Scaled(4)", *metrics, "--out", "s", "--json"]
    lines = json.loads(coterie("sweep", *SMALL, *over).stdout)["results"]
    assert [line["task"] for line in lines] == ["own.py:Scaled(1)", "own.py:Scaled(4)"]
    assert lines[0]["personal_sure_0_6"] != lines[1]["personal_sure_0_6"]
    (folder / "experiment.toml").write_text(
        'task = "own.py:Scaled(times=3)"\nmetrics = ["own.py:sure"]\ndata = "own.py:load"\n'
    )
    toml = coterie("run", "--config", "experiment.toml", "--peers", "3", "--rounds", "1", "--json", "--quiet")
    assert json.loads(toml.stdout)["metric"] == "sure"
    assert "task own.py:Scaled(times=2.0)" in coterie("explain", "own.py:Scaled").stdout


def test_compare_and_sweep_take_several_of_ones_own(coterie: Command) -> None:
    names = "own.py:Keeping(0.1),own.py:Keeping(keep=0.9),d-psgd"
    done = coterie("compare", "--algorithms", names, *SMALL, "--json", "--no-plots", "--run-dir", "compared")
    results = json.loads(done.stdout)
    assert [result["settings"] for result in results] == [{}, {"keep": "0.1"}, {"keep": "0.9"}, {}]
    table = coterie("compare", "--resume", "compared", "--no-plots", "--quiet").stdout
    assert "own.py:Keeping(keep=0.9)" in table
    done = coterie(
        "sweep", "--over", "model=own.py:Net(hidden=2),own.py:Net(hidden=3)", "--over",
        "algorithm=own.py:Keeping(0.2),local", *SMALL, "--json", "--out", "swept",
    )  # fmt: skip
    lines = json.loads(done.stdout)["results"]
    assert len({(line["model"], line["algorithm"]) for line in lines}) == 4
    sent = {line["model"]: line["bytes_sent_per_peer"] for line in lines if line["algorithm"] != "local"}
    # (3 h + h + 3 h + 3) numbers of 4 bytes to three others in two rounds
    assert sent == {f"own.py:Net(hidden={h})": (7 * h + 3) * 4 * 3 * 2 for h in (2, 3)}


def test_a_toml_file_names_parts_from_its_own_folder(
    coterie: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "experiment.toml").write_text(
        'algorithm = "own.py:Keeping(0.3)"\ndata = "own.py:Points(0.5)"\nmodel = "own.py:Net"\n'
        'partition = "own.py:FirstHasMost(100)"\ntopology = "own.py:friends"\npeers = 4\nrounds = 1\n'
    )
    (folder / "elsewhere").mkdir()
    monkeypatch.chdir(folder / "elsewhere")
    config = ["--config", "../experiment.toml", "--json", "--no-plots", "--quiet"]
    assert json.loads(coterie("run", *config).stdout)["settings"] == {"keep": "0.3"}
    changed = coterie("run", *config, "--algorithm", "../own.py:Keeping(keep=0.7)")
    assert json.loads(changed.stdout)["settings"] == {"keep": "0.7"}
    shown = coterie("data", "show", "--config", "../experiment.toml").stdout
    assert "own.py:Points(0.5), own.py:FirstHasMost(100), 4 peers" in " ".join(shown.split())


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Keeping", ["algorithm own.py:Keeping(keep=0.5)", "paper:         ours", "(of one's own model)"]),
        ("Net", ["model own.py:Net(shape,n_classes,hidden=5)", "One hidden layer.", "hidden     int"]),
        ("Line", ["topology own.py:Line(step=1)", "Each with the next"]),
        ("FirstHasMost", ["partition own.py:FirstHasMost(most)", "most  int, required"]),
        ("Points", ["data set own.py:Points(noise)", "default model: mlp"]),
        ("load", ["own.py:load(peers, seed, noise=1.0)", "Three classes"]),
    ],
)
def test_explain_reads_ones_own_file(coterie: Command, name: str, said: list[str]) -> None:
    text = coterie("explain", f"own.py:{name}").stdout
    assert all(part in text for part in said), text


@pytest.mark.parametrize(
    ("option", "text", "said"),
    [
        ("--algorithm", "own.py:Keepin", ["own.py defines no Keepin", "did you mean Keeping"]),
        ("--algorithm", "other.py:Keeping", ["there is no file", "other.py"]),
        ("--algorithm", "own.py", ["must name a class or function", "own.py:Keeping"]),
        ("--algorithm", "own.py:Net", ["Net in", "is no algorithm", "coterie.ModelAlgorithm"]),
        ("--algorithm", "own.py:load", ["load in", "is a function"]),
        ("--algorithm", "own.py:Keeping(kep=1)", ["own.py:Keeping: ", "did you mean keep?"]),
        ("--algorithm", "own.py:Keeping(much)", ["own.py:Keeping: ", "keep", "valid number"]),
        ("--algorithm", "own.py:Keeping(1,2)", ["at most 1 settings; write own.py:Keeping(keep=0.5)"]),
        ("--model", "own.py:Net(hiden=3)", ["Net in", "no argument 'hiden'", "did you mean hidden?"]),
        ("--model", "own.py:Net(hidden=many)", ["Net in", "hidden must be int, not 'many'"]),
        ("--model", "own.py:Net(shape=3)", ["shape is given by Coterie"]),
        ("--model", "own.py:Net(3,4)", ["too many positional arguments; its arguments are (hidden=5)"]),
        ("--model", "own.py:Net(-1)", ["Net in", "raised RuntimeError", "(line "]),
        ("--data", "own.py:load(noise=much)", ["noise must be float, not 'much'"]),
        ("--data", "own.py:Net(3)", ["own.py:Net(3)", "missing a required argument"]),
        ("--partition", "own.py:FirstHasMost", ["missing a required argument: 'most'"]),
        ("--partition", "own.py:Net", ["Net in", "is no partition", "assign(source, peers, rng)"]),
        ("--topology", "own.py:Net", ["Net in", "is no topology", "links(peers, seed, phase)"]),
        ("--topology", "own.py:Line(two)", ["step must be int, not 'two'"]),
        ("--topology", "own.py:load(1,2)", ["a topology is a name such as ring"]),
        ("--task", "own.py:Net", ["Net in", "is no task", "coterie.Task"]),
        ("--task", "own.py:Scaled(often)", ["times must be float, not 'often'"]),
    ],
)
def test_mistakes_get_a_sentence_and_leave_nothing(
    coterie: Command, folder: Path, option: str, text: str, said: list[str]
) -> None:
    done = coterie("run", *SMALL, option, text)
    assert done.exit_code == 2
    assert all(part in done.stderr for part in said), done.stderr
    assert not (folder / "runs").exists()


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("raise ValueError('no luck')", ["broken.py cannot be loaded: ValueError: no luck (line 4)"]),
        ("class Mine(coterie.ModelAlgorithm):\n    keep: float = 1", ["is not a dataclass itself"]),
        (
            "@dataclass(frozen=True)\nclass Mine(coterie.ModelAlgorithm):\n    keep: float = 1",
            ["has no facts"],
        ),
        (
            "@dataclass(frozen=True)\nclass Mine(coterie.Algorithm):\n    facts = FACTS",
            ["does not define init and round and personal"],
        ),
        (
            "@dataclass(frozen=True)\nclass Mine(coterie.ModelAlgorithm):\n    facts = FACTS\n"
            "    def round(self, state, node):\n        return state",
            ["a round that never yields", "yield coterie.Exchange(mine)"],
        ),
        (
            "@dataclass(frozen=True)\nclass Mine(coterie.ModelAlgorithm):\n    facts = FACTS\n"
            "    keep: 'Share' = 1\n    def round(self, state, node):\n        return state\n        yield",
            ["annotations that cannot be read", "Share"],
        ),
    ],
)
def test_what_is_no_algorithm_is_told_what_it_lacks(
    coterie: Command, folder: Path, lines: str, said: list[str]
) -> None:
    facts = "FACTS = coterie.Facts(paper='ours', measured='after_mixing', communication='none')"
    (folder / "broken.py").write_text(
        f"import coterie\nfrom dataclasses import dataclass\n{facts}\n{lines}\n"
    )
    done = coterie("run", *SMALL, "--algorithm", "broken.py:Mine")
    assert done.exit_code == 2
    assert all(part in done.stderr for part in said), done.stderr


@pytest.mark.parametrize("part", ["algorithm", "model", "partition", "topology"])
def test_an_edited_file_is_not_gone_on_with(coterie: Command, own: Path, part: str) -> None:
    name = {"algorithm": "Keeping", "model": "Net", "partition": "FirstHasMost(9)", "topology": "Line"}[part]
    for key in ("one", "two"):
        (own.parent / f"{key}.py").write_text(SOURCE)
    options = ["--data", "two.py:load", "--peers", "4", "--rounds", "1", "--quiet", "--no-plots"]
    done = coterie("run", *options, f"--{part}", f"one.py:{name}", "--run-dir", "out")
    assert done.exit_code == 0, done.stderr
    (own.parent / "one.py").write_text(SOURCE + "# edited\n")
    done = coterie("run", "--resume", "out")
    assert done.exit_code == 2
    assert "one.py changed since the run in out began" in done.stderr
