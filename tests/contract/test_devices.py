"""Models and data on another device, rows counted on the CPU.

Fake tensors stand in for the device: they have shapes but no numbers, and refuse to meet tensors of another
device wherever real ones would. What is tested is thus that nothing is mixed up, not what comes out of it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from algorithm_exam import build, federation, module, topology_for
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from coterie.catalogue import algorithms
from coterie.learning import Executor, LearningNode, Workers
from coterie.protocol import Bundle, Inbox, Params, average
from coterie.protocol.trees import take, where_rows
from coterie.simulation import Simulation
from coterie.training import Training

ELSEWHERE = torch.device("meta")
# Which branch these take by default, or how many weights they send, depends on numbers that are not there.
WITHOUT_NUMBERS: dict[str, dict[str, Any]] = {
    "kd-pdfl": {"step_rule": "const"},
    "blend-dfl": {"weighting": "none"},
    "dfedsalt": {"rho": 0.0},
}
NEED_NUMBERS = {"dis-pfl", "dfedsam", "pfedgraph"}


@pytest.fixture
def elsewhere() -> Callable[[Tensor], Tensor]:
    mode = FakeTensorMode(allow_non_fake_inputs=True)

    def away(like: Tensor) -> Tensor:
        with mode:
            return torch.empty(like.shape, dtype=like.dtype, device=ELSEWHERE)

    return away


def inbox(payload: Params) -> Inbox:
    """Row 0 hears from nodes 1 and 2, row 2 from node 0."""
    source = torch.tensor([1, 2, 0])
    return Inbox([Bundle(payload, source, torch.tensor([0, 0, 2]), source)], 3)


def test_fake_tensors_refuse_what_a_device_refuses(elsewhere: Callable[[Tensor], Tensor]) -> None:
    leaf, rows = elsewhere(torch.zeros(3, 2)), torch.tensor([0, 2])
    for mistake in (lambda: leaf.index_select(0, rows), lambda: leaf * torch.ones(3, 1)):
        with pytest.raises(RuntimeError, match="device"):
            mistake()


@pytest.mark.parametrize("weights", [None, torch.tensor([0.2, 0.3, 0.4]).double()], ids=["even", "weighted"])
def test_trees_and_sums_follow_the_models(
    elsewhere: Callable[[Tensor], Tensor], weights: Tensor | None
) -> None:
    mine: Params = {"w": elsewhere(torch.zeros(3, 2, 4)), "b": elsewhere(torch.zeros(3, 2))}
    theirs = {name: value + 1 for name, value in mine.items()}
    rows, mask = torch.tensor([2, 0]), torch.tensor([True, False, True])
    found = [
        take(mine, rows),
        where_rows(mask, mine, theirs),
        average(mine, inbox(mine), weights),  # in one pass
        average(mine, inbox(theirs), weights),
        inbox(theirs).sum(weights),
        {"w": inbox(theirs).mean_of(lambda payload, rows: payload["w"])},  # type: ignore[index]
    ]
    for tree in found:
        for name, value in tree.items():  # type: ignore[union-attr]
            assert value.device == ELSEWHERE
            assert value.shape[1:] == mine[name].shape[1:]


KEPT = [{"optimizer": "adam", "schedule": "cosine"}, {"momentum": 0.9, "accumulate": 2}]


@pytest.mark.parametrize("settings", KEPT, ids=["adam", "momentum"])
@pytest.mark.parametrize("name", ["local", "dfedpgp", "ditto"])
def test_an_optimiser_s_memory_is_where_the_models_are(
    name: str,
    settings: dict[str, Any],
    workers: dict[int, Workers],
    elsewhere: Callable[[Tensor], Tensor],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Peers take different numbers of steps, so each has a rate and a count of its own."""
    how = Training(batch_size=4, clip=0.0, optimizer_state="kept", **settings)
    simulation = simulated_elsewhere(name, how, workers, elsewhere, monkeypatch)
    memory = simulation.blocks[0].node.remembered()
    assert memory
    assert all(value.device == ELSEWHERE for value in memory.values())
    simulation.blocks[0].node.recall(memory)
    simulation.step()


