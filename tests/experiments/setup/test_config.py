"""From what the user typed to an experiment: precedence, presets, round trips, and mistakes."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from coterie.catalogue import algorithms
from coterie.errors import ConfigError, CoterieError, TopologyError
from coterie.experiments.runs.result import distribution
from coterie.experiments.setup.config import (
    build_algorithm,
    note_of_validation,
    override,
    resolve,
    resolve_to_run,
)
from coterie.experiments.setup.prepare import prepare
from coterie.experiments.setup.schema import Experiment
from coterie.metric import ACCURACY
from coterie.toml_tables import load_toml


def test_defaults_follow_from_data_and_algorithm() -> None:
    experiment = resolve({})
    assert (experiment.algorithm, experiment.data, experiment.topology) == ("local", "digits", "full")
    assert experiment.model
    assert experiment.partition
    assert resolve({"algorithm": "fedavg"}).topology == "star"


@pytest.mark.parametrize(
    ("assignment", "expected"),
    [
        ("rounds=7", {"rounds": 7}),
        ("training.lr=0.5", {"training": {"lr": 0.5}}),
        (" seed = 3", {"seed": 3}),
        ("topology=random-regular(4)", {"topology": "random-regular(4)"}),
        ("data=synthetic(0.5,0.5)", {"data": "synthetic(0.5,0.5)"}),
        ('model="mlp"', {"model": "mlp"}),
        ("partition=dirichlet(a=0.1)", {"partition": "dirichlet(a=0.1)"}),
        ("settings.flag=true", {"settings": {"flag": True}}),
        ("model=", {"model": ""}),
    ],
)
def test_set_parses_toml_or_text(assignment: str, expected: dict[str, Any]) -> None:
    table: dict[str, Any] = {}
    override(table, assignment)
    assert table == expected


def test_set_goes_into_sections_and_wins() -> None:
    table: dict[str, Any] = {"training": {"lr": 0.1, "epochs": 3}}
    for assignment in ("training.lr=0.2", "training.lr=0.3", "peers=4"):
        override(table, assignment)
    assert table == {"training": {"lr": 0.3, "epochs": 3}, "peers": 4}


@pytest.mark.parametrize("wrong", ["rounds", "=3", "  =3", "rounds.x=1"])
def test_set_refuses_what_is_no_assignment(wrong: str) -> None:
    with pytest.raises(ConfigError, match="--set"):
        override({"rounds": 3}, wrong)


def test_precedence_of_preset_inline_settings_and_training() -> None:
    preset = resolve({"algorithm": "d-psgd", "preset": "blend-dfl"})
    assert (preset.training.epochs, preset.training.lr, preset.training.weight_decay) == (5, 0.01, 5e-4)
    mine = resolve({"algorithm": "d-psgd", "preset": "blend-dfl", "training": {"lr": 0.3}})
    assert (mine.training.lr, mine.training.epochs) == (0.3, 5), "what the user says wins over the preset"
    assert build_algorithm(resolve({"algorithm": "d-psgd(metropolis)"})).settings()["mixing"] == "metropolis"
    both = resolve({"algorithm": "random-gossip(peers=2)", "settings": {"peers": 5}})
    assert build_algorithm(both).settings()["peers"] == 5
    assert build_algorithm(resolve({"algorithm": "random-gossip(2)"})).settings()["peers"] == 2


@pytest.mark.parametrize("algorithm", ["pfedkd-wcl", "pfedme", "fedavg", "per-fedavg", "local"])
def test_epochs_of_the_user_replace_steps_of_a_preset(algorithm: str) -> None:
    preset = "paper" if algorithm in ("pfedkd-wcl", "pfedme") else "pfedkd-wcl"

    def training(**given: int) -> tuple[int | None, int, int]:
        found = resolve({"algorithm": algorithm, "preset": preset, "training": given}).training
        return found.steps, found.epochs, found.epoch_groups

    assert training() == (20, 1, 0)
    assert training(epochs=3) == (None, 3, 0)
    assert training(epoch_groups=4) == (None, 1, 4)
    assert training(epochs=3, steps=7) == (7, 3, 0), "the user's own steps replace the user's epochs"


def test_a_resolved_preset_resolves_to_itself() -> None:
    """As when a run is resumed from its own config, in which all values are written out."""
    for training in ({}, {"epochs": 3}):
        first = resolve({"algorithm": "fedavg", "preset": "pfedkd-wcl", "training": training})
        assert resolve(first.model_dump(mode="json")) == first


RICH: dict[str, Any] = {
    "algorithm": "dfedavgm(metropolis,momentum=0.5)",
    "preset": "dfedpgp",
    "data": "synthetic(0.5,0.5)",
    "model": "mlp(20)",
    "topology": "random-regular(4)",
    "peers": 12,
    "seed": 2**40,
    "init": "independent",
    "training": {"steps": 4, "lr": 0.123456789012345},
    "splitting": {"validation": 0.1, "samples_per_peer": 30},
    "evaluation": {"every": 3, "global_accuracy": "always"},
    "execution": {"executor": "looped", "workers": 2},
    "faults": {"churn": 0.25},
}


def test_config_of_a_run_resolves_to_the_same_experiment(tmp_path: Path) -> None:
    for raw in ({}, RICH, {"algorithm": "fedprox", "data": "digits"}):
        experiment = resolve(raw)
        path = tmp_path / "config.toml"
        path.write_text(experiment.to_toml())
        again = resolve(load_toml(path))
        assert again == experiment
        assert build_algorithm(again) == build_algorithm(experiment)


def test_paths_start_from_the_folder_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when that folder was itself given relative to the current one."""
    (tmp_path / "exp").mkdir()
    (tmp_path / "exp" / "edges.csv").write_text("0,1\n")
    raw = {
        "model": "net.py:Net",
        "data": "mine.py:load",
        "topology": "edges(edges.csv)",
        "data_dir": "files",
    }
    monkeypatch.chdir(tmp_path)
    for base in (tmp_path / "exp", Path("exp")):
        experiment = resolve(raw, base_dir=base)
        folder = tmp_path / "exp"
        assert experiment.model == f"{folder}/net.py:Net"
        assert experiment.data == f"{folder}/mine.py:load"
        assert experiment.topology == f"edges({folder}/edges.csv)"
        assert experiment.data_dir == f"{folder}/files"
    keyword = resolve({**raw, "topology": "edges(edges.csv,directed=true)"}, base_dir=folder)
    assert keyword.topology == f"edges({folder}/edges.csv,directed=true)"


