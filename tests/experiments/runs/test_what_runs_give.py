"""What one can do with a run: a line about it, data frames, predictions, a model in files."""

from __future__ import annotations

import csv
import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import polars
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import coterie
from coterie.data import load, split
from coterie.errors import ConfigError, RunFolderError

SMALL: dict[str, Any] = {
    "algorithm": "d-psgd",
    "model": "mlp(16)",
    "partition": "rotations(2)",
    "topology": "ring",
    "peers": 4,
    "rounds": 3,
    "evaluation": {"every": 2},
    "execution": {"executor": "stacked", "workers": 1},
}


@pytest.fixture(scope="module", name="run")
def _run(tmp_path_factory: pytest.TempPathFactory) -> coterie.Run:
    return coterie.simulate(**SMALL, run_dir=tmp_path_factory.mktemp("runs") / "run")


def lines_of(run: coterie.Run, name: str) -> list[dict[str, str]]:
    assert run.run_dir is not None
    with open(run.run_dir / name, newline="") as file:
        return list(csv.DictReader(file))


def test_a_line_says_what_was_run_and_how_well(run: coterie.Run) -> None:
    mean, worst = float(run.personal_accuracy.mean()), float(run.personal_accuracy.min())
    assert repr(run) == (
        f"<Run d-psgd on digits, 4 peers, 3 rounds, seed 0, accuracy {mean:.3f} after mixing "
        f"(worst tenth {worst:.3f})> in {run.run_dir}"
    )


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_frames_of_rounds_and_peers_are_what_the_records_say(run: coterie.Run, library: str) -> None:
    rounds, written = run.frame("rounds", library), lines_of(run, "rounds.csv")
    assert rounds["round"].to_list() == [1, 2, 3]
    for name in ("messages", "bytes", "hub_bytes"):
        assert rounds[name].to_list() == [int(line[name]) for line in written]
    peers = run.frame("peers", library)
    measured = [line for line in lines_of(run, "metrics.csv") if line["accuracy_after_mixing"]]
    assert peers["round"].to_list() == [int(line["round"]) + 1 for line in measured]
    assert peers["online"].to_list() == [line["online"] == "1" for line in measured]
    for name in ("train_loss", "accuracy_after_local", "loss_after_mixing", "gradient_steps", "samples_seen"):
        assert peers[name].to_list() == pytest.approx([float(line[name]) for line in measured])


def test_means_over_peers_stand_in_the_frame_of_rounds(run: coterie.Run) -> None:
    rounds, peers = run.frame("rounds", "pandas"), run.frame("peers", "pandas")
    for name in ("accuracy_after_local", "loss_after_mixing"):
        expected = peers.groupby("round")[name].mean()
        known = rounds.dropna(subset=name).set_index("round")[name]
        pandas.testing.assert_series_equal(known, expected, check_dtype=False)


def test_the_frame_of_links_is_the_graph(run: coterie.Run) -> None:
    links = run.frame("links", "pandas")
    graph, shares = np.zeros((4, 4)), np.zeros((4, 4))
    graph[links["receiver"], links["sender"]] = links["messages"]
    shares[links["receiver"], links["sender"]] = links["share"]
    assert np.array_equal(graph, run.graph.numpy())
    assert np.allclose(shares, run.shares.numpy())
    arrived = [line for line in lines_of(run, "links.csv") if line["delivered"] == "1"]
    assert graph.sum() == len(arrived)
    for link in links.to_dict("records"):
        between = [
            n for n in arrived if (int(n["sender"]), int(n["receiver"])) == (link["sender"], link["receiver"])
        ]
        assert link["bytes"] == sum(int(line["bytes"]) for line in between) > 0


def test_frames_of_a_run_without_a_folder_are_the_same(run: coterie.Run) -> None:
    other = coterie.simulate(**SMALL)
    for kind in ("peers", "links"):
        pandas.testing.assert_frame_equal(run.frame(kind, "pandas"), other.frame(kind, "pandas"))
    times = ["seconds"]
    pandas.testing.assert_frame_equal(
        run.frame("rounds", "pandas").drop(columns=times), other.frame("rounds", "pandas").drop(columns=times)
    )


def test_frames_are_of_the_library_that_is_there(run: coterie.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(run.frame("rounds"), pandas.DataFrame)
    assert isinstance(run.frame("rounds", "polars"), polars.DataFrame)
    there = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pandas" else there(name))
    assert isinstance(run.frame("rounds"), polars.DataFrame)
    with pytest.raises(ConfigError, match="pandas, which is not installed: pip install pandas"):
        run.frame("rounds", "pandas")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="pandas or polars, which are not installed"):
        run.frame("rounds")


