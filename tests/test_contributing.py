"""Every recipe of CONTRIBUTING.md is carried out as it stands there."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import documents
import numpy as np
import pytest
import torch

import coterie
from coterie import catalogue
from coterie.models import build

ROOT = Path(__file__).parents[1]
BLOCKS = documents.blocks(ROOT / "CONTRIBUTING.md")
FILES = {
    Path(block.file).stem: block for block in BLOCKS if block.file.startswith("src/") and not block.place
}
LINES = {block.place: block.text for block in BLOCKS if block.file == "src/coterie/catalogue.py"}


@pytest.fixture(autouse=True)
def carried_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The recipes' files in the rooms that they name, and their lines in the catalogue, for one test."""
    for name, block in FILES.items():
        package = ".".join(Path(block.file).parent.parts[1:])
        folder = tmp_path / package
        folder.mkdir()
        (folder / f"{name}.py").write_text(block.text)
        room = importlib.import_module(package)
        monkeypatch.setattr(room, "__path__", [*room.__path__, str(folder)])
        monkeypatch.delitem(sys.modules, f"{package}.{name}", raising=False)
    for place, line in LINES.items():
        ((name, home),) = eval(f"{{{line}}}").items()  # a line of a dict
        monkeypatch.setitem(getattr(catalogue, place)._factories, name, home)
    yield
    for module in [m for m in sys.modules if m.rpartition(".")[2] in FILES]:
        del sys.modules[module]


def test_there_is_a_recipe_for_every_kind_of_part() -> None:
    assert set(LINES) == {"algorithms", "sources", "partitions", "models", "topologies"}
    assert set(FILES) == {"your_method", "your_data", "your_partition", "your_model", "your_graph"}


def run(**parts: Any) -> coterie.Run:
    return coterie.simulate(
        **{"data": "digits", "model": "mlr", "peers": 4, "rounds": 2, "topology": "ring"} | parts,
        execution={"executor": "looped"},
        training={"lr": 0.1},
    )


def test_the_algorithm_mixes_as_its_equation_says() -> None:
    """share = 1 is D-PSGD, share = 0 is Local."""
    for share, same in (("1", "d-psgd"), ("0", "local")):
        mine, theirs = run(algorithm=f"your-method({share})"), run(algorithm=same)
        for name, values in theirs.params.items():
            assert torch.allclose(mine.params[name], values, atol=1e-6), (same, name)
    preset = coterie.simulate(
        algorithm="your-method", preset="author", peers=2, rounds=1, model="mlr", topology="ring"
    )
    assert (preset.experiment.settings, preset.experiment.training.lr) == ({"share": 0.25}, 0.1)


def test_the_data_set_reads_its_file(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    table = np.column_stack((rng.normal(size=(200, 3)), rng.integers(0, 2, 200)))
    with pytest.raises(coterie.CoterieError, match=r"there is no file .*measurements\.txt"):
        coterie.load("your-data", data_dir=tmp_path, peers=2, seed=0)
    np.savetxt(tmp_path / "measurements.txt", table)
    source = coterie.load("your-data(3)", data_dir=tmp_path, peers=2, seed=0)
    assert source.shape == (3,)
    pool = torch.cat((source.x_train, source.x_test)).sort(0).values
    assert torch.allclose(pool, torch.from_numpy(table[:, :3]).float().sort(0).values)
    learned = run(data="your-data", model=None, data_dir=str(tmp_path))
    assert learned.experiment.partition == "dirichlet(0.5)"


def test_the_partition_gives_the_first_peer_its_share() -> None:
    source = coterie.load("digits", peers=5, seed=0)
    sizes = coterie.split(source, "your-partition(0.6)", peers=5, seed=0).train.sizes
    assert sizes[0] == np.ceil(0.6 * len(source.y_train))
    assert sizes[1:].max() - sizes[1:].min() <= 0.05 * len(source.y_train)
    assert sizes.sum() == len(source.y_train)


def test_the_model_has_the_parameters_that_its_docstring_says() -> None:
    module = build("your-model", (1, 8, 8), 10, seed=0)
    counted = sum(parameter.numel() for parameter in module.parameters())
    assert f"{counted} parameters" in catalogue.models.summary("your-model")
    assert run(model="your-model(hidden=3)").module[1].out_features == 3


def test_the_topology_is_a_line() -> None:
    graph = run(algorithm="d-psgd", topology="your-graph").graph
    expected = torch.diag(torch.full((3,), 2), 1) + torch.diag(torch.full((3,), 2), -1)
    assert torch.equal(graph, expected)
