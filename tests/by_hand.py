"""The tiny network of these tests, one peer at a time, as torch computes it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from coterie.protocol import Params
from coterie.simulation import Simulation

BODY, HEAD = ("0.weight", "0.bias"), ("2.weight", "2.bias")
CLASSES, FEATURES, HIDDEN = 2, 3, 4


def own_network(peer: int) -> nn.Module:
    """A network for each peer, all of them different."""
    with torch.random.fork_rng():
        torch.manual_seed(100 + peer)
        return nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, CLASSES)).double()


def of(params: Params, peer: int) -> Params:
    return {name: value[peer].clone() for name, value in params.items()}


def data_of(simulation: Simulation, peer: int, part: str = "train") -> tuple[Tensor, Tensor]:
    index = getattr(simulation.federation, part).of(peer)
    return simulation.federation.x[index], simulation.federation.y[index]


def logits(model: Params, x: Tensor) -> Tensor:
    hidden = torch.tanh(x @ model["0.weight"].T + model["0.bias"])
    return hidden @ model["2.weight"].T + model["2.bias"]


def loss(model: Params, x: Tensor, y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(logits(model, x), y)


def gradient(model: Params, value: Tensor) -> Params:
    return dict(zip(model, torch.autograd.grad(value, list(model.values())), strict=True))


def differentiable(model: Params) -> Params:
    return {name: value.clone().requires_grad_() for name, value in model.items()}


def mean(*models: Params) -> Params:
    return {name: torch.stack([model[name] for model in models]).mean(0) for name in models[0]}
