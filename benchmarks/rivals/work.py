"""The work that everyone does, and how it is reported. Needs NumPy only.

Peers with random images, one local epoch of mini-batches in each round, then models are mixed: with both
neighbours of a ring, or with everyone where a library knows nothing else. Nothing is measured on test data.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

ASKED: dict[str, int] = json.loads(sys.argv[1]) if len(sys.argv) > 1 else {}
PEERS = ASKED.get("peers", 20)
SAMPLES = ASKED.get("samples", 300)
BATCH = ASKED.get("batch", 32)
ROUNDS = ASKED.get("rounds", 10)
INPUTS, HIDDEN, CLASSES, LR = 784, 128, 10, 0.05


def images() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """(peers, samples, inputs) and (peers, samples)."""
    rng = np.random.default_rng(0)
    x = rng.random((PEERS, SAMPLES, INPUTS), dtype=np.float32)
    return x, rng.integers(0, CLASSES, (PEERS, SAMPLES))


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
