"""A small federation in float64, so that a NumPy computation can follow a round step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from coterie.data import from_peers
from coterie.learning import Executor, Workers
from coterie.protocol import Algorithm
from coterie.randomness import numpy_generator
from coterie.simulation import Simulation
from coterie.topology import Topology, make
from coterie.training import Training

FEATURES, HIDDEN, CLASSES = 3, 4, 2
FULL_BATCH = Training(epochs=1, batch_size=1000, lr=0.1, clip=0.0)  # one epoch is one exact gradient step


def tiny_network(dtype: torch.dtype = torch.float64) -> nn.Sequential:
    """Body `0` (4 x 3), tanh, head `2` (2 x 4)."""
    with torch.random.fork_rng():
        torch.manual_seed(4)
        return nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, CLASSES)).to(dtype)


@pytest.fixture(scope="module")
def small_simulation() -> Iterator[Callable[..., Simulation]]:
    """small_simulation(algorithm, topology, sizes=..., ...): a Simulation, not yet played."""
    with Workers(1) as workers:

        def build(
            algorithm: Algorithm[Any],
            topology: str | Topology | Any = "ring",
            sizes: tuple[int, ...] = (4, 7, 5, 6, 3, 8),
            training: Training = FULL_BATCH,
            network: nn.Module | None = None,
            seed: int = 1,
            validation: int = 0,
            **more: Any,
        ) -> Simulation:
            rng = numpy_generator(6, "tiny data")
            datasets = []
            for size in sizes:
                parts = {}
                held = [("validation", validation)] if validation else []
                for part, n in (("train", size), ("test", 5), *held):
                    y = rng.integers(0, CLASSES, n)
                    parts[part] = (rng.normal(size=(n, FEATURES)) + y[:, None], y)
                datasets.append(parts)
            federation = from_peers(datasets, n_classes=CLASSES)
            net = tiny_network() if network is None else network
            dtype = next(net.parameters()).dtype
            object.__setattr__(federation, "x", federation.x.to(dtype))
            made = topology if isinstance(topology, Topology) else make(topology, peers=len(sizes), seed=2)
            return Simulation(
                algorithm=algorithm,
                federation=federation,
                module=net,
                topology=made,
                training=training,
                executor=Executor("stacked", net, workers),
                seed=seed,
                rounds=more.pop("rounds", 10),
                **more,
            )

        yield build
