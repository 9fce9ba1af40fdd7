"""A world small enough to work out by hand: softmax regression in float64 on a few samples per client."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from coterie.catalogue import algorithms
from coterie.data import Federation, from_peers
from coterie.learning import Executor, ExecutorName, Workers
from coterie.simulation import Simulation
from coterie.topology import Topology, make
from coterie.training import Training

Weights = tuple[np.ndarray, np.ndarray]  # (classes, features) and (classes,)


@dataclass
class World:
    """Clients with a few samples each, a hub, and what NumPy says about their models."""

    sizes: tuple[int, ...]
    classes: int
    data: Federation
    module: nn.Module
    workers: Workers

    @property
    def hub(self) -> int:
        """The row after those of the clients."""
        return len(self.sizes)

    def simulation(
        self,
        algorithm: str,
        settings: dict[str, Any] | None = None,
        *,
        topology: Topology | None = None,
        executor: ExecutorName = "stacked",
        **training: Any,
    ) -> Simulation:
        """Full batches, one step per round, no clipping, unless `training` says otherwise."""
        given = {"steps": 1, "batch_size": 100, "lr": 0.1, "clip": 0.0, **training}
        return Simulation(
            algorithm=algorithms[algorithm](**(settings or {})),
            federation=self.data,
            module=self.module,
            topology=topology or make("star", peers=len(self.sizes), seed=0),
            training=Training(**given),
            executor=Executor(executor, self.module, self.workers),
            seed=0,
            rounds=10,
        )

    def samples(self, client: int) -> tuple[np.ndarray, np.ndarray]:
        """One client's training inputs and one-hot labels."""
        index = self.data.train.of(client)
        return self.data.x[index].numpy(), np.eye(self.classes)[self.data.y[index].numpy()]

    def initial(self) -> Weights:
        """The common initial model."""
        return self.weights({name: value[None] for name, value in self.module.state_dict().items()}, 0)

    @staticmethod
    def weights(params: dict[str, Tensor], row: int) -> Weights:
        """One row's model as arrays of its own."""
        return params["0.weight"][row].numpy().copy(), params["0.bias"][row].numpy().copy()

    def probabilities(self, model: Weights, client: int) -> np.ndarray:
        logits = self.samples(client)[0] @ model[0].T + model[1]
        e = np.exp(logits - logits.max(1, keepdims=True))
        return e / e.sum(1, keepdims=True)

    def gradient(self, model: Weights, client: int) -> Weights:
        """Of the mean cross-entropy on the client's training data."""
        return self.through_logits(self.probabilities(model, client) - self.samples(client)[1], client)

    def through_logits(self, per_sample: np.ndarray, client: int) -> Weights:
        """The gradient of a mean over samples whose derivative by each sample's logits is given."""
        x, _ = self.samples(client)
        return per_sample.T @ x / len(x), per_sample.mean(0)

    @staticmethod
    def step(model: Weights, gradient: Weights, rate: float) -> Weights:
        return model[0] - rate * gradient[0], model[1] - rate * gradient[1]

    @staticmethod
    def combine(models: list[Weights], weights: list[float]) -> Weights:
        """The weighted sum."""
        weight = sum(w * model[0] for w, model in zip(weights, models, strict=True))
        bias = sum(w * model[1] for w, model in zip(weights, models, strict=True))
        return np.asarray(weight), np.asarray(bias)

    def by_samples(self, models: list[Weights]) -> Weights:
        """FedAvg's mean, weighted by numbers of samples."""
        return self.combine(models, [n / sum(self.sizes) for n in self.sizes])


def make_world(workers: Workers, sizes: tuple[int, ...], features: int = 3, classes: int = 3) -> World:
    rng = np.random.default_rng(7)
    datasets = []
    for size in sizes:
        parts = {}
        for part, n in (("train", size), ("test", 4)):
            y = rng.integers(0, classes, n)
            parts[part] = (rng.normal(size=(n, features)) + y[:, None], y)
        datasets.append(parts)
    made = from_peers(datasets, n_classes=classes)
    layer = nn.Linear(features, classes).double()
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(rng.normal(size=(classes, features))))
        layer.bias.copy_(torch.from_numpy(rng.normal(size=classes)))
    return World(sizes, classes, dataclasses.replace(made, x=made.x.double()), nn.Sequential(layer), workers)


@pytest.fixture(scope="session")
def one_worker() -> Iterator[Workers]:
    with Workers(1) as workers:
        yield workers


@pytest.fixture
def world(one_worker: Workers) -> Callable[..., World]:
    """`world((4, 6, 5))`: clients with so many training samples."""
    return lambda sizes=(4, 6, 5): make_world(one_worker, sizes)


@pytest.fixture
def assert_close() -> Callable[..., None]:
    """Two models are equal within a tolerance."""

    def check(ours: Weights, theirs: Weights, tolerance: float = 1e-12) -> None:
        for a, b in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)

    return check
