"""Local training beside a plain PyTorch loop on the same batches, peer by peer, in float64."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from coterie.data import Federation, from_peers
from coterie.learning import Executor, ExecutorName, Workers, cross_entropy, model_tree
from coterie.learning.local_steps import LocalWork, draw_batches, local_steps
from coterie.protocol import Loss, Params
from coterie.randomness import Stream, stream
from coterie.training import Training

CLASSES, FEATURES = 3, 5
SIZES = (11, 4, 1, 8)


class Branches(nn.Module):
    """A user's own module with a forward of its own; one of its layers is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(FEATURES, 6), nn.Linear(6, 6)
        self.gate, self.head = nn.Linear(FEATURES, 6, bias=False), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.second(torch.relu(self.first(x))))
        return self.head(self.second(hidden * torch.sigmoid(self.gate(x))) + hidden)


def dense() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(FEATURES, 7), nn.ReLU(), nn.Linear(7, CLASSES, bias=False))


def seeded(build: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return build().double()


def peers(sizes: tuple[int, ...] = SIZES) -> Federation:
    rng = np.random.default_rng(1)
    data = [(rng.normal(size=(n, FEATURES)), rng.integers(0, CLASSES, n)) for n in sizes]
    made = from_peers([{"train": pair, "test": pair} for pair in data], n_classes=CLASSES)
    return Federation(**{**vars(made), "x": made.x.double()})


@dataclass
class Lab:
    """Trains all peers at once in Coterie, and each by torch.optim."""

    workers: Workers

    def coterie(
        self,
        module: nn.Module,
        executor: ExecutorName,
        data: Federation,
        training: Training,
        *,
        start: Params | None = None,
        only: tuple[str, ...] | None = None,
        rows: Tensor | None = None,
        loss: Loss = cross_entropy,
        **settings: Any,
    ) -> tuple[Params, Tensor]:
        runner = Executor(executor, module, self.workers)
        return runner.train(
            start or stacked(module, data.peers),
            data,
            torch.arange(data.peers) if rows is None else rows,
            numbers(data),
            LocalWork.resolve(training, 0, settings),
            loss,
            runner.trainable if only is None else only,
        )


def stacked(module: nn.Module, rows: int) -> Params:
    return {name: value.repeat(rows, *[1] * (value.dim() - 1)) for name, value in model_tree(module).items()}


def numbers(data: Federation) -> Stream:
    return stream(9, "batches", 0, torch.arange(data.peers))


def batches_of(data: Federation, peer: int, training: Training) -> list[tuple[Any, Tensor]]:
    """One peer's mini-batches as a list of (x, y)."""
    work = LocalWork.resolve(training, 0, {})
    n = data.train.sizes[peer : peer + 1]
    steps = local_steps(n, work)
    drawn = draw_batches(stream(9, "batches", 0, torch.tensor([peer])), n, steps, training.batch_size)
    mine = data.train.of(peer)
    picked = [mine[drawn.index[0, step, : int(drawn.sizes[0, step])]] for step in range(int(steps))]
    if isinstance(data.x, dict):
        return [({name: part[index] for name, part in data.x.items()}, data.y[index]) for index in picked]
    return [(data.x[index], data.y[index]) for index in picked]


def torch_training(
    module: nn.Module,
    batches: list[tuple[Any, Tensor]],
    optimiser: Callable[[list[nn.Parameter]], torch.optim.Optimizer],
    clip: float,
    call: Callable[[nn.Module, Any], Tensor] = lambda net, x: net(x),
) -> tuple[nn.Module, float]:
    """A plain PyTorch loop; a batch of one sample goes through BatchNorm's running statistics.

    call: how the network gives logits.
    """
    net = copy.deepcopy(module)
    steps, losses = optimiser(list(net.parameters())), []
    for x, y in batches:
        net.train()
        for layer in net.modules():
            if isinstance(layer, (nn.BatchNorm1d, nn.BatchNorm2d)) and len(y) == 1:
                layer.eval()
        loss = nn.functional.cross_entropy(call(net, x), y)
        steps.zero_grad()
        loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(net.parameters(), clip)
        steps.step()
        losses.append(loss.item())
    return net, sum(losses) / max(1, len(losses))


def assert_equal_models(params: Params, row: int, net: nn.Module) -> None:
    expected = model_tree(net)
    assert params.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(params[name][row], value[0], rtol=1e-9, atol=1e-9, msg=name)
