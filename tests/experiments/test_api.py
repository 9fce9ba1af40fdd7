"""`coterie.simulate`, the Run that it returns, and the folder that it leaves."""

from __future__ import annotations

import csv
import dataclasses
import errno
import json
import os
import re
from pathlib import Path
from typing import Any

import networkx
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import coterie
from coterie.catalogue import algorithms
from coterie.data.partitions.iid import Iid
from coterie.errors import ConfigError, CoterieError, DataError, DivergedError, RunFolderError
from coterie.experiments.runs.folder import RunFolder
from coterie.experiments.setup.config import resolve
from coterie.experiments.setup.prepare import Objects, prepare
from coterie.protocol import Exchange, Facts, ModelAlgorithm, ModelState, Node, Round
from coterie.toml_tables import load_toml
from coterie.topology import make

QUICK: dict[str, Any] = {
    "data": "digits",
    "model": "mlr",
    "partition": "dirichlet(0.5)",
    "topology": "ring",
    "peers": 4,
    "rounds": 2,
    "splitting": {"samples_per_peer": 20, "test_samples_per_peer": 10},
    "evaluation": {"global_samples": 20},
    "execution": {"executor": "stacked", "workers": 1},
}
UNSPLIT: dict[str, Any] = {"partition": None, "splitting": {}}  # for data that belong to peers already
LEARNING: dict[str, Any] = {"training": {"lr": 0.2, "epochs": 10}, "execution": {"workers": 1}}
FEATURES, CLASSES = 4, 3


def simulate(**changes: Any) -> coterie.Run:
    return coterie.simulate(**{**QUICK, **changes})


def arrays(n: int = 60, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    y = rng.integers(0, CLASSES, n)
    return rng.normal(size=(n, FEATURES)) + 2.0 * y[:, None], y


class Net(nn.Module):
    """Asks for what Coterie can give: the shape of a sample and the number of classes."""

    def __init__(self, shape: tuple[int, ...], n_classes: int) -> None:
        super().__init__()
        self.hidden, self.norm = nn.Linear(shape[0], 6), nn.BatchNorm1d(6)
        self.head = nn.Linear(6, n_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.norm(self.hidden(x))))


def seeded_net() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Net((FEATURES,), CLASSES)


def own_data() -> Any:
    return coterie.from_arrays(*arrays())


def without_time(result: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in result.items() if k not in ("seconds", "seconds_per_round", "run_dir")}


# What a Run says


def test_result_has_what_the_command_line_prints() -> None:
    run = simulate(algorithm="d-psgd")
    result = run.result()
    assert json.loads(json.dumps(result)) == result
    wanted = """algorithm data model partition topology peers rounds seed personal_accuracy
        personal_accuracy_after_local personal_accuracy_after_mixing global_accuracy bytes_sent_per_peer
        seconds seconds_per_round run_dir"""
    assert set(wanted.split()) <= result.keys()
    assert result["personal_accuracy"] == result["personal_accuracy_after_mixing"], "D-PSGD's own point"
    assert len(result["personal_accuracy"]["per_peer"]) == 4
    model_bytes = 4 * (64 * 10 + 10)
    assert result["bytes_sent_per_peer"] == 2 * 2 * model_bytes, "two rounds, two neighbours"
    assert run.graph.tolist() == [[0, 2, 0, 2], [2, 0, 2, 0], [0, 2, 0, 2], [2, 0, 2, 0]]
    assert run.accuracy_over_time().shape == (2, 4)
    assert run.history.rounds == [1, 2]
    assert torch.equal(run.personal_accuracy, run.accuracy_over_time("after_mixing")[-1])


@pytest.mark.parametrize("executor", ["stacked", "looped"])
def test_models_load_into_the_module_and_have_the_recorded_accuracy(executor: str) -> None:
    run = simulate(algorithm="local", execution={"executor": executor, "workers": 2})
    prepared = prepare(run.experiment)
    federation = prepared.federation
    for peer in range(4):
        prepared.module.load_state_dict(run.model(peer))
        index = federation.test.of(peer)
        predicted = prepared.module.eval()(federation.x[index]).argmax(1)
        accuracy = float((predicted == federation.y[index]).float().mean())
        assert float(run.personal_accuracy[peer]) == pytest.approx(accuracy)
    assert len(run.models) == 4