def test_wrong_frames_get_a_sentence(run: coterie.Run) -> None:
    with pytest.raises(ConfigError, match="no frame 'round'; did you mean rounds"):
        run.frame("round")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="of pandas or polars, not of 'dask'"):
        run.frame("rounds", "dask")


def test_predictions_give_the_accuracy_that_was_measured(run: coterie.Run) -> None:
    data = split(load("digits", peers=4, seed=0), "rotations(2)", peers=4, seed=0)
    for peer in range(4):
        samples = data.test.of(peer)
        probabilities = run.predict(peer, data.x[samples].numpy())
        assert torch.allclose(probabilities.sum(1), torch.ones(len(samples), dtype=torch.double))
        right = (probabilities.argmax(1) == data.y[samples]).double().mean()
        assert float(right) == pytest.approx(float(run.personal_accuracy[peer]), abs=1e-6)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, 16), nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.last(self.first(x.flatten(1)).relu())
        return logits


def test_a_saved_model_is_loaded_with_plain_pytorch(tmp_path: Path) -> None:
    run = coterie.simulate(**{**SMALL, "model": Net})
    folder = run.save(2, tmp_path / "peer-2")
    module = Net()
    module.load_state_dict(load_file(folder / "model.safetensors"))
    x = torch.rand(5, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(module(x).double().softmax(1), run.predict(2, x), atol=1e-6)
    about = json.loads((folder / "model.json").read_text())
    assert {key: about[key] for key in ("peer", "model", "algorithm", "rounds")} == {
        "peer": 2, "model": "own", "algorithm": "d-psgd", "rounds": 3,
    }  # fmt: skip
    assert about["score"] == pytest.approx(float(run.personal_accuracy[2]))


def test_a_model_that_is_there_is_not_overwritten(run: coterie.Run, tmp_path: Path) -> None:
    run.save(0, tmp_path / "m")
    before = (tmp_path / "m" / "model.safetensors").read_bytes()
    with pytest.raises(RunFolderError, match="exists already"):
        run.save(1, tmp_path / "m")
    assert (tmp_path / "m" / "model.safetensors").read_bytes() == before


@pytest.mark.parametrize("peer", [4, -1, True, 1.5])
def test_a_peer_that_does_not_exist_gets_a_sentence(run: coterie.Run, peer: Any, tmp_path: Path) -> None:
    for use in (lambda: run.predict(peer, np.zeros((1, 1, 8, 8))), lambda: run.save(peer, tmp_path / "m")):
        with pytest.raises(ConfigError, match=r"no peer .*; they have the numbers 0 to 3"):
            use()
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        (np.zeros((2, 5)), r"cannot take samples of shape \(5,\)"),
        (np.zeros((0, 1, 8, 8)), "no samples"),
        ([[1, 2], [3]], "unexpected keyword argument 'attention_mask'"),  # padded, as in training
        (["a"], "x must hold numbers, not values of type <U1"),
    ],
)
def test_samples_that_cannot_be_right_get_a_sentence(run: coterie.Run, samples: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        run.predict(0, samples)


def test_peers_are_found_by_their_names(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    data = {
        name: (torch.randn(30, 4, generator=generator), torch.arange(30) % 3) for name in ("ward-a", "ward-b")
    }
    run = coterie.simulate("d-psgd", data=data, model=nn.Linear(4, 3), topology="full", rounds=2)
    assert run.names == ("ward-a", "ward-b")
    x = torch.rand(3, 4, generator=generator)
    assert torch.equal(run.predict("ward-b", x), run.predict(1, x))
    assert json.loads((run.save("ward-b", tmp_path / "b") / "model.json").read_text())["name"] == "ward-b"
    assert run.frame("peers", "pandas")["name"].to_list() == ["ward-a", "ward-b"] * 2
    links = run.frame("links", "pandas")
    assert links["sender_name"].to_list() == [run.names[sender] for sender in links["sender"]]
    with pytest.raises(ConfigError, match="no peer 'ward-c'; did you mean ward-"):
        run.predict("ward-c", x)


def test_a_run_without_names_says_so(run: coterie.Run) -> None:
    with pytest.raises(ConfigError, match="no peer 'anna'; they have numbers only"):
        run.model("anna")
