"""The optimiser's memory that each peer keeps from round to round (`training.optimizer_state = "kept"`).

Several rounds are then one torch optimiser over all their steps, whatever the executor, the schedule or who
sits out a round. In float64, so that equal mathematics agrees to 1e-9.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from training_lab import Branches, assert_equal_models, dense, peers, seeded, stacked

import coterie
from coterie.algorithms.ditto import Ditto
from coterie.algorithms.local import Local
from coterie.catalogue import algorithms
from coterie.data import Federation
from coterie.errors import ConfigError
from coterie.experiments.runs.running import resume
from coterie.experiments.setup.config import resolve
from coterie.learning import Executor, ExecutorName, LearningNode, Workers
from coterie.learning.local_steps import LocalWork, draw_batches, local_steps
from coterie.protocol import Params
from coterie.randomness import stream
from coterie.testing import Crash, run_peers
from coterie.topology import make
from coterie.training import Training

ROUNDS, LR, SEED = 4, 0.1, 9
Optimiser = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
Batches = list[tuple[Tensor, Tensor]]
OPTIMISERS: dict[str, tuple[dict[str, Any], Optimiser]] = {
    "momentum": ({"momentum": 0.9}, partial(torch.optim.SGD, lr=LR, momentum=0.9)),
    "nesterov": (
        {"momentum": 0.5, "nesterov": True, "weight_decay": 0.05, "clip": 0.3},
        partial(torch.optim.SGD, lr=LR, momentum=0.5, nesterov=True, weight_decay=0.05),
    ),
    "adam": (
        {"optimizer": "adam", "weight_decay": 0.05},
        partial(torch.optim.Adam, lr=LR, weight_decay=0.05),
    ),
    "adamw": (
        {"optimizer": "adamw", "weight_decay": 0.5},
        partial(torch.optim.AdamW, lr=LR, weight_decay=0.5),
    ),
    "cosine-momentum": (
        {"momentum": 0.9, "schedule": "cosine"},
        partial(torch.optim.SGD, lr=LR, momentum=0.9),
    ),
    "cosine-adam": ({"optimizer": "adam", "schedule": "cosine"}, partial(torch.optim.Adam, lr=LR)),
    "accumulated": ({"optimizer": "adam", "accumulate": 2}, partial(torch.optim.Adam, lr=LR)),
}
RUNS: list[tuple[str, Callable[[], nn.Module], ExecutorName]] = [
    ("dense-stacked", dense, "stacked"),
    ("vmapped", Branches, "stacked"),
    ("looped", Branches, "looped"),
]


def wide() -> nn.Module:
    """Layers whose weights are turned in memory while batches of 16 train them."""
    return nn.Sequential(nn.Linear(5, 40), nn.ReLU(), nn.Linear(40, 33), nn.Tanh(), nn.Linear(33, 3))


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    with Workers(2) as pool:
        yield pool


def training(settings: dict[str, Any], batch_size: int = 4) -> Training:
    table = {"epochs": 2, "batch_size": batch_size, "lr": LR, "clip": 0.0, "optimizer_state": "kept"}
    return Training(**{**table, **settings})


def node_of(module: nn.Module, executor: ExecutorName, data: Federation, how: Training, pool: Workers) -> Any:
    ids = torch.arange(data.peers)
    return LearningNode(ids, data, module, Executor(executor, module, pool), how, SEED, ROUNDS)


def begin(node: LearningNode, round: int) -> None:
    node.begin(round, make("full", peers=node.rows, seed=0).graph(0), torch.ones(node.rows, dtype=torch.bool))


def trained(node: LearningNode, sits_out: Collection[tuple[int, int]] = ()) -> Params:
    """After all rounds; sits_out: (round, peer)."""
    params = stacked(node.module, node.rows)
    for round in range(ROUNDS):
        begin(node, round)
        active = torch.tensor([(round, peer) not in sits_out for peer in range(node.rows)])
        params = node.train(params, active=active)
    return params


def batches_of(data: Federation, peer: int, round: int, how: Training) -> Batches:
    n = data.train.sizes[peer : peer + 1]
    steps = local_steps(n, LocalWork.resolve(how, round, {}))
    drawn = draw_batches(stream(SEED, "batches", round, torch.tensor([peer])), n, steps, how.batch_size)
    mine = data.train.of(peer)
    picked = [mine[drawn.index[0, step, : int(drawn.sizes[0, step])]] for step in range(int(steps))]
    return [(data.x[index], data.y[index]) for index in picked]


def by_torch(
    module: nn.Module, rounds: Sequence[Batches | None], how: Training, make: Optimiser
) -> nn.Module:
    """One optimiser over all rounds; None: the peer sat out a round."""
    net = copy.deepcopy(module)
    optimiser = make(list(net.parameters()))
    for round, batches in enumerate(rounds):
        if batches is None:
            continue
        updates = [batches[k : k + how.accumulate] for k in range(0, len(batches), how.accumulate)]
        for number, together in enumerate(updates):
            time = (round + number / len(updates)) / ROUNDS
            if how.schedule == "cosine":
                optimiser.param_groups[0]["lr"] = LR * (1 + math.cos(math.pi * time)) / 2
            optimiser.zero_grad()
            for x, y in together:
                (nn.functional.cross_entropy(net(x), y) / len(together)).backward()
            if how.clip:
                nn.utils.clip_grad_norm_(net.parameters(), how.clip)
            optimiser.step()
    return net


@pytest.mark.parametrize("optimiser", OPTIMISERS)
@pytest.mark.parametrize(("build", "executor"), [run[1:] for run in RUNS], ids=[run[0] for run in RUNS])
def test_rounds_are_one_torch_optimiser_over_all_steps(
    build: Callable[[], nn.Module], executor: ExecutorName, optimiser: str, workers: Workers
) -> None:
    """Peers of 11, 4, 1 and 8 samples, which take different numbers of steps."""
    module, data = seeded(build), peers()
    settings, make_optimiser = OPTIMISERS[optimiser]
    how = training(settings)
    params = trained(node_of(module, executor, data, how, workers))
    for peer in range(data.peers):
        rounds = [batches_of(data, peer, round, how) for round in range(ROUNDS)]
        assert_equal_models(params, peer, by_torch(module, rounds, how, make_optimiser))


def test_weights_that_are_turned_in_memory_keep_theirs(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coterie.learning.stacked._either_order_is_fast", lambda: False)
    module, data, how = seeded(wide), peers((20, 33, 17, 16)), training({"momentum": 0.9}, batch_size=16)
    params = trained(node_of(module, "stacked", data, how, workers))
    for peer in range(data.peers):
        rounds = [batches_of(data, peer, round, how) for round in range(ROUNDS)]
        expected = by_torch(module, rounds, how, OPTIMISERS["momentum"][1])
        assert_equal_models(params, peer, expected)


@pytest.mark.parametrize("executor", ["stacked", "looped"])
@pytest.mark.parametrize("optimiser", ["momentum", "adam"])
def test_who_sits_out_a_round_goes_on_later(executor: ExecutorName, optimiser: str, workers: Workers) -> None:
    module, data = seeded(dense), peers()
    settings, make_optimiser = OPTIMISERS[optimiser]
    how, absent = training(settings), {(0, 1), (2, 1), (1, 3), (3, 0)}
    params = trained(node_of(module, executor, data, how, workers), absent)
    for peer in range(data.peers):
        rounds = [
            None if (round, peer) in absent else batches_of(data, peer, round, how) for round in range(ROUNDS)
        ]
        assert_equal_models(params, peer, by_torch(module, rounds, how, make_optimiser))


def test_reset_starts_afresh_and_keeps_nothing(workers: Workers) -> None:
    module, data = seeded(dense), peers()
    how = training({"momentum": 0.9, "optimizer_state": "reset"})
    node = node_of(module, "stacked", data, how, workers)
    params = trained(node)
    assert node.memory == {}
    assert node.remembered() == {}
    net = module
    for round in range(ROUNDS):
        net = by_torch(net, [batches_of(data, 0, round, how)], how, OPTIMISERS["momentum"][1])
    assert_equal_models(params, 0, net)


def test_only_the_round_s_own_training_is_remembered(workers: Workers) -> None:
    module, data = seeded(dense), peers()
    node = node_of(module, "stacked", data, training({"momentum": 0.9}), workers)
    params = stacked(module, data.peers)
    begin(node, 0)
    for purpose in ("measurement", "gradient"):
        node.train(params, purpose=purpose)
    assert node.memory == {}
    node.train(params)
    before = {name: value.clone() for name, value in node.remembered().items()}
    assert before.keys() == {f"batches/velocity/{name}" for name in node.executor.trainable}
    node.train(params, purpose="measurement")
    assert all(torch.equal(value, before[name]) for name, value in node.remembered().items())
    node.train(params, stream="head", only=("3.weight",))
    assert set(node.remembered()) - set(before) == {"head/velocity/3.weight"}
    other = node_of(module, "stacked", data, training({"momentum": 0.9}), workers)
    other.recall(node.remembered())
    assert other.memory.keys() == {"batches", "head"}
    assert torch.equal(
        other.memory["head"]["velocity"]["3.weight"], node.memory["head"]["velocity"]["3.weight"]
    )


@pytest.mark.parametrize("executor", ["stacked", "looped"])
@pytest.mark.parametrize("settings", [{"momentum": 0.9}, {"optimizer": "adam", "lr": 0.01}])
def test_a_resumed_run_has_the_same_bits(executor: str, settings: dict[str, Any], tmp_path: Path) -> None:
    """Interrupted after its second round, when the checkpoint has the memory, too."""

    class Interrupted(Exception):
        pass

    def interrupt(record: Any, history: Any) -> None:
        if record.round == 1:
            raise Interrupted

    table: dict[str, Any] = {
        "data": "digits",
        "model": "mlr",
        "peers": 4,
        "rounds": 4,
        "training": {**settings, "optimizer_state": "kept"},
        "execution": {"executor": executor, "checkpoint_seconds": 0.0},
    }
    whole = coterie.simulate("d-psgd", topology="ring", **table)
    with pytest.raises(Interrupted):
        coterie.simulate("d-psgd", topology="ring", **table, run_dir=tmp_path / "r", observer=interrupt)
    resumed = resume(tmp_path / "r")
    for name, value in whole.params.items():
        assert torch.equal(resumed.params[name], value), name
    reset = coterie.simulate(
        "d-psgd", topology="ring", **{**table, "training": {**settings, "optimizer_state": "reset"}}
    )
    assert not all(torch.equal(reset.params[name], value) for name, value in whole.params.items())


@pytest.mark.parametrize("settings", [{"momentum": 0.9}, {"optimizer": "adam"}])
def test_a_peer_that_crashed_goes_on_with_its_memory(settings: dict[str, Any]) -> None:
    how = Training(epochs=1, batch_size=5, lr=0.1, optimizer_state="kept", **settings)
    crashes = (Crash(1, at=1.7), Crash(2, at=2.9))
    calm, crashed = (run_peers(Local(), rounds=6, crashes=some, training=how) for some in ((), crashes))
    assert crashed.finished == calm.finished == [0, 1, 2, 3]
    for number, state in calm.states.items():
        for name, value in state.params.items():
            assert torch.equal(crashed.states[number].params[name], value), (number, name)


def test_two_models_of_a_peer_have_memories_of_their_own() -> None:
    """Ditto trains the hub's model and its own on the same batches; without a pull, the latter is Local's."""
    table: dict[str, Any] = {"data": "digits", "model": "mlr", "peers": 3, "rounds": 2}
    table["training"] = {"momentum": 0.9, "optimizer_state": "kept"}
    ditto, alone = (coterie.simulate(one, **table).params for one in (Ditto(pull=0.0), Local()))
    for name, value in alone.items():
        torch.testing.assert_close(ditto[name], value, rtol=1e-5, atol=1e-6)


REFUSING = {"dfedavgm", "dfedavgm-p", "pfedme", "dis-pfl"}


def test_methods_whose_steps_start_afresh_refuse_it() -> None:
    table = {"training": {"optimizer_state": "kept", "momentum": 0.9}}
    assert {name for name in algorithms if algorithms[name].facts.restarts} == REFUSING  # type: ignore[attr-defined]
    for name in REFUSING:
        with pytest.raises(ConfigError, match=f"'kept' does not go with algorithm '{name}': .*; leave it at"):
            resolve({**table, "algorithm": name})
        with pytest.raises(ConfigError, match="does not go with algorithm"):
            coterie.simulate(algorithms[name](), data="digits", peers=3, rounds=1, **table)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="optimizer_state"):
        resolve({"training": {"optimizer_state": "kep"}})