def test_models_with_batch_norm_load_too() -> None:
    data = own_data()
    module = seeded_net()
    run = coterie.simulate("local", data, module, "iid", "ring", 3, 2, execution={"workers": 1})
    assert run.executor == "looped", "BatchNorm in a module of one's own cannot be stacked"
    before = module.state_dict()["norm.running_mean"].clone()
    module.load_state_dict(run.model(1))
    assert not torch.equal(before, module.state_dict()["norm.running_mean"])


def test_global_accuracy_is_measured_when_asked() -> None:
    assert simulate().result()["global_accuracy"] is not None
    never = simulate(evaluation={"global_accuracy": "never", "global_samples": 20})
    assert never.result()["global_accuracy"] is None
    always = simulate(evaluation={"global_accuracy": "always", "global_samples": 20})
    assert [m.get("global_accuracy", "after_local") is None for m in always.history.measurements] == [
        False
    ] * 2
    last = simulate()
    assert [m.get("global_accuracy", "after_local") is None for m in last.history.measurements] == [
        True,
        False,
    ]


# Objects instead of names


@pytest.mark.parametrize(
    "model",
    [Net, seeded_net(), lambda shape, n_classes: nn.Linear(shape[0], n_classes), "mlr"],
    ids=["class", "instance", "function", "name"],
)
def test_own_models(model: Any) -> None:
    run = coterie.simulate("d-psgd", own_data(), model, "iid", "full", 3, 3, **LEARNING)
    assert float(run.personal_accuracy.mean()) > 0.6
    assert run.experiment.model == ("mlr" if model == "mlr" else "own")


@pytest.mark.parametrize("kind", ["arrays", "tuples", "four", "datasets", "dicts", "federation"])
def test_own_data(kind: str) -> None:
    data: Any
    peers = [arrays(60, seed) for seed in range(3)]
    if kind == "arrays":
        data = own_data()
    elif kind == "tuples":
        data = peers
    elif kind == "four":
        data = [(*arrays(20, seed), *arrays(10, seed + 9)) for seed in range(3)]
    elif kind == "datasets":
        data = [TensorDataset(torch.tensor(x), torch.tensor(y)) for x, y in peers]
    elif kind == "dicts":
        data = [{"train": pair, "test": arrays(10, 7)} for pair in peers]
    else:
        data = coterie.from_peers(peers)
    more = {"partition": "iid", "peers": 3} if kind == "arrays" else {}
    run = coterie.simulate("d-psgd", data, "mlr", topology="full", rounds=3, **LEARNING, **more)
    assert run.peers == 3
    assert float(run.personal_accuracy.mean()) > 0.6


@pytest.mark.parametrize("form", [list, coterie.from_peers])
@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"partition": "pathological(1)"}, "leave out partition;"),
        ({"partition": "iid"}, "leave out partition;"),
        ({"partition": Iid()}, "leave out partition;"),
        ({"splitting": {"samples_per_peer": 5}}, "leave out splitting.samples_per_peer;"),
        ({"splitting": {"test_samples_per_peer": 5}}, "leave out splitting.test_samples_per_peer;"),
    ],
)
def test_data_that_belong_to_peers_are_not_split_again(form: Any, asked: dict[str, Any], named: str) -> None:
    data = form([arrays(20, seed) for seed in range(3)])
    with pytest.raises(ConfigError, match=f"already belong to peers: {named}"):
        coterie.simulate("local", data, "mlr", rounds=1, **asked)


def test_an_algorithm_that_needs_validation_data_gets_them(caplog: pytest.LogCaptureFixture) -> None:
    run = coterie.simulate(algorithm="ppdl(1)", peers=3, rounds=1, model="mlr")
    assert run.experiment.splitting.validation == 0.2
    assert "ppdl(1) needs validation data" in caplog.text


def test_a_federation_keeps_the_validation_data_that_it_has() -> None:
    rng = np.random.default_rng(0)
    peers = [(rng.normal(size=(20, 3)), np.arange(20) % 2) for _ in range(3)]
    held = coterie.from_peers(peers, validation=0.25, seed=0)
    run = coterie.simulate(algorithm="ppdl(1)", data=held, rounds=1, model="mlr")
    assert run.experiment.splitting.validation == 0.0
    with pytest.raises(ConfigError, match=r"set splitting\.validation"):
        coterie.simulate(algorithm="ppdl(1)", data=coterie.from_peers(peers), rounds=1, model="mlr")


