"""Mistakes are found before PyTorch is imported, with the messages of the real check."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest

from coterie.cli import early
from coterie.cli.blueprints import catalogues
from coterie.errors import ConfigError, CoterieError, TopologyError
from coterie.experiments.setup.config import CATALOGUES, resolve

KINDS = [field.name for field in fields(CATALOGUES)]
ENTRIES = [(kind, name) for kind in KINDS for name in getattr(CATALOGUES, kind)]


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_names_as_in_the_real_catalogues(kind: str) -> None:
    assert set(getattr(catalogues(), kind)) == set(getattr(CATALOGUES, kind))


@pytest.mark.parametrize(("kind", "name"), ENTRIES)
def test_the_same_signatures_and_descriptions(kind: str, name: str) -> None:
    read, real = getattr(catalogues(), kind), getattr(CATALOGUES, kind)
    assert read.kind == real.kind
    assert read.signature(name) == real.signature(name)
    assert read.summary(name) == real.summary(name)
    assert is_dataclass(read[name]) == is_dataclass(real[name])
    for attribute in ("presets", "default_model", "default_partition", "needs_files"):
        if hasattr(real[name], attribute):
            assert getattr(read[name], attribute) == getattr(real[name], attribute)
    if kind == "algorithms":
        assert vars(read[name].facts) == vars(real[name].facts)


@pytest.mark.parametrize("name", list(CATALOGUES.algorithms))
def test_valid_experiments_pass_and_resolve_alike(name: str) -> None:
    for table in ({"algorithm": name}, {"algorithm": name, "topology": "star", "data": "synthetic(1,1)"}):
        assert early.check(table) == resolve(table)


@pytest.mark.parametrize("name", list(CATALOGUES.algorithms))
def test_presets_resolve_alike(name: str) -> None:
    for preset in CATALOGUES.algorithms[name].presets:  # type: ignore[attr-defined]
        table = {"algorithm": name, "preset": preset}
        assert early.check(table) == resolve(table)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"algorithm": "d-psdg"}, "did you mean d-psgd"),
        ({"topology": "random-regular(30)", "peers": 4}, "does not exist"),
        ({"topology": "random-regular(-1)", "peers": 4}, "allow k from 1 to 3"),
        ({"topology": "grid(2,3)", "peers": 4}, "does not have 4 places"),
        ({"topology": "edges(missing.csv)"}, "cannot be read"),
        ({"algorithm": "d-psgd(metropolitan)"}, "'uniform' or 'metropolis'"),
        ({"algorithm": "d-psgd(uniform,2)"}, "at most 1 settings"),
        ({"algorithm": "d-psgd(mixng=uniform)"}, "did you mean mixing"),
        ({"algorithm": "fedavg(2)"}, "fraction"),
        ({"algorithm": "d-psgd", "settings": {"mixin": 1}}, "did you mean mixing"),
        ({"algorithm": "dfedavgm", "preset": "blend"}, "blend-dfl"),
        ({"algorithm": "fedavg", "topology": "ring"}, "star"),
        ({"data": "minst"}, "did you mean mnist"),
        ({"data": "synthetic(-1,1)"}, "alpha"),
        ({"model": "mlpp"}, "did you mean mlp"),
        ({"model": "mlp(0)"}, "at least 1"),
        ({"model": "mlp(a)"}, "hidden must be int"),
        ({"partition": "dirichlett(1)"}, "did you mean dirichlet"),
        ({"partition": "dirichlet(-1)"}, "above 0"),
        ({"partition": "rotations()"}, "rotations(4)"),
        ({"topology": "rng"}, "did you mean ring"),
        ({"topology": "random-regular"}, "random-regular(k,every=0)"),
        ({"topology": "random-regular(k=2,evry=1)"}, "did you mean every"),
        ({"topology": "random-regular(1.5)"}, "k must be int"),
        ({"peers": 0}, "peers"),
        ({"peerz": 1}, "did you mean peers"),
        ({"training": {"lrr": 1}}, "did you mean lr"),
        ({"training": {"momentum": 2}}, "momentum"),
        ({"training": {"optimizer": "adm"}}, "'sgd' or 'adam'"),
        ({"training": 3}, "section"),
        ({"settings": 3}, "section"),
        ({"execution": {"executor": "stack"}}, "'stacked'"),
    ],
)
def test_mistakes_get_the_message_of_the_real_check(table: dict[str, Any], words: str) -> None:
    with pytest.raises(CoterieError) as early_error:
        early.check(table)
    with pytest.raises(CoterieError) as real_error:
        resolve(table)
    assert words in str(early_error.value)
    assert str(early_error.value) == str(real_error.value)
    assert isinstance(early_error.value, ConfigError | TopologyError)


def test_what_it_cannot_know_is_left_to_the_real_check(folder: Path) -> None:
    early.check({"model": "missing.py:Net", "data": "missing.py:load"})
    early.check({"data": "mnist"})


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"model": "missing.py:Net"}, "there is no file"),
        ({"data": "missing.py:load"}, "there is no file"),
        ({"data": "own"}, "passed to coterie.simulate"),
        ({"model": "own"}, "passed to coterie.simulate"),
        ({"data": "mnist"}, "--data-dir"),
        ({"data": "mnist", "data_dir": "nowhere"}, "nowhere does not exist"),
    ],
)
def test_what_is_not_there_is_refused_before_a_run(
    table: dict[str, Any], words: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COTERIE_DATA", raising=False)
    with pytest.raises(CoterieError) as error:
        early.check_to_run(table)
    assert words in str(error.value)


def test_pytorch_is_not_imported() -> None:
    """Neither for a check, nor for a list, nor for a mistake on the command line."""
    code = """
import sys
from typer.testing import CliRunner
from coterie.cli import app, early
early.check({"algorithm": "fedavg"})
assert CliRunner().invoke(app, ["list"]).exit_code == 0
assert CliRunner().invoke(app, ["explain", "d-psgd"]).exit_code == 0
assert CliRunner().invoke(app, ["run", "--algorithm", "d-psdg"]).exit_code == 2
assert CliRunner().invoke(app, ["compare", "--algorithms", "local,d-psdg"]).exit_code == 2
assert CliRunner().invoke(app, ["data", "show", "--partition", "idd"]).exit_code == 2
assert CliRunner().invoke(app, ["run", "--topology", "random-regular(3)", "--peers", "5"]).exit_code == 2
assert CliRunner().invoke(app, ["run", "--topology", "erdos-renyi(1.5)"]).exit_code == 2
assert CliRunner().invoke(app, ["run", "--topology", "edges(missing.txt)"]).exit_code == 2
assert CliRunner().invoke(app, ["run", "--data", "mnist", "--data-dir", "missing"]).exit_code == 2
assert CliRunner().invoke(app, ["run", "--model", "missing.py:Net"]).exit_code == 2
assert CliRunner().invoke(app, ["run", "--resume", "missing"]).exit_code == 2
slow = {"torch", "numpy", "matplotlib"} & set(sys.modules)
assert not slow, slow
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
