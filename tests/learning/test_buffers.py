"""Buffers that a module of one's own updates by assignment: each peer keeps its own."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import coterie
from coterie.errors import ConfigError
from coterie.experiments.runs.run import Run

FEATURES, CLASSES, PEERS, ROUNDS = 4, 3, 6, 3


class RunningMean(nn.Module):
    """Scales by a running mean of hidden values, whose old value the backward pass needs."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.head = nn.Linear(FEATURES, 5), nn.Linear(5, CLASSES)
        self.register_buffer("mean", torch.ones(5))

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.sigmoid(self.hidden(x))
        scaled = hidden * self.mean
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * hidden.detach().mean(0)
        return self.head(scaled)


class Inner(nn.Module):
    """The same in a layer of a network, beside a buffer that stays as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(RunningMean(), nn.Tanh(), nn.Linear(CLASSES, CLASSES))
        self.register_buffer("scale", torch.full((1,), 2.0))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x) * self.scale


def data() -> list[Any]:
    rng = np.random.default_rng(0)
    pairs = [(rng.normal(size=(7, FEATURES)), rng.integers(0, CLASSES, 7)) for _ in range(PEERS)]
    return [{"train": pair, "test": pair} for pair in pairs]


def simulate(model: type[nn.Module], algorithm: str = "local", **execution: Any) -> Run:
    """Full batches, two local steps in each round."""
    return coterie.simulate(
        algorithm=algorithm,
        data=data(),
        model=model,
        topology="ring",
        peers=PEERS,
        rounds=ROUNDS,
        training={"batch_size": 7, "steps": 2, "lr": 0.5, "clip": 0.0},
        execution={"executor": "looped", **execution},
    )


def by_hand(module: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    net = copy.deepcopy(module).train()
    optimiser = torch.optim.SGD(net.parameters(), lr=0.5)
    for _ in range(2 * ROUNDS):
        optimiser.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimiser.step()
    return net.state_dict()


@pytest.mark.parametrize("model", [RunningMean, Inner])
def test_an_assigned_buffer_is_the_peers_own(model: type[nn.Module]) -> None:
    run = simulate(model, workers=1)
    for peer, each in enumerate(data()):
        x, y = each["train"]
        expected = by_hand(run.module, torch.tensor(x, dtype=torch.float32), torch.tensor(y))
        found = run.model(peer)
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, msg=f"{name} of peer {peer}")


@pytest.mark.parametrize("algorithm", ["local", "d-psgd"])
@pytest.mark.parametrize("model", [RunningMean, Inner])
def test_assigned_buffers_do_not_depend_on_the_workers(model: type[nn.Module], algorithm: str) -> None:
    one = simulate(model, algorithm, workers=1)
    for workers in (2, 4):
        other = simulate(model, algorithm, workers=workers)
        assert torch.equal(one.history.last("loss", "after_local"), other.history.last("loss", "after_local"))
        for name, value in one.params.items():
            assert torch.equal(value, other.params[name]), name


class Growing(RunningMean):
    """Its buffer gets another shape, so that peers could not average it."""

    def forward(self, x: Tensor) -> Tensor:
        output = super().forward(x)
        if self.training:
            self.mean = self.mean[:1]
        return output


def test_a_buffer_that_changes_its_shape_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"shape of the model's buffer 'mean'.*\(5,\)"):
        simulate(Growing, workers=1)