def test_validation_samples_are_taken_from_a_list_but_not_from_a_federation() -> None:
    peers = [arrays(20, seed) for seed in range(3)]
    asked: dict[str, Any] = {"rounds": 1, "splitting": {"validation": 0.25}}
    run = coterie.simulate("local", peers, "mlr", **asked)
    held = prepare(run.experiment, Objects(data=peers)).federation.validation
    assert held.sizes.tolist() == coterie.from_peers(peers, validation=0.25).validation.sizes.tolist()
    with pytest.raises(ConfigError, match=r"leave out splitting\.validation;"):
        coterie.simulate("local", coterie.from_peers(peers), "mlr", **asked)


@pytest.mark.parametrize("partition", [None, "natural"])
def test_the_partition_of_data_that_belong_to_peers_is_their_own(tmp_path: Path, partition: Any) -> None:
    peers = [arrays(20, seed) for seed in range(3)]
    run = coterie.simulate("local", peers, "mlr", partition, rounds=1, run_dir=tmp_path / "run")
    assert run.result()["partition"] == "own"
    assert RunFolder(tmp_path / "run").experiment().partition == "own"
    again = coterie.simulate(data=peers, resume_from=tmp_path / "run")
    assert without_time(again.result()) == without_time(run.result())


@pytest.mark.parametrize("kind", ["networkx", "pairs", "array", "tensor", "topology"])
def test_own_graphs(kind: str) -> None:
    pairs = [(0, 1), (1, 2)]
    graph = networkx.Graph(pairs)
    graph.add_node(3)
    given: Any = {
        "networkx": graph,
        "pairs": pairs,
        "array": networkx.to_numpy_array(graph, nodelist=range(4)),
        "tensor": torch.tensor(networkx.to_numpy_array(graph, nodelist=range(4))),
        "topology": make(pairs, peers=4, seed=0),
    }[kind]
    run = simulate(algorithm="d-psgd", topology=given)
    assert run.graph.tolist() == [[0, 2, 0, 0], [2, 0, 2, 0], [0, 2, 0, 0], [0, 0, 0, 0]]


@dataclasses.dataclass(frozen=True)
class HalfAway(ModelAlgorithm):
    """A user's own algorithm, with a setting."""

    factor: float = 0.5
    facts = Facts(paper="own", measured="after_local", communication="none")

    def round(self, state: ModelState, node: Node) -> Round[ModelState]:
        yield Exchange()
        node.record(size=torch.stack([p.flatten(1).norm(dim=1) for p in state.params.values()]).sum(0))
        return ModelState({name: value * self.factor for name, value in state.params.items()})


def test_own_algorithm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(algorithms, "_factories", dict(algorithms._factories))  # it will be registered there
    run = simulate(algorithm=HalfAway(0.25), run_dir=tmp_path / "run")
    start = prepare(run.experiment).module.state_dict()
    for name, value in run.model(0).items():
        torch.testing.assert_close(value, start[name] * 0.25**2)
    lines = [json.loads(line) for line in (tmp_path / "run" / "diagnostics.jsonl").read_text().splitlines()]
    assert [(line["round"], line["name"], len(line["values"])) for line in lines] == [
        (0, "size", 4),
        (1, "size", 4),
    ]
    assert lines[1]["values"][0] == pytest.approx(lines[0]["values"][0] * 0.25, rel=1e-5)
    again = coterie.simulate(HalfAway(0.25), resume_from=tmp_path / "run")
    assert again.result() | {"seconds": 0, "seconds_per_round": 0} == run.result() | {
        "seconds": 0,
        "seconds_per_round": 0,
    }