def test_a_file_for_hugging_face_starts_from_the_folder_too_a_name_does_not(tmp_path: Path) -> None:
    (tmp_path / "patients.parquet").touch()
    beside = resolve({"data": "huggingface(patients.parquet,label=ill)"}, base_dir=tmp_path)
    assert beside.data == f"huggingface({tmp_path}/patients.parquet,label=ill)"
    assert (
        resolve({"data": "huggingface(ylecun/mnist)"}, base_dir=tmp_path).data == "huggingface(ylecun/mnist)"
    )


def test_data_folder_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path))
    assert resolve({}).data_dir == str(tmp_path)
    assert resolve({"data_dir": "/elsewhere"}).data_dir == "/elsewhere"


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"algoritm": "local"}, "algorithm"),
        ({"training": {"learning": 1}}, r"training\.learning"),
        ({"training": {"epoch": 1}}, "did you mean epochs"),
        ({"training": 3}, "section"),
        ({"settings": 3}, "section"),
        ({"algorithm": "d-pgsd"}, "d-psgd"),
        ({"algorithm": "local(true,3)"}, "at most 1 settings"),
        ({"algorithm": "d-psgd", "settings": {"mixin": "uniform"}}, "did you mean mixing"),
        ({"algorithm": "d-psgd", "settings": {"mixing": "uniforn"}}, "mixing"),
        ({"algorithm": "random-gossip", "settings": {"peers": "many"}}, "peers"),
        ({"algorithm": "d-psgd", "preset": "blend"}, "blend-dfl"),
        ({"algorithm": "gossip-fedavg", "preset": "x"}, "has none"),
        ({"data": "digit"}, "digits"),
        ({"model": "mlpp"}, "mlp"),
        ({"partition": "dirichlett(0.1)"}, "dirichlet"),
        ({"topology": "rign"}, "ring"),
        ({"topology": "random-regular(x)"}, "int"),
        ({"peers": 0}, "peers"),
        ({"peers": "ten"}, "peers"),
        ({"rounds": -1}, "rounds"),
        ({"training": {"lr": -1.0}}, r"training\.lr"),
        ({"training": {"lr": float("inf")}}, r"training\.lr"),
        ({"training": {"weight_decay": float("inf")}}, r"training\.weight_decay"),
        ({"training": {"lr": float("nan")}}, r"training\.lr"),
        ({"training": {"optimizer": "adm"}}, "optimizer"),
        ({"faults": {"churn": 1.5}}, r"faults\.churn"),
        ({"execution": {"executor": "stakced"}}, r"execution\.executor"),
        ({"algorithm": "fedavg", "topology": "ring"}, "star"),
        ({"algorithm": "fedavg(participation=0)"}, "participation"),
    ],
)
def test_mistakes_are_named(raw: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve(raw)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"algorithm": "oracle", "partition": "iid"}, "clusters"),
        ({"algorithm": "d-psgd(metropolis)", "topology": "directed(2)"}, "both ways"),
        ({"topology": "random-regular(3)", "peers": 5}, "5"),
        ({"topology": "random-regular(7)", "peers": 5}, "5"),
        ({"peers": 5000, "topology": "ring"}, "5000"),
        ({"data": "mnist", "data_dir": "/nowhere"}, "/nowhere"),
        ({"execution": {"device": "nonsense"}}, "nonsense"),
        ({"model": "/nowhere/net.py:Net"}, "/nowhere/net.py"),
        ({"data": "/nowhere/data.py:load"}, "/nowhere/data.py"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_runs(raw: dict[str, Any], message: str) -> None:
    with pytest.raises(CoterieError, match=message):
        prepare(resolve({"data": "digits", **raw}))


@pytest.mark.parametrize("device", ["meta", "vulkan", "hpu", ""])
def test_a_device_that_cannot_compute_is_refused_in_one_sentence(device: str) -> None:
    with pytest.raises(ConfigError, match=f"device '{device}' cannot be used: .") as caught:
        prepare(resolve({"data": "digits", "execution": {"device": device}}))
    assert len(str(caught.value)) < 160


def test_cuda_without_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    if torch.cuda.is_available():
        monkeypatch.setattr(torch, "empty", _no_cuda)
    with pytest.raises(ConfigError, match="cuda"):
        prepare(resolve({"execution": {"device": "cuda"}}))


def _no_cuda(*_: Any, **__: Any) -> None:
    raise RuntimeError("no CUDA device")


def test_toml_errors_name_the_file(tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    with pytest.raises(ConfigError, match=r"bad\.toml"):
        load_toml(path)
    path.write_text("rounds = \n")
    with pytest.raises(ConfigError, match=r"bad\.toml.*line 1"):
        load_toml(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"bad\.toml"):
        load_toml(path)


@given(st.integers(1, 300), st.one_of(st.none(), st.integers(1, 40)))
def test_first_last_and_every_so_many_rounds_are_measured(rounds: int, every: int | None) -> None:
    experiment = Experiment.model_validate({"rounds": rounds, "evaluation": {"every": every}})
    measured = [number for number in range(rounds) if experiment.evaluates(number)]
    step = every or max(1, rounds // 50)
    assert measured == sorted({0, rounds - 1, *range(step - 1, rounds, step)} & set(range(rounds)))
    for plan, expected in (("never", []), ("last", [rounds - 1]), ("always", list(range(rounds)))):
        experiment = Experiment.model_validate({"rounds": rounds, "evaluation": {"global_accuracy": plan}})
        assert [number for number in range(rounds) if experiment.evaluates_globally(number)] == expected


def test_distribution_by_hand() -> None:
    values = torch.tensor([0.5, 0.1, 0.9, 0.3, float("nan"), 0.7, 0.2, 0.4, 0.6, 0.8, 1.0, 0.0])
    found = distribution(values, ACCURACY)
    assert found is not None
    assert found["mean"] == pytest.approx(0.5)
    assert found["std"] == pytest.approx((sum((k / 10 - 0.5) ** 2 for k in range(11)) / 11) ** 0.5)
    assert found["worst_decile"] == pytest.approx((0.0 + 0.1) / 2), "of 11 peers the worst two"
    assert found["per_peer"][4] is None
    assert found["per_peer"][1] == pytest.approx(0.1)
    assert distribution(None, ACCURACY) is None
    assert distribution(torch.tensor([float("nan")]), ACCURACY) is None
    ten = distribution(torch.arange(10.0), ACCURACY)
    assert ten is not None
    assert ten["worst_decile"] == 0.0


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
        ({"algorithm": "fedavg(2)"}, "at most 1"),
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
        ({"topology": "random-regular"}, "its arguments are (k,every=0)"),
        ({"topology": "random-regular(k=2,evry=1)"}, "did you mean every"),
        ({"topology": "random-regular(1.5)"}, "k must be int"),
        ({"peers": 0}, "peers"),
        ({"peerz": 1}, "did you mean peers"),
        ({"training": {"lrr": 1}}, "did you mean lr"),
        ({"training": {"momentum": 2}}, "momentum"),
        ({"training": {"optimizer": "adm"}}, "'sgd', 'adam' or 'adamw'"),
        ({"training": 3}, "section"),
        ({"settings": 3}, "section"),
        ({"execution": {"executor": "stack"}}, "'stacked'"),
    ],
)
def test_mistakes_are_answered_with_what_helps(table: dict[str, Any], words: str) -> None:
    with pytest.raises((ConfigError, TopologyError)) as error:
        resolve(table)
    assert words in str(error.value)


def test_files_may_be_missing_until_a_run() -> None:
    resolve({"model": "missing.py:Net", "data": "missing.py:load"})
    resolve({"data": "mnist"})


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
    table: dict[str, Any], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COTERIE_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CoterieError) as error:
        resolve_to_run(table)
    assert words in str(error.value)


