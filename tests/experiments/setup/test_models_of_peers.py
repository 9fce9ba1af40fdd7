"""Peers with different models: the setting `models`, from every entrance, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import coterie
from coterie.catalogue import algorithms
from coterie.cli import app
from coterie.errors import ConfigError
from coterie.experiments.setup.config import resolve
from coterie.experiments.setup.prepare import prepare
from coterie.experiments.setup.schema import peers_in
from coterie.models import build
from coterie.toml_tables import load_toml

NETWORKS = """
from collections import OrderedDict
from torch import nn


def wide(shape, n_classes, act=nn.ReLU):
    return nn.Sequential(OrderedDict(flat=nn.Flatten(), first=nn.Linear(64, 8), act=act(),
                                     head=nn.Linear(8, n_classes)))


def deep(shape, n_classes):
    return nn.Sequential(OrderedDict(flat=nn.Flatten(), first=nn.Linear(64, 8), act=nn.ReLU(),
                                     middle=nn.Linear(8, 6), more=nn.ReLU(), head=nn.Linear(6, n_classes)))


def bent(shape, n_classes):
    return wide(shape, n_classes, nn.Tanh)


def normed(shape, n_classes):
    return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, n_classes))
"""


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """An experiment with `wide` at peers 0, 2, 3 and `deep` at 1, 4, 5."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nets.py").write_text(NETWORKS)
    return {
        "algorithm": "kd-pdfl",
        "settings": {"exchange_every": 4, "broadcast": "overwrite"},
        "data": "digits",
        "model": "nets.py:wide",
        "models": {"nets.py:deep": "1,4-5"},
        "peers": 6,
        "rounds": 5,
        "splitting": {"samples_per_peer": 20, "test_samples_per_peer": 10},
        "execution": {"executor": "stacked", "workers": 1, "checkpoint_seconds": 0.0},
    }


def test_every_peer_has_its_own_model(small: dict[str, Any], tmp_path: Path) -> None:
    run = coterie.simulate(**small)
    for peer, state in enumerate(run.models):
        name = "deep" if peer in (1, 4, 5) else "wide"
        net = build(f"{tmp_path}/nets.py:{name}", (1, 8, 8), 10, seed=0).eval()
        net.load_state_dict(state)
        federation = prepare(run.experiment).federation
        index = federation.test.of(peer)
        right = (net(federation.x[index]).argmax(1) == federation.y[index]).float().mean()
        assert float(right) == pytest.approx(float(run.personal_accuracy[peer]))
    with pytest.raises(ConfigError, match=r"run\.model\(peer\)"):
        _ = run.params
    assert run.result()["models"] == {f"{tmp_path}/nets.py:deep": "1,4-5"}


def test_resumed_run_has_the_same_bits(small: dict[str, Any], tmp_path: Path) -> None:
    def stop(record: Any, history: Any) -> None:
        if record.round == 2:
            raise KeyboardInterrupt

    whole = coterie.simulate(**small, run_dir=tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        coterie.simulate(**small, run_dir=tmp_path / "cut", observer=stop)
    resumed = coterie.simulate(resume_from=tmp_path / "cut")
    for ours, theirs in zip(whole.models, resumed.models, strict=True):
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(value, theirs[name]) for name, value in ours.items())
    assert torch.equal(whole.totals.bytes_sent, resumed.totals.bytes_sent)


def test_the_same_from_toml_flags_and_python(small: dict[str, Any], tmp_path: Path) -> None:
    toml = tmp_path / "experiment.toml"
    toml.write_text(resolve(small).to_toml())
    flags = ["--algorithm", "kd-pdfl(exchange_every=4,broadcast=overwrite)", "--data", "digits"]
    flags += ["--peers", "6", "--rounds", "5", "--executor", "stacked", "--workers", "1"]
    flags += ["--model", "nets.py:wide", "--set", 'models={"nets.py:deep"="1,4-5"}']
    flags += ["--set", "splitting.samples_per_peer=20", "--set", "splitting.test_samples_per_peer=10"]
    expected = coterie.simulate(**small).result()["personal_accuracy"]
    for number, arguments in enumerate((["--config", str(toml)], flags)):
        out = ["--json", "--quiet", "--run-dir", f"run{number}"]
        done = CliRunner().invoke(app, ["run", *arguments, *out])
        assert done.exit_code == 0, done.stderr
        assert json.loads(done.stdout)["personal_accuracy"] == expected
    assert resolve(load_toml(toml)) == resolve(small)