def test_two_own_algorithms_of_one_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As from two modules: each runs, is compared with the other, and can be gone on with."""
    monkeypatch.setattr(algorithms, "_factories", dict(algorithms._factories))

    @dataclasses.dataclass(frozen=True)
    class Other(HalfAway):
        times: float = 2.0

        def round(self, state: ModelState, node: Node) -> Round[ModelState]:
            yield Exchange()
            return ModelState({name: value * self.times for name, value in state.params.items()})

    Other.__name__ = "HalfAway"
    start = simulate(algorithm=HalfAway(1.0), rounds=1).model(0)
    other = simulate(algorithm=Other(times=3.0), run_dir=tmp_path / "run", rounds=1)
    half = simulate(algorithm=HalfAway(0.5), rounds=1)
    for name, value in start.items():
        torch.testing.assert_close(other.model(0)[name], value * 3)
        torch.testing.assert_close(half.model(0)[name], value / 2)
    assert (half.experiment.algorithm, other.experiment.algorithm) == ("HalfAway", "HalfAway-2")
    both = coterie.compare([HalfAway(0.5), Other(times=3.0)], **{**QUICK, "rounds": 1})
    for name, value in start.items():
        torch.testing.assert_close(both.runs["HalfAway-2(times=3.0)"][0].model(0)[name], value * 3)
        torch.testing.assert_close(both.runs["HalfAway"][0].model(0)[name], value / 2)
    monkeypatch.delitem(algorithms._factories, "HalfAway-2")  # as in another process
    again = coterie.simulate(Other(times=3.0), resume_from=tmp_path / "run")
    assert without_time(again.result()) == without_time(other.result())


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"topology": make("ring", peers=7, seed=0)}, ConfigError, "7 peers"),
        ({"model": nn.Linear(3, 10)}, ConfigError, "Linear"),
        ({"model": nn.Sequential(nn.Flatten(), nn.Linear(64, 3))}, ConfigError, "10 classes"),
        ({"model": nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).double()}, ConfigError, "fails on a batch"),
        ({"model": nn.Linear(64, 10), "init": "independent"}, ConfigError, "independent"),
        ({"data": [arrays(9), arrays(9)], "peers": 3, **UNSPLIT}, DataError, "peers = 2"),
        ({"algorithm": "oracle"}, ConfigError, "clusters"),
        (
            {"execution": {"executor": "stacked"}, "model": Net, "data": [arrays(9)] * 4, **UNSPLIT},
            ConfigError,
            "looped",
        ),
    ],
)
def test_objects_that_do_not_fit(
    changes: dict[str, Any], error: type[CoterieError], message: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message):
        simulate(**changes, run_dir=tmp_path / "run")


def test_nan_in_the_data_names_the_peer(tmp_path: Path) -> None:
    peers = [arrays(20, seed) for seed in range(3)]
    peers[2][0][4, 1] = float("nan")
    with pytest.raises(DataError, match=r"1 samples.*NaN.*peer 2"):
        coterie.simulate("local", peers, "mlr", run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


# Starting weights


def test_independent_starts_differ_and_do_not_depend_on_who_shares_a_process() -> None:
    still = {"training": {"lr": 0.0}, "rounds": 1}
    same, own = simulate(**still), simulate(**still, init="independent")
    name = next(iter(same.params))
    assert all(torch.equal(row, same.params[name][0]) for row in same.params[name])
    assert len({tuple(row.flatten().tolist()) for row in own.params[name]}) == 4
    fewer = simulate(**still, init="independent", peers=3)
    assert torch.equal(own.params[name][:3], fewer.params[name])
    assert not torch.equal(own.params[name], simulate(**still, init="independent", seed=1).params[name])


def test_local_batch_norm_sends_less() -> None:
    data, results = own_data(), {}
    for kind in ("average", "local"):
        run = coterie.simulate(
            "d-psgd", data, Net, "iid", "ring", 4, 1, batchnorm=kind, execution={"workers": 1}
        )
        results[kind] = run.result()["bytes_sent_per_peer"]
        means = run.params["norm.running_mean"]
        assert torch.allclose(means[0], means[2]) is False
    assert results["average"] - results["local"] == 2 * (6 + 6) * 4, "two neighbours, mean and variance"


# The folder


def test_folder_has_everything(tmp_path: Path) -> None:
    run = simulate(algorithm="d-psgd", run_dir=tmp_path / "a" / "run")
    folder = tmp_path / "a" / "run"
    assert run.run_dir == folder
    names = {"checkpoint.safetensors", "config.toml", "environment.json", "peers.csv", "result.json"}
    assert {path.name for path in folder.iterdir()} == names | {
        "links.csv", "metrics.csv", "report.html", "rounds.csv",
    }  # fmt: skip
    assert resolve(load_toml(folder / "config.toml")) == run.experiment
    assert json.loads((folder / "result.json").read_text()) == run.result()
    lines = (folder / "metrics.csv").read_text().splitlines()
    assert len(lines) == 1 + 2 * 4
    header, first = lines[0].split(","), lines[1].split(",")
    row = dict(zip(header, first, strict=True))
    assert float(row["accuracy_after_mixing"]) == pytest.approx(float(run.accuracy_over_time()[0, 0]))
    assert row["global_accuracy_after_mixing"] == "", "measured in the last round only"
    links = [line.split(",") for line in (folder / "links.csv").read_text().splitlines()[1:]]
    assert len(links) == 2 * 8
    assert sum(int(line[4]) for line in links) == int(run.totals.bytes_sent.sum())
    assert RunFolder(folder).result() == run.result()


def test_an_existing_folder_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.txt").write_text("years of work")
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "run", tmp_path / "file"):
        with pytest.raises(RunFolderError, match="exists already"):
            simulate(run_dir=path)
    assert [p.name for p in (tmp_path / "run").iterdir()] == ["thesis.txt"]
    assert (tmp_path / "file").read_text() == "x"
    (tmp_path / "empty").mkdir()
    simulate(run_dir=tmp_path / "empty")


@pytest.mark.parametrize("call", ["mkdir", "exists", "iterdir"])
def test_a_folder_that_may_not_be_written(call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run").mkdir()
    experiment = resolve(QUICK)

    def denied(*_: Any, **__: Any) -> Any:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, call, denied)
    with pytest.raises(RunFolderError, match="Permission denied"):
        RunFolder.create(tmp_path / "run", experiment, "stacked")


def test_a_folder_below_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(RunFolderError, match="cannot make the folder"):
        simulate(run_dir=tmp_path / "file" / "run")


def test_what_is_no_run_cannot_be_resumed(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"no config\.toml"):
        coterie.simulate(resume_from=tmp_path)
    with pytest.raises(RunFolderError, match=r"no config\.toml"):
        coterie.simulate(resume_from=tmp_path / "nothing")


def test_damaged_folders(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    simulate(run_dir=folder)
    checkpoint = (folder / "checkpoint.safetensors").read_bytes()
    (folder / "checkpoint.safetensors").write_bytes(checkpoint[:-10])
    with pytest.raises(RunFolderError, match="checkpoint"):
        coterie.simulate(resume_from=folder)
    (folder / "checkpoint.safetensors").write_bytes(checkpoint)
    environment = (folder / "environment.json").read_text()
    for wrong in ("{", "{}", "[]"):
        (folder / "environment.json").write_text(wrong)
        with pytest.raises(RunFolderError, match=r"environment\.json"):
            coterie.simulate(resume_from=folder)
    (folder / "environment.json").write_text(environment)
    config = (folder / "config.toml").read_text()
    (folder / "config.toml").write_text(re.sub(r'model = "mlr"', 'model = "mlp"', config))
    with pytest.raises(RunFolderError, match="does not fit"):
        coterie.simulate(resume_from=folder)


@pytest.mark.parametrize("torn", ["2", "2,", "1,3,1,0.5", "2,0,1,0.5,0.1,0.2,0.3,0.4,,", "\n\n"])
def test_a_torn_last_line_is_dropped(torn: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run = simulate(run_dir=folder)
    whole = (folder / "metrics.csv").read_bytes()
    with open(folder / "metrics.csv", "a") as file:
        file.write(torn)
    again = coterie.simulate(resume_from=folder)
    assert (folder / "metrics.csv").read_bytes() == whole
    assert without_time(again.result()) == without_time(run.result())


def test_divergence_keeps_the_records(tmp_path: Path) -> None:
    """A loss that explodes in some later round: what was measured before stays readable."""
    folder = tmp_path / "run"
    with pytest.raises(DivergedError, match=r"peer \d.*round ([2-9]|\d\d)") as caught:
        simulate(
            run_dir=folder, rounds=50, training={"lr": 1e30, "weight_decay": 0.5, "clip": 0.0, "steps": 1}
        )
    found = re.search(r"round (\d+)", str(caught.value))
    assert found is not None
    lines = (folder / "metrics.csv").read_text().splitlines()
    assert len(lines) == 1 + 4 * (int(found[1]) - 1)  # rounds are counted from 1 in messages
    assert not (folder / "result.json").exists()


def test_observer_sees_every_round() -> None:
    seen: list[tuple[int, int]] = []
    simulate(rounds=3, observer=lambda record, history: seen.append((record.round, len(history.seconds))))
    assert seen == [(0, 1), (1, 2), (2, 3)]


def test_workers_and_executors_give_the_same_numbers() -> None:
    runs = [
        simulate(algorithm="d-psgd", execution={"executor": executor, "workers": workers})
        for executor in ("stacked", "looped")
        for workers in (1, 2)
    ]
    for one, two in (runs[:2], runs[2:]):
        assert all(torch.equal(one.params[name], two.params[name]) for name in one.params)
    for name, value in runs[0].params.items():
        torch.testing.assert_close(runs[2].params[name], value, rtol=1e-4, atol=1e-5)


def test_share_of_the_own_cluster() -> None:
    """Full graph: 2 of a peer's 5 neighbours are in its cluster of 3; Oracle listens to no one else."""
    options: dict[str, Any] = {"partition": "rotations(2)", "model": "mlr", "peers": 6, "rounds": 2}
    assert coterie.simulate("gossip-fedavg", **options).own_cluster_share == pytest.approx(2 / 5)
    assert coterie.simulate("oracle", **options).own_cluster_share == pytest.approx(1.0)
    assert coterie.simulate("local", **options).own_cluster_share is None
    assert coterie.simulate("gossip-fedavg", peers=3, rounds=1).own_cluster_share is None


