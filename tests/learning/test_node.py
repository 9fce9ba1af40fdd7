"""The nodes that a process hosts: evaluation, prediction, settings, divergence, random streams."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from coterie.data import Federation, Split, from_peers
from coterie.errors import ConfigError, ContractError, DivergedError
from coterie.learning import (
    Executor,
    ExecutorName,
    LearningNode,
    Workers,
    check_module,
    local_steps,
    model_tree,
)
from coterie.learning.local_steps import LocalWork
from coterie.learning.updates import SGD, Proximal
from coterie.protocol import Batch, Params, Samples
from coterie.topology import make
from coterie.training import PLAIN_STEP, Training

FEATURES, CLASSES = 4, 3
TRAIN, TEST = (5, 1, 8), (3, 0, 7)  # peer 1 has no test data


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    with Workers(2) as pool:
        yield pool


def data() -> Federation:
    rng = np.random.default_rng(2)
    parts = [
        {
            name: (rng.normal(size=(n, FEATURES)), rng.integers(0, CLASSES, n))
            for name, n in (("train", train), ("test", max(1, test)))
        }
        for train, test in zip(TRAIN, TEST, strict=True)
    ]
    made = from_peers(parts, n_classes=CLASSES)
    index = torch.cat([made.test.of(0), made.test.of(2)])
    return dataclasses.replace(
        made,
        x=made.x.double(),
        test=Split.from_sizes(index, torch.tensor(TEST)),
        common_test=made.train.of(2),
    )


def network() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(4)
        return nn.Sequential(nn.Linear(FEATURES, 5), nn.Tanh(), nn.Linear(5, CLASSES)).double()


def node(workers: Workers, executor: ExecutorName = "stacked", **changes: Any) -> LearningNode:
    module = network()
    settings: dict[str, Any] = {
        "ids": torch.tensor([10, 20, 30]),
        "federation": data(),
        "module": module,
        "executor": Executor(executor, module, workers),
        "training": Training(batch_size=4),
        "seed": 1,
        "rounds": 3,
    }
    made = LearningNode(**{**settings, **changes})
    made.begin(0, make("ring", peers=40, seed=0).graph(0), torch.ones(3, dtype=torch.bool))
    return made


def different_models(node: LearningNode) -> Params:
    return {
        name: value + 0.3 * torch.tensor(np.random.default_rng(7).normal(size=value.shape))
        for name, value in node.initial().items()
    }


def logits_by_hand(params: Params, row: int, x: Tensor) -> np.ndarray:
    p = {name: value[row].numpy() for name, value in params.items()}
    return np.tanh(x.numpy() @ p["0.weight"].T + p["0.bias"]) @ p["2.weight"].T + p["2.bias"]


def scores_by_hand(logits: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    log_sum = np.log(np.exp(logits).sum(1))
    return float((logits.argmax(1) == y).mean()), float((log_sum - logits[np.arange(len(y)), y]).mean())


@pytest.mark.parametrize("executor", ["stacked", "looped"])
@pytest.mark.parametrize("forward_bytes", [16 << 20, 100])
def test_evaluate_by_hand(
    executor: ExecutorName, forward_bytes: int, workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in pieces so small that a row's samples are visited in several passes."""
    monkeypatch.setattr("coterie.learning.executor._FORWARD_BYTES", forward_bytes)
    n = node(workers, executor)
    params, federation = different_models(n), n.federation
    for split in ("train", "test"):
        scores = n.evaluate(params, split)
        for row in range(3):
            index = getattr(federation, split).of(row)
            if not len(index):
                assert bool(scores.metrics["accuracy"][row].isnan())
                assert bool(scores.loss[row].isnan())
                continue
            expected = scores_by_hand(
                logits_by_hand(params, row, federation.x[index]), federation.y[index].numpy()
            )
            assert float(scores.metrics["accuracy"][row]) == pytest.approx(expected[0])
            assert float(scores.loss[row]) == pytest.approx(expected[1], rel=1e-5)
    common = n.evaluate_common(params)
    assert common is not None
    assert federation.common_test is not None
    for row in range(3):
        logits = logits_by_hand(params, row, federation.x[federation.common_test])
        expected = scores_by_hand(logits, federation.y[federation.common_test].numpy())
        assert float(common.metrics["accuracy"][row]) == pytest.approx(expected[0])


@pytest.mark.parametrize("executor", ["stacked", "looped"])
def test_predict_pads_with_zeros(executor: ExecutorName, workers: Workers) -> None:
    n = node(workers, executor)
    params = different_models(n)
    logits = n.predict(params)
    assert logits.shape == (3, 8, CLASSES)
    assert logits.dtype == torch.float64
    for row, size in enumerate(TRAIN):
        expected = logits_by_hand(params, row, n.federation.x[n.federation.train.of(row)])
        np.testing.assert_allclose(logits[row, :size], expected, rtol=1e-9)
        assert not logits[row, size:].any()


