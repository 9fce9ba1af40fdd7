"""DBE beside a plain PyTorch loop that has the bias as a parameter, and adds it to the features."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import by_hand
import pytest
import torch
from torch import Tensor, nn

from coterie.algorithms.dbe import DBE
from coterie.errors import ConfigError
from coterie.learning.local_steps import draw_batches
from coterie.randomness import stream
from coterie.simulation import Simulation
from coterie.topology import Churn, make
from coterie.training import Training

Build = Callable[..., Simulation]
SIZES = (4, 7, 5)
BATCH, EPOCHS, LR = 3, 2, 0.1


class Plain:
    """One node as the paper has it: f, W, c and b are parameters, and torch finds their gradients."""

    def __init__(self, run: Simulation, peer: int) -> None:
        self.body, self.head = (
            nn.Linear(by_hand.FEATURES, by_hand.HIDDEN),
            nn.Linear(by_hand.HIDDEN, by_hand.CLASSES),
        )
        self.network = nn.Sequential(self.body, nn.Tanh(), self.head).double()
        self.network.load_state_dict(by_hand.of(run.personal(), peer))
        self.bias = nn.Parameter(torch.zeros(by_hand.HIDDEN, dtype=torch.float64))
        self.target: Tensor | None = None  # m
        self.peer, (self.x, self.y) = peer, by_hand.data_of(run, peer)

    def features(self, x: Tensor) -> Tensor:
        return torch.tanh(self.body(x))

    def batches(self, round: int) -> list[Tensor]:
        n, steps = torch.tensor([len(self.y)]), EPOCHS * -(-len(self.y) // BATCH)
        drawn = draw_batches(
            stream(1, "batches", round, torch.tensor([self.peer])), n, torch.tensor([steps]), BATCH
        )
        return [index[:size] for index, size in zip(drawn.index[0], drawn.sizes[0], strict=True)]

    def train(self, round: int, rule: Callable[..., torch.optim.Optimizer], kappa: float, mu: float) -> None:
        optimiser = rule([*self.network.parameters(), self.bias])
        running = torch.zeros(by_hand.HIDDEN, dtype=torch.float64)
        for index in self.batches(round):
            z = self.features(self.x[index])
            loss = nn.functional.cross_entropy(self.head(z + self.bias), self.y[index])
            if self.target is not None:
                running = (1 - mu) * running.detach() + mu * z.mean(0)
                loss = loss + kappa * torch.mean(0.5 * (running - self.target) ** 2)
            optimiser.zero_grad()
            loss.backward()
            if self.target is None:
                self.bias.grad = None
            optimiser.step()


def mixed(values: list[Tensor]) -> Tensor:
    return sum(n * v for n, v in zip(SIZES, values, strict=True)) / sum(SIZES)  # type: ignore[return-value]


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, LR, momentum=0.5, weight_decay=0.01)


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, LR)


@pytest.mark.parametrize(
    ("rule", "settings"), [(sgd, {"momentum": 0.5, "weight_decay": 0.01}), (adam, {"optimizer": "adam"})]
)
@pytest.mark.parametrize("mu", [1.0, 0.3])
def test_rounds_by_torch(rule: Any, settings: dict[str, Any], mu: float, small_simulation: Build) -> None:
    training = Training(epochs=EPOCHS, batch_size=BATCH, lr=LR, clip=0.0, **settings)
    run = small_simulation(DBE(kappa=8.0, mu=mu), "full", sizes=SIZES, training=training)
    nodes = [Plain(run, peer) for peer in range(3)]
    for round in range(3):
        run.step()
        for node in nodes:
            node.train(round, rule, 8.0, mu)
        if not round:
            means = [node.features(node.x).mean(0).detach() for node in nodes]
            for node in nodes:
                node.target = mixed(means)
        with torch.no_grad():
            common = {
                n: mixed([node.network.state_dict()[n] for node in nodes])
                for n in nodes[0].network.state_dict()
            }
        state, personal = run.blocks[0].state, run.personal()
        for peer, node in enumerate(nodes):
            node.network.load_state_dict(common)
            for name, value in common.items():
                torch.testing.assert_close(state.params[name][peer], value)
            torch.testing.assert_close(state.bias[peer], node.bias.detach())
            torch.testing.assert_close(state.mean[peer], node.target)
            used = nn.functional.linear(node.features(node.x) + node.bias, node.head.weight, node.head.bias)
            torch.testing.assert_close(by_hand.logits(by_hand.of(personal, peer), node.x), used.detach())
    assert float(run.blocks[0].state.bias.abs().min()) > 1e-4  # every part of it learned something


def test_a_node_that_comes_later_begins_without_bias_and_pull(small_simulation: Build) -> None:
    """In its first round it trains as a node of FedAvg does, and then has the mean of its own features."""
    run = small_simulation(DBE(kappa=8.0), Churn(make("full", peers=3, seed=2), 0.5, seed=5), sizes=SIZES)
    waited = False
    for _ in range(8):
        before, online = run.blocks[0].state, run.topology.online(run.round)
        run.step()
        after, trained = run.blocks[0].state, run.blocks[0].node.shown["after_local"]
        for peer in (online & ~before.begun).nonzero().flatten().tolist():
            waited |= bool(before.begun.any())
            start = by_hand.differentiable(by_hand.of(before.params, peer))
            step = by_hand.gradient(start, by_hand.loss(start, *by_hand.data_of(run, peer)))
            for name, value in start.items():
                torch.testing.assert_close(trained[name][peer], (value - 0.1 * step[name]).detach())
        assert torch.equal(after.begun, before.begun | online)
        assert torch.equal(after.bias.any(1), before.begun & (before.bias.any(1) | online))
    assert waited  # somebody began when others had


def test_a_pull_draws_the_features_of_all_together(small_simulation: Build) -> None:
    """Means of features over nodes with different data lie nearer to each other, the stronger the pull is."""
    apart = []
    for kappa in (0.0, 50.0):
        run = small_simulation(DBE(kappa=kappa), "full", sizes=SIZES)
        for _ in range(8):
            run.step(evaluate=False)
        shown = run.blocks[0].node.shown["after_local"]
        means = []
        for peer in range(3):
            model, (x, _) = by_hand.of(shown, peer), by_hand.data_of(run, peer)
            means.append(torch.tanh(x @ model["0.weight"].T + model["0.bias"]).mean(0))
        apart.append(float(torch.stack(means).var(0).sum()))
    assert apart[1] < apart[0] / 2


def test_a_head_without_an_offset_is_refused(small_simulation: Build) -> None:
    network = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2, bias=False)).double()
    with pytest.raises(ConfigError, match="has weight"):
        small_simulation(DBE(), "full", sizes=SIZES, network=network).step()


@pytest.mark.parametrize("settings", [{"kappa": -1.0}, {"mu": 0.0}, {"mu": 1.5}])
def test_settings_that_cannot_be(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        DBE(**settings)
