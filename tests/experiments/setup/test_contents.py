"""Which files decide an experiment, and that they count by what is in them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from coterie.experiments.setup import contents as module
from coterie.experiments.setup.config import resolve
from coterie.experiments.setup.contents import contents
from coterie.experiments.setup.digest import experiment_digest, fingerprint
from coterie.experiments.setup.schema import Experiment
from coterie.registry import load_reference


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A network that imports a neighbour, which imports a package, and data from a table."""
    files = {
        "net.py": "import torch\nimport layers\nWIDTH = layers.WIDTH\nclass Net: ...\n",
        "layers.py": "from parts.wide import WIDTH\n",
        "parts/__init__.py": "",
        "parts/wide.py": "from . import base\nWIDTH = base.WIDTH\n",
        "parts/base.py": "WIDTH = 8\n",
        "parts/unused.py": "",
        "loader.py": "from pathlib import Path\nTABLE = Path(__file__).parent / 'ward.csv'\n",
        "ward.csv": "a,b\n1,2\n",
        "links.txt": "0 1\n1 2\n2 3\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def experiment(folder: Path) -> Experiment:
    table = {"model": "net.py:Net", "data": "loader.py:load", "topology": "edges(links.txt)", "peers": 4}
    return resolve(table, base_dir=folder)


def test_files_beside_a_file_and_the_data_that_it_names(folder: Path) -> None:
    found = {Path(path).relative_to(folder).as_posix() for path in contents(experiment(folder))}
    assert found == {
        "net.py", "layers.py", "parts/__init__.py", "parts/wide.py", "parts/base.py", "loader.py", "ward.csv",
        "links.txt",
    }  # fmt: skip


@pytest.mark.parametrize("name", ["net.py", "parts/base.py", "ward.csv", "links.txt"])
def test_an_edited_file_makes_another_experiment(folder: Path, name: str) -> None:
    before = fingerprint(experiment(folder))
    assert fingerprint(experiment(folder)) == before
    (folder / name).write_text((folder / name).read_text() + "\n")
    assert fingerprint(experiment(folder)) != before


def test_peers_compare_code_but_bring_data_of_their_own(folder: Path) -> None:
    before = experiment_digest(experiment(folder))
    (folder / "ward.csv").write_text("a,b\n3,4\n")
    assert experiment_digest(experiment(folder)) == before
    (folder / "parts" / "base.py").write_text("WIDTH = 9\n")
    assert experiment_digest(experiment(folder)) != before


def test_without_own_files_nothing_is_added() -> None:
    assert contents(resolve({"data": "digits", "topology": "ring"})) == {}


def test_a_large_file_counts_by_size_and_time(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LARGE", 4)
    before = contents(experiment(folder))
    table = folder / "ward.csv"
    changed = table.stat().st_mtime_ns
    table.write_text("a,b\n5,6\n")
    os.utime(table, ns=(changed, changed))
    assert contents(experiment(folder)) == before
    os.utime(table, ns=(changed, changed + 10**9))
    assert [path for path, now in contents(experiment(folder)).items() if before[path] != now] == [str(table)]


def test_an_edited_neighbour_is_executed_again(folder: Path) -> None:
    reference = f"{folder / 'net.py'}:WIDTH"
    assert load_reference(reference, "model") == 8
    (folder / "parts" / "base.py").write_text("WIDTH = 16\n")
    assert load_reference(reference, "model") == 16