def test_independent_weights_are_those_of_each_network(small: dict[str, Any]) -> None:
    prepared = prepare(resolve({**small, "init": "independent"}))
    assert prepared.own_module is not None
    names = [set(prepared.own_module(peer).state_dict()) for peer in range(6)]
    assert ["middle.weight" in found for found in names] == [False, True, False, False, True, True]


@pytest.mark.parametrize("name", [name for name in algorithms if algorithms[name].facts.architectures])
def test_every_algorithm_that_allows_it(name: str, small: dict[str, Any]) -> None:
    experiment = {**small, "algorithm": name, "settings": {}, "rounds": 2, "topology": "full"}
    stacked = coterie.simulate(**experiment)
    assert bool(stacked.personal_accuracy.isfinite().all())
    looped = coterie.simulate(**{**experiment, "execution": {"executor": "looped", "workers": 1}})
    for ours, theirs in zip(stacked.models, looped.models, strict=True):
        for key, value in ours.items():
            torch.testing.assert_close(value, theirs[key], rtol=1e-3, atol=1e-4)


def test_networks_share_their_common_layer(small: dict[str, Any]) -> None:
    changes = {"settings": {}, "algorithm": "d-psgd", "rounds": 1, "topology": "full"}
    models = coterie.simulate(**{**small, **changes}).models
    for state in models:
        torch.testing.assert_close(state["first.weight"], models[0]["first.weight"])
    for alike in ([0, 2, 3], [1, 4, 5]):
        for peer in alike:
            torch.testing.assert_close(models[peer]["head.bias"], models[alike[0]]["head.bias"])
    assert not torch.allclose(models[0]["head.bias"], models[1]["head.bias"])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"algorithm": "ppdl", "settings": {}}, "'ppdl' needs the same model at all peers, and `models`"),
        ({"algorithm": "fedavg", "settings": {}}, "'fedavg' needs the same model"),
        ({"models": {"mpl": "0"}}, "unknown model 'mpl'; did you mean"),
        ({"models": {"mlp": "0-6"}}, "models.mlp: '0-6' is not within the peers 0 to 5"),
        ({"models": {"mlp": "3-1"}}, "'3-1' is not within"),
        ({"models": {"mlp": "all"}}, "'all' is not a list of peers such as 0-4,7"),
        ({"models": {"mlp": "0-2", "mlr": "2"}}, "peer 2 is listed under 'mlp' and under 'mlr'"),
        ({"models": {"nets.py:bent": "1"}}, "same names and shapes but compute different outputs"),
        ({"models": {"nets.py:normed": "1"}, "batchnorm": "local"}, "batchnorm 'local'"),
        ({"settings": {"layer": "middle"}}, "nets.py:wide': the model has no layer 'middle'; "),
        ({"settings": {"layer": "head"}, "models": {"nets.py:deep": "1"}}, None),
        ({"settings": {"layer": "hidden"}, "model": "mlp", "models": {"mlp(9)": 1}}, "128 in 'mlp', 9 in"),
        ({"settings": {"layer": 1}, "models": {}, "model": "nets.py:normed"}, None),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused(changes: dict[str, Any], words: str | None, small: dict[str, Any]) -> None:
    """Before anything runs; two of them are right."""
    experiment = {**small, **changes}
    if words is None:
        prepare(resolve(experiment))
        return
    with pytest.raises(ConfigError) as refused:
        prepare(resolve(experiment))
    assert words in str(refused.value)


def test_equal_networks_under_two_names_are_fine(small: dict[str, Any]) -> None:
    run = coterie.simulate(**{**small, "model": "mlp", "models": {"mlp(128)": "0-5"}, "rounds": 1})
    assert len(run.trained) == 1


def test_lists_of_peers() -> None:
    assert peers_in("0-2, 5,7 - 7", 8, "here") == [0, 1, 2, 5, 7]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["settings.layer=hiden"], "did you mean hidden? Its layers: flatten, hidden, relu, head"),
        (["settings.share=base"], "needs layer"),
        (["models.mlp(64)=0-99"], "0 to 19"),
    ],
)
def test_mistakes_on_the_command_line(
    settings: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sets = [part for setting in settings for part in ("--set", setting)]
    done = CliRunner().invoke(app, ["run", "--algorithm", "kd-pdfl", "--model", "mlp", *sets])
    assert (done.exit_code, done.stdout) == (2, "")
    assert words in done.stderr
    assert not list(tmp_path.iterdir())
