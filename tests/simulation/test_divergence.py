"""A model that became no number is reported when it is measured, and nothing else is taken for one."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import coterie
from coterie.data import Federation, Split, from_peers
from coterie.errors import DivergedError
from coterie.learning import Executor, ExecutorName, Workers
from coterie.protocol import Exchange, Facts, ModelAlgorithm, ModelState, Node, Round
from coterie.randomness import numpy_generator
from coterie.simulation import Simulation
from coterie.topology import Churn, make
from coterie.training import Training

PEERS = 5


@dataclass(frozen=True)
class Spoiled(ModelAlgorithm):
    """After the round's exchange, some rows have one value in all of their weights."""

    rows: str  # of which nodes
    value: float
    from_round: int = 0

    facts = Facts(paper="none", measured="after_mixing", communication="")

    def round(self, state: ModelState, node: Node) -> Round[ModelState]:
        yield Exchange()
        if node.round < self.from_round:
            return state
        chosen = {
            "peer 1": node.ids == 1,
            "peers 1 and 3": (node.ids == 1) | (node.ids == 3),
            "everyone": torch.ones_like(node.online),
            "offline": ~node.online,
            "hub": node.is_hub,
        }[self.rows]
        spoiled = {name: self.spoil(name, value, chosen) for name, value in state.params.items()}
        node.measure(after_local=spoiled, after_mixing=spoiled)
        return ModelState(spoiled)

    def spoil(self, name: str, value: Tensor, chosen: Tensor) -> Tensor:
        spread = torch.linspace(-1, 1, value.shape[-1]) if name == "bias" else 0.0
        spoiled = (
            torch.full_like(value, self.value) if math.isnan(self.value) else self.value * spread + 0 * value
        )
        return spoiled.where(chosen.view(-1, *[1] * (value.dim() - 1)), value)


def federation(sizes: tuple[int, ...] = (4, 2, 3, 2, 4)) -> Federation:
    rng = numpy_generator(0, "divergence")
    pairs = [(rng.normal(size=(4, 3)), rng.integers(0, 2, 4)) for _ in range(PEERS)]
    made = from_peers([{"train": pair, "test": pair} for pair in pairs], n_classes=2)
    index = torch.cat([made.test.of(peer)[:size] for peer, size in enumerate(sizes)])
    return dataclasses.replace(made, test=Split.from_sizes(index, torch.tensor(sizes)))


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    with Workers(1) as pool:
        yield pool


def simulation(
    workers: Workers, algorithm: ModelAlgorithm, executor: ExecutorName = "stacked", **changes: Any
) -> Simulation:
    module = nn.Linear(3, 2)
    settings: dict[str, Any] = {
        "algorithm": algorithm,
        "federation": federation(),
        "module": module,
        "topology": make("ring", peers=PEERS, seed=0),
        "training": Training(batch_size=4),
        "executor": Executor(executor, module, workers),
        "seed": 0,
        "rounds": 5,
    }
    return Simulation(**{**settings, **changes})


@pytest.mark.parametrize("executor", ["stacked", "looped"])
def test_a_model_that_is_no_number_is_reported(executor: ExecutorName, workers: Workers) -> None:
    s = simulation(workers, Spoiled("peers 1 and 3", math.nan, from_round=1), executor)
    s.step()
    with pytest.raises(DivergedError, match=r"loss of peer 1, 3 became NaN.* in round 2; .*training\.lr"):
        s.step()


def test_shards_report_it_too(workers: Workers) -> None:
    shards = [torch.tensor([3, 4]), torch.tensor([0, 1, 2])]
    s = simulation(workers, Spoiled("peer 1", math.nan), shards=shards)
    with pytest.raises(DivergedError, match="loss of peer 1 became"):
        s.step()


def test_rounds_that_are_not_measured_go_on(workers: Workers) -> None:
    s = simulation(workers, Spoiled("peer 1", math.nan))
    assert s.step(evaluate=False).evaluations == {}


def test_a_peer_without_test_data_is_not_measured(workers: Workers) -> None:
    s = simulation(workers, Spoiled("peer 1", math.nan), federation=federation((4, 0, 3, 2, 4)))
    loss = s.step().evaluations["after_local"].loss
    assert loss.isnan().tolist() == [False, True, False, False, False]


def test_absent_peers_are_left_alone(workers: Workers) -> None:
    topology = Churn(make("ring", peers=PEERS, seed=0), 0.5, 0)
    s = simulation(workers, Spoiled("offline", math.nan), topology=topology)
    online = torch.stack([s.step().online for _ in range(4)])
    assert bool(online.any())
    assert not bool(online.all())


def test_a_hub_has_no_test_data(workers: Workers) -> None:
    s = simulation(workers, Spoiled("hub", math.nan), topology=make("star", peers=PEERS, seed=0))
    assert bool(s.step().evaluations["after_mixing"].loss.isfinite().all())


@pytest.mark.parametrize("executor", ["stacked", "looped"])
def test_an_infinite_loss_is_a_measurement(executor: ExecutorName, workers: Workers) -> None:
    """Also where the samples of some peers are padded to those of others."""
    loss = simulation(workers, Spoiled("everyone", 3e38), executor).step().evaluations["after_local"].loss
    data = federation()
    for peer in range(PEERS):  # the second class is sure: a sample of the first one has an infinite loss
        assert float(loss[peer]) == (math.inf if bool((data.y[data.test.of(peer)] == 0).any()) else 0.0)
    assert bool(loss.isinf().any())


def test_the_last_local_step_counts() -> None:
    """The loss before it was as it should be."""
    with pytest.raises(
        DivergedError, match=r"peer 0, 1, 2, 3 .*round 1; .*training\.lr or set training\.clip"
    ):
        digits("local", rounds=1, training={"lr": 1e38, "steps": 1, "clip": 0.0})


def test_the_records_of_earlier_rounds_stay(tmp_path: Path) -> None:
    with pytest.raises(DivergedError, match=r"peer 1 .*in round 3"):
        digits(Spoiled("peer 1", math.nan, from_round=2), rounds=4, run_dir=tmp_path / "run")
    lines = (tmp_path / "run" / "metrics.csv").read_text().splitlines()
    assert len(lines) == 1 + 2 * 4
    assert not (tmp_path / "run" / "result.json").exists()


def digits(algorithm: Any, **settings: Any) -> None:
    coterie.simulate(algorithm=algorithm, data="digits", model="mlr", topology="ring", peers=4, **settings)