@pytest.mark.parametrize(
    "table",
    [
        {"algorithm": "d-psdg"},
        {"data": "minst"},
        {"model": "mlpp(3)"},
        {"models": {"mlpp": "0-3"}},
        {"partition": "dirichlett(1)"},
        {"topology": "rng"},
        {"training": {"lrr": 1}},
        {"peerz": 3},
    ],
)
def test_unknown_names_and_keys_are_found_before_pytorch_is_imported(table: dict[str, Any]) -> None:
    code = f"""
import sys
from coterie.errors import ConfigError
from coterie.experiments.setup.config import resolve
try:
    resolve({{"algorithm": "d-psgd"}} | {table!r})
except ConfigError as error:
    assert "did you mean" in str(error), error
slow = {{"torch", "numpy"}} & set(sys.modules)
assert not slow, slow
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("algorithm", list(algorithms))
def test_validation_data_are_set_aside_for_those_who_need_them(algorithm: str) -> None:
    expected = 0.2 if algorithm in ("ppdl", "ppdl-var", "dpfl") else 0.0
    assert resolve({"algorithm": algorithm}).splitting.validation == expected
    for said in (0.0, 0.3):
        table = {"algorithm": algorithm, "splitting": {"validation": said}}
        assert resolve(table).splitting.validation == said
        assert note_of_validation([table]) == ""


def test_a_run_of_before_keeps_what_it_says() -> None:
    """What a folder's config.toml says is never a default."""
    before = Experiment.model_validate({"algorithm": "ppdl"})
    assert resolve(tomllib.loads(before.to_toml())).splitting.validation == 0.0


def test_other_keys_of_the_section_are_kept() -> None:
    splitting = resolve({"algorithm": "ppdl(2)", "splitting": {"samples_per_peer": 30}}).splitting
    assert (splitting.samples_per_peer, splitting.validation) == (30, 0.2)


def test_the_note_names_those_who_need_validation_data() -> None:
    tables = [{"algorithm": name} for name in ("local", "ppdl(2)", "ppdl-var", "ppdl(2)")]
    assert note_of_validation(tables).startswith("note: ppdl(2), ppdl-var need validation data: 0.2 of every")
    assert note_of_validation(tables[:2]).startswith("note: ppdl(2) needs validation data")
    assert note_of_validation(tables[:1]) == ""
