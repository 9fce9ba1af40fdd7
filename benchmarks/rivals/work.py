"""The work that everyone does, and how it is reported. Needs NumPy only.

Peers with random images, one local epoch of mini-batches in each round, then models are mixed: with both
neighbours of a ring, or with everyone where a library knows nothing else. Nothing is measured on test data.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Processes that a rival starts have other arguments, but the same environment.
ASKED: dict[str, Any] = json.loads(os.environ.get("BENCHMARK_ASKED", "{}"))
MODEL: str = ASKED.get("model", "mlp")  # or cnn
PEERS = ASKED.get("peers", 20)
SAMPLES = ASKED.get("samples", 300)
BATCH = ASKED.get("batch", 32)
ROUNDS = ASKED.get("rounds", 10)
INPUTS, HIDDEN, CLASSES, LR = 784, 128, 10, 0.05
SHAPES = {"mlp": (INPUTS,), "cnn": (1, 28, 28)}
CHANNELS = (
    16,
    32,
)  # of the two convolutions of 3 x 3, each followed by ReLU and a pool of 2 x 2; then one layer


def images() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """(peers, samples, ...) and (peers, samples); vectors for the MLP, (1, 28, 28) for the CNN."""
    rng = np.random.default_rng(0)
    x = rng.random((PEERS, SAMPLES, *SHAPES[MODEL]), dtype=np.float32)
    return x, rng.integers(0, CLASSES, (PEERS, SAMPLES))


def torch_network(model: str = MODEL) -> Any:
    """For those who use PyTorch."""
    from torch import nn

    if model == "mlp":
        return nn.Sequential(nn.Linear(INPUTS, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES))
    first, second = CHANNELS
    return nn.Sequential(
        *(nn.Conv2d(1, first, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(first, second, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(second * 49, CLASSES)),
    )


class Clock:
    """Tells the driver when each round had ended, by the clock that all processes of a machine share."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def tick(self) -> None:
        self.ends.append(time.monotonic())

    def report(self) -> None:
        print(json.dumps({"ends": self.ends}), flush=True)


def timed(step: Callable[[], object]) -> None:
    """Do all rounds, and report."""
    clock = Clock()
    for _ in range(ROUNDS):
        step()
        clock.tick()
    clock.report()