@pytest.mark.parametrize("executor", ["stacked", "looped"])
def test_predict_and_evaluate_on_chosen_rows(executor: ExecutorName, workers: Workers) -> None:
    """Two models that reached row 0 and one that reached row 2, each on the receiver's data."""
    n = node(workers, executor)
    received, rows = different_models(n), torch.tensor([0, 0, 2])
    logits, scores = n.predict(received, rows=rows), n.evaluate(received, "train", rows)
    for message, row in enumerate(rows.tolist()):
        index = n.federation.train.of(row)
        expected = logits_by_hand(received, message, n.federation.x[index])
        np.testing.assert_allclose(logits[message, : len(index)], expected, rtol=1e-9)
        accuracy, _ = scores_by_hand(expected, n.federation.y[index].numpy())
        assert float(scores.metrics["accuracy"][message]) == pytest.approx(accuracy)


def test_nobody_has_validation_data(workers: Workers) -> None:
    n = node(workers)
    assert n.predict(n.initial(), "validation").shape == (3, 0, CLASSES)
    assert bool(n.evaluate(n.initial(), "validation").loss.isnan().all())
    with pytest.raises(ContractError, match="validation"):
        n.evaluate(n.initial(), "tset")


@pytest.mark.parametrize("executor", ["stacked", "looped"])
def test_only_active_and_online_rows_train(executor: ExecutorName, workers: Workers) -> None:
    n = node(workers, executor)
    n.begin(0, n.graph, torch.tensor([True, True, False]))
    start = n.initial()
    copy = {name: value.clone() for name, value in start.items()}
    params = n.train(start, active=torch.tensor([False, True, True]))
    for name, value in start.items():
        changed = [not torch.equal(params[name][row], value[row]) for row in range(3)]
        assert changed == [False, True, False]
        assert torch.equal(value, copy[name]), "training changed what it was given"
    assert n.train_loss.isnan().tolist() == [True, False, True]
    nobody = n.train(start, active=torch.zeros(3, dtype=torch.bool))
    assert all(torch.equal(nobody[name], start[name]) for name in start)


def test_only_measurements_train_rows_that_are_offline(workers: Workers) -> None:
    """And only the round's own training counts as its training loss."""
    n = node(workers)
    n.online = torch.tensor([True, False, True])
    start = n.initial()
    for purpose, trained in (("gradient", n.online), ("measurement", torch.ones(3, dtype=torch.bool))):
        params = n.train(start, purpose=purpose)
        assert torch.equal((params["0.weight"] != start["0.weight"]).flatten(1).any(1), trained)
        assert bool(n.train_loss.isnan().all())
    active = torch.tensor([False, True, False])
    params = n.train(start, active=active, purpose="measurement")
    assert torch.equal((params["0.weight"] != start["0.weight"]).flatten(1).any(1), active)
    n.train(start)
    assert torch.equal(~n.train_loss.isnan(), n.online)


def test_own_loss_sees_rows_and_positions(workers: Workers) -> None:
    """A loss may look up per-row and per-sample values: here, weights that switch single samples off."""
    n = node(workers, training=Training(batch_size=4, lr=0.1, clip=0.0))
    weights = torch.zeros(3, 8, dtype=torch.float64)
    weights[0, :5], weights[2, :8] = 1.0, 1.0

    def weighted(logits: Tensor, batch: Batch) -> Tensor:
        entropy = nn.functional.cross_entropy(logits.flatten(0, 1), batch.y.flatten(), reduction="none")
        return batch.mean(entropy.view(batch.y.shape) * weights[batch.rows[:, None], batch.index])

    plain, own = n.train(n.initial()), n.train(n.initial(), loss=weighted)
    for name, value in n.initial().items():
        torch.testing.assert_close(own[name][[0, 2]], plain[name][[0, 2]], rtol=1e-9, atol=1e-9)
        assert torch.equal(own[name][1], value[1]), "row 1's samples have weight 0"


