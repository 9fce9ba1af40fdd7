"""FedPer, FedRep and FedBABU: what travels, what stays, and what each client is measured with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from coterie.algorithms.fedavg import FedAvg
from coterie.algorithms.fedbabu import FedBABU
from coterie.algorithms.fedper import FedPer
from coterie.algorithms.fedrep import FedRep
from coterie.errors import ConfigError
from coterie.protocol.trees import leaves
from coterie.simulation import Simulation
from coterie.training import Training

Build = Callable[..., Simulation]
Weights = dict[str, Tensor]
BODY, HEAD = ("0.weight", "0.bias"), ("2.weight", "2.bias")
SIZES = (4, 7, 1, 6)
TRAINING = Training(epochs=2, batch_size=100, lr=0.2, clip=0.0, weight_decay=0.05)


def trained_by_hand(
    simulation: Simulation, client: int, start: Weights, phases: list[tuple[tuple[str, ...], int, float]]
) -> Weights:
    """Full-batch torch.optim.SGD: (names, epochs, lr) for each phase."""
    data = simulation.federation
    x, y = data.x[data.train.of(client)], data.y[data.train.of(client)]
    weights = {name: value.clone().requires_grad_() for name, value in start.items()}
    for names, epochs, lr in phases:
        optimiser = torch.optim.SGD([weights[name] for name in names], lr=lr, weight_decay=0.05)
        for _ in range(epochs):
            hidden = torch.tanh(x @ weights["0.weight"].T + weights["0.bias"])
            optimiser.zero_grad()
            cross_entropy(hidden @ weights["2.weight"].T + weights["2.bias"], y).backward()
            optimiser.step()
    return {name: value.detach() for name, value in weights.items()}


def of(params: Weights, client: int) -> Weights:
    return {name: value[client] for name, value in params.items()}


PHASES: dict[str, tuple[Any, list[tuple[tuple[str, ...], int, float]], tuple[float, ...]]] = {
    "fedper": (FedPer(), [((*BODY, *HEAD), 2, 0.2)], SIZES),
    "fedrep": (FedRep(head_epochs=3, head_lr=0.1), [(HEAD, 3, 0.1), (BODY, 2, 0.2)], SIZES),
    "fedbabu": (FedBABU(), [(BODY, 2, 0.2)], (1, 1, 1, 1)),
}


@pytest.mark.parametrize("name", PHASES)
def test_rounds_equal_torch_by_hand(small_simulation: Build, name: str) -> None:
    algorithm, phases, weights = PHASES[name]
    simulation = small_simulation(algorithm, "star", sizes=SIZES, training=TRAINING)
    expected = [of(simulation.personal(), client) for client in range(4)]
    for _ in range(2):
        expected = [trained_by_hand(simulation, i, start, phases) for i, start in enumerate(expected)]
        for part in BODY:
            mean = sum(n * w[part] for n, w in zip(weights, expected, strict=True)) / sum(weights)
            for w in expected:
                w[part] = mean
        simulation.step()
        for client, w in enumerate(expected):
            for part, value in w.items():
                torch.testing.assert_close(simulation.personal()[part][client], value)


@pytest.mark.parametrize("algorithm", [FedPer(participation=0.5), FedRep(participation=0.5)])
def test_heads_differ_and_bodies_are_equal_after_broadcast(small_simulation: Build, algorithm: Any) -> None:
    simulation = small_simulation(algorithm, "star", training=TRAINING)
    for _ in range(4):
        simulation.step()
    params = simulation.personal()
    for name in BODY:
        assert all(torch.equal(params[name][0], row) for row in params[name])
    heads = params["2.weight"]
    assert sum(not torch.equal(heads[0], row) for row in heads[1:]) >= 3


@pytest.mark.parametrize("algorithm", [FedPer(), FedRep(), FedBABU()])
def test_no_payload_has_a_head(small_simulation: Build, algorithm: Any) -> None:
    simulation = small_simulation(algorithm, "star", sizes=SIZES)
    deliver, places = simulation._router.deliver, []

    def listening(*given: Any) -> Any:
        places.append({place for place, _ in leaves(simulation.blocks[0].sent)})
        return deliver(*given)

    simulation._router.deliver = listening  # type: ignore[method-assign]
    simulation.step()
    body = set(BODY)
    assert places == [body, {"model/0.weight", "model/0.bias", "samples/n"}, body, body]


def test_only_sampled_clients_move_their_heads(small_simulation: Build) -> None:
    simulation = small_simulation(FedPer(participation=0.34), "star", training=TRAINING)
    before = simulation.personal()["2.weight"]
    record = simulation.step()
    moved = (simulation.personal()["2.weight"] != before).flatten(1).any(1)
    assert int(moved.sum()) == 2
    assert torch.equal(moved, ~record.train_loss.isnan())


def test_head_tuning_measures_every_client_with_a_trained_head(small_simulation: Build) -> None:
    """Also one that was never sampled; nothing of it stays in the federation, nor counts as training."""
    plain = small_simulation(FedPer(participation=0.34), "star", training=TRAINING)
    tuned = small_simulation(FedPer(participation=0.34, head_tuning=2), "star", training=TRAINING)
    without, record = plain.step(), tuned.step()
    for name, value in plain.personal().items():
        assert torch.equal(value, tuned.personal()[name])
    torch.testing.assert_close(record.train_loss, without.train_loss, equal_nan=True)
    shown = tuned.blocks[0].node.shown["after_mixing"]
    for client in range(6):
        w = trained_by_hand(tuned, client, of(tuned.personal(), client), [(HEAD, 2, 0.2)])
        for name, value in w.items():
            torch.testing.assert_close(shown[name][client], value)


def test_fedbabu_head_never_moves(small_simulation: Build) -> None:
    """Weight decay and fine-tuning for measurements leave it alone, also where few clients are sampled."""
    simulation = small_simulation(FedBABU(participation=0.5), "star", training=TRAINING)
    start = simulation.personal()
    for _ in range(4):
        simulation.step()
        params = simulation.personal()
        for name in HEAD:
            assert torch.equal(params[name], start[name])
            assert all(torch.equal(params[name][0], row) for row in params[name])
        for name in BODY:
            assert all(torch.equal(params[name][0], row) for row in params[name])
    assert not torch.equal(params["0.weight"], start["0.weight"])


def test_fedbabu_is_measured_after_fine_tuning(small_simulation: Build) -> None:
    simulation = small_simulation(FedBABU(finetune_epochs=3), "star", sizes=SIZES, training=TRAINING)
    record = simulation.step()
    shown = simulation.blocks[0].node.shown["after_mixing"]
    for client in range(4):
        start = of(simulation.personal(), client)
        w = trained_by_hand(simulation, client, start, [((*BODY, *HEAD), 3, 0.2)])
        for name, value in w.items():
            torch.testing.assert_close(shown[name][client], value)
    own = simulation.blocks[0].node.evaluate(shown)
    torch.testing.assert_close(record.evaluations["after_mixing"].loss, own.loss[:4])


def test_fedbabu_fine_tunes_only_to_be_measured(small_simulation: Build) -> None:
    measured = small_simulation(FedBABU(), "star", training=TRAINING)
    unmeasured = small_simulation(FedBABU(), "star", training=TRAINING)
    for _ in range(2):
        measured.step(), unmeasured.step(evaluate=False)
    assert "after_mixing" not in unmeasured.blocks[0].node.shown
    measured.step(), unmeasured.step()
    for name, value in measured.personal().items():
        assert torch.equal(value, unmeasured.personal()[name])


def test_all_shared_is_fedavg(small_simulation: Build) -> None:
    """FedPer on a model whose head is empty is FedAvg."""
    partial = small_simulation(FedPer(participation=0.5), "star", training=TRAINING)
    node = partial.blocks[0].node
    node.body, node.head = (*node.body, *node.head), ()
    full = small_simulation(FedAvg(participation=0.5), "star", training=TRAINING)
    for _ in range(3):
        partial.step(), full.step()
    for name, value in full.personal().items():
        assert torch.equal(partial.personal()[name], value)


@pytest.mark.parametrize(
    ("algorithm", "settings"),
    [
        (FedPer, {"head_tuning": -1}),
        (FedPer, {"participation": 0.0}),
        (FedRep, {"head_epochs": -1}),
        (FedRep, {"head_lr": -0.1}),
        (FedBABU, {"finetune_epochs": 0}),
        (FedBABU, {"participation": 1.5}),
    ],
)
def test_settings_that_cannot_be(algorithm: Callable[..., Any], settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        algorithm(**settings)