def test_learned_weights_survive_a_resume(tmp_path: Path) -> None:
    options: dict[str, Any] = {"partition": "rotations(2)", "model": "mlr", "peers": 6, "rounds": 3}
    run = coterie.simulate("kd-pdfl", run_dir=tmp_path / "run", **options)
    again = coterie.simulate(resume_from=tmp_path / "run")
    assert run.collaboration is not None
    torch.testing.assert_close(again.shares, run.shares)
    rows = run.shares.sum(1)
    assert bool(((rows - 1).abs() < 1e-6).logical_or(rows == 0).all())


class Empty(nn.Module):
    """Nothing to train."""

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1)[:, :10]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"model": Empty}, "no parameters to train"),
        ({"partition": 5}, "5 is no partition: that is a name"),
        ({"algorithm": algorithms["local"]}, "Local is a class; pass an instance"),
    ],
    ids=["empty model", "no partition", "class"],
)
def test_wrong_objects_get_a_sentence(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        coterie.simulate(peers=3, rounds=1, **wrong)


def test_a_training_object_is_as_good_as_a_table_and_peers_have_numbers() -> None:
    options: dict[str, Any] = {"peers": 3, "rounds": 1, "model": "mlr", "execution": {"executor": "stacked"}}
    one, other = (
        coterie.simulate(training=training, **options) for training in (coterie.Training(lr=0.3), {"lr": 0.3})
    )
    assert all(torch.equal(value, other.params[name]) for name, value in one.params.items())
    with pytest.raises(ConfigError, match="no peer 3; they have the numbers 0 to 2"):
        one.model(3)


def test_local_work_is_recorded_and_survives_a_resume(tmp_path: Path) -> None:
    """10 samples in batches of 4: 3 steps an epoch, and head and body have one epoch each."""
    settings: dict[str, Any] = {"data": "digits", "model": "mlp(4)", "peers": 3, "rounds": 2}
    settings |= {"splitting": {"samples_per_peer": 10}, "training": {"batch_size": 4}}
    run = coterie.simulate("dfedpgp", **settings, run_dir=tmp_path / "run")
    assert run.result()["work"] == "own"
    assert run.result()["gradient_steps_per_peer"] == {"mean": 12.0, "min": 12.0, "max": 12.0}
    assert run.result()["samples_seen_per_peer"] == {"mean": 40.0, "min": 40.0, "max": 40.0}
    with open(tmp_path / "run" / "metrics.csv", newline="", encoding="utf-8") as file:
        assert [(line["gradient_steps"], line["samples_seen"]) for line in csv.DictReader(file)] == 6 * [
            ("6", "20")
        ]
    resumed = coterie.simulate(resume_from=tmp_path / "run")
    assert without_time(resumed.result()) == without_time(run.result())
    equal = coterie.simulate("dfedpgp", **settings | {"training": {"batch_size": 4, "work": "equal"}})
    assert equal.result()["work"] == "equal"
    assert equal.result()["gradient_steps_per_peer"]["mean"] == 6.0


def test_records_of_a_version_that_counted_no_work_can_be_resumed(tmp_path: Path) -> None:
    run = coterie.simulate("local", peers=3, rounds=2, model="mlr", run_dir=tmp_path / "run")
    path = tmp_path / "run" / "metrics.csv"
    lines = [line.rsplit(",", 2)[0] for line in path.read_text(encoding="utf-8").splitlines()]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    resumed = coterie.simulate(resume_from=tmp_path / "run").result()
    assert resumed["personal_accuracy"] == run.result()["personal_accuracy"]
    assert resumed["gradient_steps_per_peer"] is None


def test_an_algorithm_defined_again_replaces_the_former(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a notebook: edit the class, run its cell again, and simulate."""
    monkeypatch.setattr(algorithms, "_factories", dict(algorithms._factories))

    def define(lr: float) -> Any:
        class Still(ModelAlgorithm):
            facts = Facts(paper="none", measured="after_mixing", communication="nothing")

            def round(self, state: ModelState, node: Node) -> Round[ModelState]:
                yield Exchange()
                return ModelState(node.train(state.params, lr=lr))

        return dataclasses.dataclass(frozen=True)(Still)()

    still, learning = (coterie.simulate(algorithm=define(lr), **QUICK) for lr in (0.0, 0.5))
    fresh = coterie.simulate(algorithm="local", **QUICK, training={"lr": 0.0})
    assert still.personal_accuracy.equal(fresh.personal_accuracy)
    assert not learning.personal_accuracy.equal(still.personal_accuracy)
    assert learning.experiment.algorithm == "Still"


class Partly(nn.Module):
    """Pretrained, so to speak, but for the last two layers."""

    def __init__(self, shape: tuple[int, ...], n_classes: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(shape)), 12)).requires_grad_(False)
        self.middle, self.top = nn.Linear(12, 12), nn.Linear(12, n_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.top(torch.relu(self.middle(torch.relu(self.encoder(x)))))


@pytest.mark.parametrize("init", ["same", "independent"])
def test_frozen_parameters_are_common_to_all_and_in_no_checkpoint(tmp_path: Path, init: str) -> None:
    """With weights of one's own, too: only what trains is drawn anew for each peer."""
    table: dict[str, Any] = {"model": Partly, "topology": "ring", "peers": 4, "rounds": 2, "init": init}
    run = coterie.simulate("d-psgd", **table, shared="middle", run_dir=tmp_path / "run")
    assert set(run.params) == {"middle.weight", "middle.bias", "top.weight", "top.bias"}
    saved = load_file(tmp_path / "run" / "checkpoint.safetensors")
    assert not any("encoder" in name for name in saved)
    states = run.models
    whole = Partly((1, 8, 8), 10)
    whole.load_state_dict(states[3])
    for name in ("encoder.1.weight", "encoder.1.bias"):
        assert all(torch.equal(state[name], run.module.state_dict()[name]) for state in states)
    assert not torch.equal(states[0]["top.weight"], states[1]["top.weight"])
    links, middle = 4 * 2, 4 * (12 * 12 + 12)
    assert int(run.totals.bytes_sent.sum()) == 2 * links * middle


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"shared": "midle"},
            "shared: 'midle' matches no parameter of the model; what trains: middle.weight",
        ),
        ({"shared": "encoder"}, "'encoder' matches only frozen parameters, such as encoder.1.bias"),
        (
            {"model": nn.Sequential(nn.Conv2d(1, 10, 8), nn.Flatten())},
            "keeps the last linear layer at home, and model 'own' has none that trains",
        ),
    ],
)
def test_what_travels_is_checked_before_anything_trains(
    changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    table = {"model": Partly, "peers": 3, "rounds": 1, "run_dir": tmp_path / "run", **changes}
    with pytest.raises(ConfigError) as error:
        coterie.simulate("dfedpgp", **table)
    assert said in str(error.value)
    assert not (tmp_path / "run").exists()
