"""The engine's own rules: books, contract errors, withheld buffers, calibration."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from coterie.catalogue import algorithms
from coterie.data import Federation, from_peers
from coterie.errors import ContractError
from coterie.learning import Executor, ExecutorName, LearningNode, Workers
from coterie.protocol import (
    Algorithm,
    Exchange,
    Facts,
    Links,
    ModelAlgorithm,
    ModelState,
    Node,
    Params,
    Round,
    Scores,
)
from coterie.randomness import numpy_generator
from coterie.simulation import Simulation, Totals, Traffic, calibration, fastest_executor
from coterie.topology import MessageLoss, make
from coterie.training import Training

PEERS = 5
FACTS = Facts(paper="none", measured="after_mixing", communication="")


def federation(shape: tuple[int, ...] = (3,)) -> Federation:
    rng = numpy_generator(0, "engine")
    data = [(rng.normal(size=(8, *shape)), rng.integers(0, 2, 8)) for _ in range(PEERS)]
    return from_peers(data, n_classes=2)


def normalised() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


Maker = Callable[..., Simulation]


@pytest.fixture(scope="module")
def simulation() -> Iterator[Maker]:
    with Workers(1) as workers:

        def build(
            algorithm: Algorithm[Any] | str, executor: ExecutorName = "stacked", **changes: Any
        ) -> Simulation:
            module = normalised()
            settings: dict[str, Any] = {
                "algorithm": algorithms.build(algorithm) if isinstance(algorithm, str) else algorithm,
                "federation": federation(),
                "module": module,
                "topology": make("ring", peers=PEERS, seed=0),
                "training": Training(batch_size=4),
                "executor": Executor(executor, module, workers),
                "seed": 0,
                "rounds": 5,
            }
            return Simulation(**{**settings, **changes})

        yield build


def test_totals_add_up() -> None:
    totals = Totals.zero(3)
    for delivered in ([True, True, False], [True, False, False]):
        totals.add(
            Traffic(
                senders=torch.tensor([0, 1, 1]),
                receivers=torch.tensor([1, 0, 2]),
                bytes=torch.tensor([10, 20, 30]),
                delivered=torch.tensor(delivered),
            )
        )
    totals.add(Traffic(*(torch.tensor([value]) for value in (2, 0, 0)), torch.tensor([True])))  # a question
    assert totals.bytes_sent.tolist() == [20, 100, 0]
    assert totals.bytes_received.tolist() == [20, 20, 0]
    assert totals.messages_sent.tolist() == [2, 4, 1]
    columns = (totals.links, totals.link_messages, totals.link_bytes)
    pairs = {(int(k) // 3, int(k) % 3): (int(n), int(b)) for k, n, b in zip(*columns, strict=True)}
    assert pairs == {(1, 0): (2, 20), (0, 1): (1, 20)}, "receiver, sender: payloads that arrived"


def test_lost_messages_are_sent_but_not_received(simulation: Maker) -> None:
    s = simulation("d-psgd", topology=MessageLoss(make("full", peers=PEERS, seed=0), 0.5, 1))
    sent = arrived = 0
    for _ in range(4):
        (traffic,) = s.step().traffic
        sent += len(traffic.senders)
        arrived += int(traffic.delivered.sum())
    assert sent == 4 * PEERS * (PEERS - 1)
    assert 0 < arrived < sent
    size = 4 * sum(value[0].numel() for value in s.personal().values())
    assert int(s.totals.bytes_sent.sum()) == sent * size
    assert int(s.totals.bytes_received.sum()) == arrived * size


@pytest.mark.parametrize("executor", ["stacked", "looped"])
@pytest.mark.parametrize(
    ("algorithm", "topology"), [("d-psgd", "ring"), ("gossip-fedavg", "ring"), ("fedavg", "star")]
)
def test_local_batch_norm_statistics_stay_at_home(
    simulation: Maker, algorithm: str, topology: str, executor: ExecutorName
) -> None:
    graph = make(topology, peers=PEERS, seed=0)
    averaged = simulation(algorithm, executor, topology=graph)
    local = simulation(algorithm, executor, topology=graph, local_buffers=True)
    messages = sum(len(traffic.senders) for traffic in averaged.step().traffic)
    local.step()
    statistics = 4 * 2 * 3  # running mean and variance of three features
    saved = int(averaged.totals.bytes_sent.sum()) - int(local.totals.bytes_sent.sum())
    assert saved == messages * statistics
    # In the first round, everyone's statistics are those of its own data alone.
    alone = simulation("local", executor)
    alone.step()
    for name in ("0.running_mean", "0.running_var"):
        torch.testing.assert_close(local.personal()[name], alone.personal()[name])
        assert not torch.allclose(averaged.personal()[name], alone.personal()[name])


def test_averaged_statistics_are_the_mean(simulation: Maker) -> None:
    full = make("full", peers=PEERS, seed=0)
    mixed, alone = simulation("d-psgd", topology=full), simulation("local", topology=full)
    mixed.step()
    alone.step()
    for name in ("0.running_mean", "0.running_var"):
        expected = alone.personal()[name].mean(0).expand(PEERS, -1)
        torch.testing.assert_close(mixed.personal()[name], expected)


@dataclass(frozen=True)
class UnequalRounds(ModelAlgorithm):
    facts = FACTS

    def round(self, state: ModelState, node: Node) -> Round[ModelState]:
        if 0 in node.ids:
            yield Exchange()
        return state


@dataclass(frozen=True)
class ToNobody(ModelAlgorithm):
    facts = FACTS
    target: int = 99

    def round(self, state: ModelState, node: Node) -> Round[ModelState]:
        yield Exchange({}, to=Links(torch.tensor([0]), torch.tensor([self.target])))
        return state


@dataclass(frozen=True)
class HalfSealed(ModelAlgorithm):
    facts = FACTS

    def round(self, state: ModelState, node: Node) -> Round[ModelState]:
        yield Exchange(sealed=0 in node.ids)
        return state


@pytest.mark.parametrize(
    ("algorithm", "message"),
    [
        (UnequalRounds(), "others go on"),
        (ToNobody(), "does not exist"),
        (ToNobody(-1), "does not exist"),
        (HalfSealed(), "sealed"),
    ],
    ids=["unequal", "to-99", "to-minus-1", "half-sealed"],
)
def test_broken_contracts_are_named(simulation: Maker, algorithm: Algorithm[Any], message: str) -> None:
    s = simulation(algorithm, shards=[torch.tensor([0, 1]), torch.tensor([2, 3, 4])])
    with pytest.raises(ContractError, match=message):
        s.step()


def test_shards_may_be_in_any_order(simulation: Maker) -> None:
    whole = simulation("gossip-fedavg")
    turned = simulation("gossip-fedavg", shards=[torch.tensor([3, 1, 4, 0, 2])])
    for _ in range(2):
        ours, theirs = whole.step(), turned.step()
    assert torch.allclose(
        ours.evaluations["after_local"].loss, theirs.evaluations["after_local"].loss, atol=1e-4
    )
    for name, value in whole.personal().items():
        torch.testing.assert_close(turned.personal()[name], value, rtol=1e-3, atol=1e-3)


def test_the_hub_must_be_last_in_its_block(simulation: Maker) -> None:
    with pytest.raises(ContractError, match="hub"):
        simulation(
            "fedavg",
            topology=make("star", peers=PEERS, seed=0),
            shards=[torch.tensor([5, 0, 1, 2, 3, 4])],
        )


@dataclass(frozen=True)
class Recorder(ModelAlgorithm):
    """Records its id, to see that diagnostics are in the order of peers."""

    facts = FACTS

    def round(self, state: ModelState, node: Node) -> Round[ModelState]:
        yield Exchange()
        node.record(who=node.ids.float(), vector=torch.stack((node.ids, -node.ids), 1).float())
        return state


def test_diagnostics_are_in_the_order_of_peers(simulation: Maker) -> None:
    s = simulation(Recorder(), shards=[torch.tensor([3, 1]), torch.tensor([4, 0, 2])])
    found = s.step().diagnostics
    assert found["who"].tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert found["vector"].tolist() == [[float(i), -float(i)] for i in range(PEERS)]


def test_global_accuracy_only_when_asked(simulation: Maker) -> None:
    data = federation()
    data = dataclasses.replace(data, common_test=data.test.index)
    s = simulation("local", federation=data)
    assert s.step().evaluations["after_local"].on_common == {}
    found = s.step(evaluate_global=True).evaluations["after_local"].on_common["accuracy"]
    net = normalised().eval()
    for peer in range(PEERS):
        net.load_state_dict({k: v[peer] for k, v in s.personal().items()}, strict=False)
        right = (net(data.x[data.test.index]).argmax(1) == data.y[data.test.index]).float().mean()
        assert float(found[peer]) == pytest.approx(float(right))


@dataclass(frozen=True)
class Fresh(ModelAlgorithm):
    """Shows models made anew, perhaps in the same place of memory: all zeros, then one's own."""

    facts = FACTS

    def round(self, state: ModelState, node: Node) -> Round[ModelState]:
        yield Exchange()
        node.measure(after_local={name: torch.zeros_like(value) for name, value in state.params.items()})
        return state

    def personal(self, state: ModelState) -> Params:
        return {name: value.clone() for name, value in state.params.items()}