@pytest.mark.parametrize("executor", ["stacked", "looped"])
@pytest.mark.parametrize("steps_at_a_time", [2, 64])
def test_what_a_loss_prepares_for_many_steps_is_that_of_each_batch(
    executor: ExecutorName, steps_at_a_time: int, workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 5, 1 and 8 samples in batches of 3 there is padding, and rows end their epochs at other steps."""
    monkeypatch.setattr(local_steps, "_PREPARED_STEPS", steps_at_a_time)
    n = node(workers, executor, training=Training(batch_size=3, epochs=2, lr=0.1, clip=0.0))
    table = torch.rand(3, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def prepare(samples: Samples) -> Params:
        values = table[samples.rows[:, None], samples.index]
        return {"weight": values / samples.mean(values)[:, None], "y": samples.y}

    seen: list[tuple[int, ...]] = []

    def weighted(logits: Tensor, batch: Batch, given: Params) -> Tensor:
        entropy = nn.functional.cross_entropy(logits.flatten(0, 1), given["y"].flatten(), reduction="none")
        return batch.mean(entropy.view(batch.y.shape) * given["weight"])

    def at_once(logits: Tensor, batch: Batch) -> Tensor:
        seen.append(tuple(batch.y.shape))
        return weighted(logits, batch, batch.prepared)

    def step_by_step(logits: Tensor, batch: Batch) -> Tensor:
        return weighted(logits, batch, prepare(batch))

    found = n.train(n.initial(), loss=at_once, prepare=prepare)
    expected = n.train(n.initial(), loss=step_by_step)
    assert len(set(seen)) > 1, "batches of several shapes"
    for name, value in expected.items():
        assert torch.equal(found[name], value), name


@pytest.mark.parametrize("executor", ["stacked", "looped"])
def test_uneven_compute_is_by_peer_unless_the_algorithm_counts_epochs_itself(
    executor: ExecutorName, workers: Workers
) -> None:
    """Peers 10, 20 and 30 with `epoch_groups` 4 do 1 + id mod 4 = 3, 1 and 3 epochs, one step each."""
    settings: dict[str, Any] = {"batch_size": 8, "lr": 0.1, "clip": 0.0}
    uneven = node(workers, executor, training=Training(epoch_groups=4, **settings))
    even = node(workers, executor, training=Training(**settings))
    start = uneven.initial()
    found = uneven.train(start)
    three, one = even.train(start, epochs=3), even.train(start, epochs=1)
    for name in start:
        assert torch.equal(found[name][[0, 2]], three[name][[0, 2]]), name
        assert torch.equal(found[name][1], one[name][1]), name
    for own in ({"epochs": 1}, {"steps": 1}):
        again = uneven.train(start, **own)
        assert all(torch.equal(again[name], one[name]) for name in start), own


def test_uneven_compute_counts_epochs() -> None:
    with pytest.raises(ConfigError, match=r"epoch_groups .*training\.steps"):
        Training(epoch_groups=5, steps=3)
    with pytest.raises(ConfigError, match="epoch_groups must be 0"):
        Training(epoch_groups=-1)


@pytest.mark.parametrize("inputs_at_a_time", [1, 100, 1 << 30], ids=["a step", "some steps", "all"])
def test_batches_do_not_depend_on_how_many_are_gathered_together(
    inputs_at_a_time: int, workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    n = node(workers, training=Training(batch_size=3, epochs=2, lr=0.1, clip=0.0))
    expected = n.train(n.initial())
    monkeypatch.setattr(local_steps, "_GATHER_BYTES", inputs_at_a_time)
    for name, value in n.train(n.initial()).items():
        assert torch.equal(value, expected[name]), name


class Unlike(nn.Sequential):
    """Batched by vmap, for it is no plain Sequential."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 0.0


@pytest.mark.parametrize(
    ("executor", "kind"), [("stacked", nn.Sequential), ("stacked", Unlike), ("looped", nn.Sequential)]
)
def test_a_model_is_not_run_without_a_part_of_it(
    executor: ExecutorName, kind: type[nn.Sequential], workers: Workers
) -> None:
    """What it lacks would come from whatever model ran before it."""
    module = kind(nn.Linear(FEATURES, 5), nn.BatchNorm1d(5), nn.Linear(5, CLASSES)).double()
    if kind is Unlike:
        module[1] = nn.LayerNorm(5).double()
    n = node(workers, module=module)
    n.executor = Executor(executor, module, workers)
    whole = n.initial()
    n.predict(whole)
    for lacking in ("1.bias", "2.weight", *n.buffers):
        part = {name: value for name, value in whole.items() if name != lacking}
        for run in (n.train, n.predict, n.evaluate, n.evaluate_common):
            with pytest.raises(ContractError, match=f"without its '{lacking}'"):
                run(part)  # type: ignore[operator]


@pytest.mark.parametrize("executor", ["stacked", "looped"])
def test_up_to_a_layer_a_model_need_not_be_whole(executor: ExecutorName, workers: Workers) -> None:
    n = node(workers, executor)
    params = different_models(n)
    part = {name: params[name] for name in n.names("1")}
    assert set(part) == {"0.weight", "0.bias"}
    assert torch.equal(n.predict(part, layer="1"), n.predict(params, layer="1"))
    with pytest.raises(ContractError, match=r"without its '0\.bias'"):
        n.predict({"0.weight": part["0.weight"]}, layer="1")


@pytest.mark.parametrize("executor", ["stacked", "looped"])
def test_nan_data_names_peer_and_round(executor: ExecutorName, workers: Workers) -> None:
    federation = data()
    federation.x[federation.train.of(2)[0]] = float("nan")
    n = node(workers, executor, federation=federation)
    n.begin(7, n.graph, n.online)
    with pytest.raises(DivergedError, match=r"peer 30 .*round 8.*training\.lr"):
        n.train(n.initial())


def test_an_infinite_loss_is_no_number_either(workers: Workers) -> None:
    n = node(workers)

    def infinite(logits: Tensor, batch: Batch) -> Tensor:
        return logits.sum((1, 2)) * 0 + torch.where(batch.rows == 1, float("inf"), 1.0)

    with pytest.raises(DivergedError, match="peer 20 "):
        n.train(n.initial(), loss=infinite)


def test_divergence_before_the_first_round_says_so(workers: Workers) -> None:
    federation = data()
    federation.x[:] = float("inf")
    n = node(workers, federation=federation)
    n.begin(-1, n.graph, n.online)
    with pytest.raises(DivergedError, match=r"peer 10, 20, 30 .*before the first round"):
        n.train(n.initial())


def test_a_huge_learning_rate_diverges(workers: Workers) -> None:
    n = node(workers, training=Training(lr=1e300, epochs=5, batch_size=2, clip=0.0))
    with pytest.raises(DivergedError, match="round 1"):
        n.train(n.initial())


def test_settings_of_one_call() -> None:
    training = Training(lr=0.1, lr_decay=0.5, momentum=0.3)
    work = LocalWork.resolve(training, 2, {"momentum": 0.9, "steps": 4})
    assert work.rates(torch.tensor([2, 1])) == [pytest.approx(0.1 * 0.5**2)] * 2
    assert work.update == SGD(momentum=0.9)
    assert work.training.steps == 4
    before = LocalWork.resolve(training, -1, {}).rates(torch.tensor([1]))
    assert before == [0.1], "before the first round nothing has decayed"
    assert isinstance(LocalWork.resolve(training, 0, {"proximal": (0.1, {})}).update, Proximal)
    assert LocalWork.resolve(training, 0, {"proximal": (0.0, {})}).update == SGD(momentum=0.3)


def test_nesterov_needs_a_momentum() -> None:
    for settings in ({}, {"momentum": 0.9, "optimizer": "adamw"}):
        with pytest.raises(ConfigError, match=r"training\.nesterov needs .*'sgd' .*momentum above 0"):
            Training(nesterov=True, **settings)  # type: ignore[arg-type]
    training = Training(momentum=0.9, nesterov=True)
    assert LocalWork.resolve(training, 0, {"momentum": 0.5}).update == SGD(momentum=0.5, nesterov=True)
    assert LocalWork.resolve(training, 0, PLAIN_STEP).update == SGD(), "a plain step has neither"


def test_random_streams_belong_to_nodes_not_rows(workers: Workers) -> None:
    n = node(workers)
    alone = dataclasses.replace(n, ids=torch.tensor([30]), federation=n.federation.take(torch.tensor([2])))
    alone.begin(0, n.graph, torch.ones(1, dtype=torch.bool))
    assert torch.equal(n.rng("x").bits(5)[2], alone.rng("x").bits(5)[0])
    assert torch.equal(n.shared_rng("x").bits(5), alone.shared_rng("x").bits(5))
    assert not torch.equal(n.rng("x").bits(5), n.rng("y").bits(5))


def test_records_need_a_value_per_row(workers: Workers) -> None:
    n = node(workers)
    n.record(weight=torch.ones(3))
    with pytest.raises(ContractError, match="one entry per row"):
        n.record(weight=torch.ones(2))


def test_head_and_body(workers: Workers) -> None:
    n = node(workers)
    assert set(n.head) == {"2.weight", "2.bias"}
    assert set(n.body) == {"0.weight", "0.bias"}


def test_integer_buffers_are_left_out_and_cumulative_batch_norm_is_refused() -> None:
    module = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2))
    assert "0.running_mean" in model_tree(module)
    assert "0.num_batches_tracked" not in model_tree(module)
    check_module(module)
    with pytest.raises(ConfigError, match="momentum"):
        check_module(nn.Sequential(nn.BatchNorm1d(3, momentum=None), nn.Linear(3, 2)))  # type: ignore[arg-type]


def test_the_users_module_is_never_changed(workers: Workers) -> None:
    for executor in ("stacked", "looped"):
        n = node(workers, executor)  # type: ignore[arg-type]
        n.module.eval()
        before = {name: value.clone() for name, value in n.module.state_dict().items()}
        n.evaluate(n.train(n.initial()))
        assert all(torch.equal(before[name], value) for name, value in n.module.state_dict().items())
        assert not n.module.training