def test_best_models_are_where_the_models_are(
    workers: dict[int, Workers], elsewhere: Callable[[Tensor], Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    how = Training(batch_size=4, clip=0.0)
    simulation = simulated_elsewhere("d-psgd", how, workers, elsewhere, monkeypatch, keep_best=True)
    node = simulation.blocks[0].node
    assert node.best is not None
    node.recall(node.remembered())
    simulation.step()
    assert all(value.device == ELSEWHERE for value in node.best.params.values())
    assert node.best.worth.device == torch.device("cpu")


@pytest.mark.parametrize("name", [name for name in algorithms if name not in NEED_NUMBERS])
def test_rounds_of_models_elsewhere(
    name: str,
    workers: dict[int, Workers],
    elsewhere: Callable[[Tensor], Tensor],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    simulation = simulated_elsewhere(name, Training(batch_size=4, clip=0.0), workers, elsewhere, monkeypatch)
    assert all(value.device == ELSEWHERE for value in simulation.personal().values())


@pytest.mark.parametrize("name", ["local", "kd-pdfl", "dfedpgp"])
def test_inputs_by_name_are_gathered_elsewhere(
    name: str,
    workers: dict[int, Workers],
    elsewhere: Callable[[Tensor], Tensor],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    how = Training(batch_size=4, clip=0.0)
    simulation = simulated_elsewhere(name, how, workers, elsewhere, monkeypatch, named="input")
    assert simulation.federation.device == ELSEWHERE
    assert all(value.device == ELSEWHERE for value in simulation.personal().values())


TRAININGS: dict[str, dict[str, Any]] = {
    "adamw": {"optimizer": "adamw", "weight_decay": 0.1, "schedule": "cosine", "warmup": 1.0},
    "nesterov": {"momentum": 0.9, "nesterov": True, "schedule": "step(1,0.5)", "accumulate": 2},
    "weights": {"class_weights": (1.0, 2.0, 0.5), "label_smoothing": 0.1},
    "augmented": {"augment": "crop(1)+flip+cutout(1)"},
    "equal work": {"work": "equal"},
}


@pytest.mark.parametrize("settings", TRAININGS.values(), ids=TRAININGS)
def test_all_kinds_of_training_happen_elsewhere(
    settings: dict[str, Any],
    workers: dict[int, Workers],
    elsewhere: Callable[[Tensor], Tensor],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    how = Training(batch_size=4, clip=0.0, **settings)
    simulation = simulated_elsewhere(
        "dfedpgp", how, workers, elsewhere, monkeypatch, images="augment" in settings
    )
    assert all(value.device == ELSEWHERE for value in simulation.personal().values())


def simulated_elsewhere(
    name: str,
    training: Training,
    workers: dict[int, Workers],
    elsewhere: Callable[[Tensor], Tensor],
    monkeypatch: pytest.MonkeyPatch,
    named: str | None = None,  # what the forward of a Sequential calls its argument
    keep_best: bool = False,
    images: bool = False,  # of two by two pixels, in the place of four features
) -> Simulation:
    """After two rounds."""
    initial = LearningNode.initial
    monkeypatch.setattr(LearningNode, "initial", lambda node: _all(elsewhere, initial(node)))
    data, algorithm = federation(torch.float32), build(name, WITHOUT_NUMBERS.get(name, {}))
    net, x = module(torch.float32, normalised=True), elsewhere(data.x)
    if images:
        net, x = nn.Sequential(nn.Flatten(), *net), elsewhere(data.x.view(-1, 1, 2, 2))
    simulation = Simulation(
        algorithm=algorithm,
        federation=dataclasses.replace(data, x={named: x} if named else x, y=elsewhere(data.y)),
        module=net,
        topology=topology_for(algorithm),
        training=training,
        keep_best=keep_best,
        executor=Executor("stacked", net, workers[1]),
        seed=1,
        rounds=2,
        local_buffers=True,
    )
    for _ in range(2):
        simulation.step()
    return simulation


def _all(away: Callable[[Tensor], Tensor], params: Params) -> Params:
    return {name: away(value) for name, value in params.items()}
