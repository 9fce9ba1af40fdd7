"""Five peers with different models, four of them linked: softmax regression in float64, full batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from coterie.protocol import Algorithm
from coterie.randomness import shared_stream
from coterie.simulation import Simulation
from coterie.topology import Topology, make
from coterie.training import Training

EDGES = [(0, 1), (0, 2), (1, 2), (2, 3)]  # peer 4 has no neighbours
FEATURES, CLASSES = 3, 2


@dataclass
class World:
    """A model is one matrix here, whose last column is the bias."""

    build: Callable[..., Simulation]
    sizes: tuple[int, ...] = (4, 6, 5, 3, 1)
    lr: float = 0.1
    near: dict[int, list[int]] = field(
        default_factory=lambda: {
            i: sorted({b for a, b in EDGES + [e[::-1] for e in EDGES] if a == i}) for i in range(5)
        }
    )

    def links(self) -> Topology:
        return make(EDGES, peers=5, seed=0)

    def star(self, round: int, seed: int = 0) -> int:
        return int(shared_stream(seed, "star", round).sample(1, 5))

    def seed_with_stars(self, *stars: int) -> int:
        """A seed whose first rounds have these stars."""
        return next(s for s in range(9999) if [self.star(t, s) for t in range(len(stars))] == list(stars))

    def simulation(
        self,
        algorithm: Algorithm[Any],
        seed: int = 0,
        topology: Topology | None = None,
        same: bool = False,
        network: nn.Module | None = None,
    ) -> Simulation:
        """Not yet played; all peers have different models unless `same`."""
        simulation = self.build(
            algorithm,
            topology or self.links(),
            sizes=self.sizes,
            training=Training(batch_size=1000, lr=self.lr, clip=0.0),
            network=network or linear(),
            seed=seed,
        )
        noise = np.random.default_rng(5)
        for value in simulation.blocks[0].state.params.values():
            value += 0.0 if same else torch.tensor(noise.normal(size=value.shape))
        self.federation = simulation.federation
        return simulation

    def models(self, simulation: Simulation) -> np.ndarray:
        """(peers, classes, features + 1)."""
        params = simulation.personal()
        return torch.cat((params["weight"], params["bias"][..., None]), -1).numpy().copy()

    def probabilities(self, model: np.ndarray, peer: int) -> np.ndarray:
        e = np.exp(self._samples(peer)[0] @ model.T)
        return e / e.sum(1, keepdims=True)

    def trained(self, model: np.ndarray, peer: int, steps: int, lr: float) -> np.ndarray:
        """After gradient steps on the mean cross-entropy of the peer's data."""
        x, y = self._samples(peer)
        for _ in range(steps):
            model = model - lr * (self.probabilities(model, peer) - y).T @ x / len(x)
        return model

    def _samples(self, peer: int) -> tuple[np.ndarray, np.ndarray]:
        index = self.federation.train.of(peer)
        x, y = self.federation.x[index].numpy(), self.federation.y[index].numpy()
        return np.c_[x, np.ones(len(x))], np.eye(CLASSES)[y]


def linear() -> nn.Linear:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Linear(FEATURES, CLASSES).double()


@pytest.fixture
def world(small_simulation: Callable[..., Simulation]) -> World:
    return World(small_simulation)
