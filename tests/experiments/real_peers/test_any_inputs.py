"""Real peers with files of tokens and tables: the simulator's numbers, and predictions on new files."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import coterie
from coterie.catalogue import tasks
from coterie.cli.swarm.folders import make_folders
from coterie.errors import DataError
from coterie.experiments.real_peers.joining import join
from coterie.experiments.real_peers.predicting import PersonalModel, personal_model, samples_for
from coterie.learning.tasks import scored_by

NETWORK = """\
import torch
from torch import nn

class Reader(nn.Module):
    def __init__(self, n_classes):
        super().__init__()
        self.words, self.table, self.head = nn.Embedding(9, 4), nn.Linear(2, 4), nn.Linear(4, n_classes)

    def forward(self, tokens, table):
        return (self.head(torch.tanh(self.words(tokens).mean(1) + self.table(table))),)
"""
NAMES = ["anna", "bob", "carl"]


def drawn(rng: np.random.Generator, n: int) -> tuple[Any, Any]:
    x = {"tokens": rng.integers(0, 9, (n, 5)), "table": rng.normal(size=(n, 2)).astype(np.float32)}
    return x, rng.integers(0, 3, n)


def saved(path: Path, train: tuple[Any, Any], test: tuple[Any, Any]) -> None:
    arrays = {"y": train[1], "y_test": test[1]}
    for part, (x, _) in (("x", train), ("x_test", test)):
        arrays |= {f"{part}.{name}": values for name, values in x.items()}
    np.savez(path, **arrays)


@pytest.fixture(scope="module")
def peers(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Path], coterie.Run, Any]:
    """Three that learned for three rounds, and the same simulated."""
    folder = tmp_path_factory.mktemp("peers")
    (folder / "nets.py").write_text(NETWORK)
    settings = {
        "algorithm": "d-psgd",
        "model": f"{folder}/nets.py:Reader",
        "topology": "full",
        "rounds": 3,
        "training": {"lr": 0.2, "batch_size": 8},
        "splitting": {"validation": 0.0},
    }
    places = make_folders(folder, {**settings, "peers": 3, "classes": 3}, NAMES, "synchronous")
    rng = np.random.default_rng(8)
    data = [(drawn(rng, 20), drawn(rng, 10)) for _ in NAMES]
    for place, (train, test) in zip(places, data, strict=True):
        saved(place / "own.npz", train, test)
        text = (place / "peer.toml").read_text()
        lines = [line for line in text.splitlines() if not line.startswith(("data ", "metrics "))]
        (place / "peer.toml").write_text("\n".join(['data = "own.npz"', 'metrics = ""', *lines]) + "\n")

    async def learn() -> None:
        await asyncio.gather(*(join(place).take_part() for place in places))

    asyncio.run(learn())
    simulated = coterie.simulate(
        data=[(*train, *test) for train, test in data], **settings, execution={"executor": "looped"}
    )
    return places, simulated, data


def test_real_peers_have_the_simulators_models(peers: tuple[list[Path], coterie.Run, Any]) -> None:
    places, simulated, _ = peers
    for number, place in enumerate(places):
        model = personal_model(place)
        assert model.round == 3
        for name, value in simulated.model(number).items():
            torch.testing.assert_close(model.params[name], value, rtol=1e-4, atol=1e-6)


def test_predictions_on_a_file_are_those_of_the_simulation(
    peers: tuple[list[Path], coterie.Run, Any], tmp_path: Path
) -> None:
    places, simulated, data = peers
    x, y = data[1][1]
    np.savez(tmp_path / "new.npz", **{f"x.{name}": values for name, values in x.items()}, y=y)
    model = personal_model(places[1])
    found, labels = samples_for(model, tmp_path / "new.npz")
    assert labels is not None
    assert labels.tolist() == y.tolist()
    probabilities = model.task.predictions(model.outputs(found))
    torch.testing.assert_close(probabilities, simulated.predict(1, x), rtol=1e-4, atol=1e-5)
    np.savez(tmp_path / "less.npz", **{"x.tokens": x["tokens"]})
    with pytest.raises(DataError, match=r"it has the inputs tokens, but .*anna takes tokens, table"):
        samples_for(personal_model(places[0]), tmp_path / "less.npz")


def model_for(like: Any, task: str = "classification") -> PersonalModel:
    return PersonalModel("anna", 1, torch.nn.Identity(), {}, like, 7, tasks.build(task))


def test_files_for_a_model_of_sequences(tmp_path: Path) -> None:
    """Shorter ones are padded as those of training were; what has no mask is whole."""
    empty = torch.zeros(0, 4, dtype=torch.int64)
    model, path = model_for({"0": empty, "attention_mask": empty}), tmp_path / "new.npz"
    np.savez(path, x=np.array([[1, 2, 3], [4, 5, 6]]))
    x, _ = samples_for(model, path)
    assert isinstance(x, dict)
    assert x["0"].tolist() == [[1, 2, 3, 0], [4, 5, 6, 0]]
    assert x["attention_mask"].tolist() == [[1, 1, 1, 0]] * 2
    np.savez(path, **{"x.0": np.array([[1, 2], [3, 0]]), "x.attention_mask": np.array([[1, 1], [1, 0]])})
    x, _ = samples_for(model, path)
    assert isinstance(x, dict)
    assert x["attention_mask"].tolist() == [[1, 1, 0, 0], [1, 0, 0, 0]]
    np.savez(path, x=np.ones((2, 5), int))
    with pytest.raises(DataError, match=r"its samples are 5, but the model of anna takes 4"):
        samples_for(model, path)


def test_targets_of_shorter_sequences_are_padded_with_them(tmp_path: Path) -> None:
    """The score is that of the positions that are there: of three, two are right."""

    class Same(torch.nn.Module):
        def forward(self, tokens: Any, attention_mask: Any) -> Any:
            return torch.nn.functional.one_hot(tokens, 7).double()

    empty = torch.zeros(0, 4, dtype=torch.int64)
    model = model_for({"0": empty, "attention_mask": empty}, "next-token")
    model = dataclasses.replace(model, module=Same(), task=scored_by(model.task, ["accuracy"]))
    np.savez(tmp_path / "new.npz", x=np.array([[1, 2], [3, 0]]), y=np.array([[1, 5], [3, -100]]))
    x, y = samples_for(model, tmp_path / "new.npz")
    assert y is not None
    assert y.tolist() == [[1, 5, -100, -100], [3, -100, -100, -100]]
    assert model.score(model.outputs(x), y) == pytest.approx(2 / 3)


def test_files_for_a_model_of_words(tmp_path: Path) -> None:
    model = model_for(torch.zeros(0, 2, dtype=torch.int64))
    (tmp_path / "new.csv").write_text("first,second\n3,4\n5,6\n")
    x, _ = samples_for(model, tmp_path / "new.csv")
    assert isinstance(x, torch.Tensor)
    assert (x.dtype, x.tolist()) == (torch.int64, [[3, 4], [5, 6]])
    (tmp_path / "new.csv").write_text("first,second\n3,4.5\n5,6\n")
    with pytest.raises(DataError, match="real numbers, but the model takes whole ones"):
        samples_for(model, tmp_path / "new.csv")
    pixels = dataclasses.replace(model, like=torch.zeros(0, 1, 2))
    (tmp_path / "new.csv").write_text("first,second\n3,4\n5,6\n")
    assert samples_for(pixels, tmp_path / "new.csv")[0].shape == (2, 1, 2)  # type: ignore[union-attr]