def test_the_same_models_at_both_points_are_evaluated_once(
    simulation: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluated: list[Params] = []
    evaluate = LearningNode.evaluate

    def counted(self: LearningNode, params: Params, *args: Any) -> Scores:
        evaluated.append(params)
        return evaluate(self, params, *args)

    monkeypatch.setattr(LearningNode, "evaluate", counted)
    for algorithm, times in (("local", 1), ("d-psgd", 2), (Fresh(), 2)):
        evaluated.clear()
        found = simulation(algorithm).step().evaluations
        assert len(evaluated) == times, algorithm
    for peer in range(PEERS):  # of Fresh: equal logits of two classes
        assert float(found["after_local"].loss[peer]) == pytest.approx(math.log(2))
        assert float(found["after_mixing"].loss[peer]) != pytest.approx(math.log(2))


class Images(nn.Module):
    """A convolution with BatchNorm, which only the looped executor can run."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(1, 2, 2), nn.BatchNorm2d(2)
        self.head = nn.Linear(2 * 3 * 3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.norm(self.convolution(x))).flatten(1))


class Wrapped(nn.Module):
    """A dense network of a class of one's own, of which no rule knows."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.inner(x)
        return logits


def test_calibration_picks_an_executor_that_can_run_the_model() -> None:
    with Workers(1) as workers:
        assert fastest_executor(Images(), federation((1, 4, 4)), Training(), workers) == "looped"


@pytest.mark.parametrize("quick", ["stacked", "looped"])
def test_calibration_picks_the_faster_executor(quick: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that is given: the warm-up does not count, and five turns that agree are enough."""
    turns = {True: [9.0, *[0.02] * 5], False: [1.0, *[0.03] * 5]}
    seconds = {name: iter(turns[name == quick]) for name in ("stacked", "looped")}

    def timed(executor: Executor, *_: object, **__: object) -> float:
        return next(seconds[executor.name])

    monkeypatch.setattr(calibration, "_time", timed)
    with Workers(1) as workers:
        assert fastest_executor(Wrapped(), federation(), Training(), workers) == quick


@pytest.mark.parametrize(
    ("stacked", "looped", "chosen"),
    [
        ([0.02] * 5, [0.03] * 5, "stacked"),  # all five turns
        ([0.03] * 5, [0.02] * 5, "looped"),
        ([2.0], [1.0], "looped"),  # one long turn, won by far
        ([1.2] * 5, [1.0] * 5, "looped"),  # long turns and close: four more
        # A disturbed turn: the second look, fourteen of fifteen, and twelve of fifteen.
        ([0.02, 0.09, *[0.02] * 13], [0.03] * 15, "stacked"),
        ([0.01] * 3 + [0.03] * 12, [0.02] * 15, "looped"),
        # Eleven of fifteen is no evidence: the rule, whichever had more.
        ([0.03] * 4 + [0.01] * 4 + [0.03] * 7, [0.02] * 15, "stacked"),
        ([0.02] * 15, [0.02] * 15, "stacked"),
    ],
)
def test_a_second_look_is_taken_where_the_first_is_not_clear(
    stacked: list[float], looped: list[float], chosen: str
) -> None:
    left = (iter(stacked), iter(looped))
    assert calibration.faster_by_turns(*(partial(next, seconds) for seconds in left)) == chosen
    assert [list(turns) for turns in left] == [[], []]  # no turn more than the evidence needs


def test_no_measurement_decides_what_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever else the machine does: convolutions are looped, small dense networks stacked."""
    monkeypatch.setattr(calibration, "_time", lambda executor, *_, **__: 1.0 + (executor.name == "stacked"))
    convolution = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 2))
    with Workers(1) as workers:
        assert fastest_executor(normalised(), federation(), Training(), workers) == "stacked"
        monkeypatch.setattr(
            calibration, "_time", lambda executor, *_, **__: 1.0 + (executor.name == "looped")
        )
        assert fastest_executor(convolution, federation((1, 4, 4)), Training(), workers) == "looped"
