"""Synthetic(alpha, beta) of Li et al., 2020 (FedProx), in the sizes of pFedMe and pFedKD-WCL.

Per peer: u ~ N(0, alpha) and B ~ N(0, beta), both used as standard deviations as in all published
generators; v[d] ~ N(B, 1); x ~ N(v, diag(d^-1.2)); W[d, c], b[c] ~ N(u, 1); y = argmax(x W + b).
A peer's data depend only on the seed and its number, not on how many peers there are.

Because x stays near v, always answering a peer's most frequent class is right for about four samples
in five: compare results with that floor.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from coterie.data.partitions.partition import Ints
from coterie.data.source import Source
from coterie.errors import ConfigError
from coterie.randomness import numpy_generator

DIMENSIONS = 60
CLASSES = 10
_DEVIATION = (np.arange(1, DIMENSIONS + 1) ** -0.6).astype(np.float32)  # square root of d^-1.2


class PeerTask(NamedTuple):
    """One peer's samples and the linear classifier that labelled them."""

    x: NDArray[np.float32]  # (size, 60)
    y: Ints  # (size,)
    weight: NDArray[np.float32]  # (60, 10)
    bias: NDArray[np.float32]  # (10,)


def peer_task(alpha: float, beta: float, size: int, seed: int, peer: int) -> PeerTask:
    """Draw the task and `size` samples of one peer."""
    rng = numpy_generator(seed, "synthetic", peer)
    model_mean, feature_mean = np.float32(rng.normal(0.0, alpha)), np.float32(rng.normal(0.0, beta))
    noise = rng.standard_normal((size + CLASSES + 1, DIMENSIONS), dtype=np.float32)
    centre = noise[0] + feature_mean
    weight = noise[1 : CLASSES + 1].T + model_mean
    bias = rng.standard_normal(CLASSES, dtype=np.float32) + model_mean
    x = noise[CLASSES + 1 :] * _DEVIATION + centre
    return PeerTask(x, np.argmax(x @ weight + bias, axis=1), weight, bias)


@dataclass(frozen=True)
class Synthetic:
    """Synthetic(alpha, beta): 60 features, 10 classes, every peer with a task of its own.

    Sizes are 5 * (int(lognormal(4, 2)) + 50), at most `cap` because the tail is heavy; `size` gives
    every peer equally many. The fraction `test` of each peer's samples is for testing.
    """

    default_model: ClassVar[str] = "mlr"
    default_partition: ClassVar[str] = "natural"
    needs_files: ClassVar[bool] = False

    alpha: float = 0.5
    beta: float = 0.5
    cap: int = 4000
    size: int | None = None
    test: float = 0.25

    def __post_init__(self) -> None:
        for name in ("alpha", "beta"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) >= 0.0):
                raise ConfigError(f"synthetic: {name} must be 0 or more, not {getattr(self, name)}")
        if not 0.0 < self.test < 1.0:
            raise ConfigError(f"synthetic: test must lie between 0 and 1, not {self.test}")
        if min(self.cap, self.cap if self.size is None else self.size) < 2:
            raise ConfigError(
                "synthetic: cap and size must be at least 2, one sample to train and one to test"
            )

    def sizes(self, peers: int, seed: int) -> Ints:
        """(peers,) number of samples of each peer."""
        if self.size is not None:
            return np.full(peers, self.size, dtype=np.int64)
        drawn = numpy_generator(seed, "synthetic-sizes").lognormal(4.0, 2.0, peers)
        return np.minimum((drawn.astype(np.int64) + 50) * 5, self.cap)

    def load(self, data_dir: Path | None, peers: int, seed: int) -> Source:
        sizes = self.sizes(peers, seed)
        n_test = np.clip(np.rint(self.test * sizes), 1, sizes - 1).astype(np.int64)
        ends = np.cumsum(sizes - n_test), np.cumsum(n_test)
        x = [np.empty((end[-1], DIMENSIONS), dtype=np.float32) for end in ends]
        y = [np.empty(end[-1], dtype=np.int64) for end in ends]
        for peer in range(peers):
            task = peer_task(self.alpha, self.beta, int(sizes[peer]), seed, peer)
            cut = int(sizes[peer] - n_test[peer])
            for part, rows in enumerate((slice(0, cut), slice(cut, None))):
                stop = int(ends[part][peer])
                start = stop - len(task.y[rows])
                x[part][start:stop], y[part][start:stop] = task.x[rows], task.y[rows]
        owner = np.arange(peers)
        return Source(
            torch.from_numpy(x[0]),
            torch.from_numpy(y[0]),
            torch.from_numpy(x[1]),
            torch.from_numpy(y[1]),
            n_classes=CLASSES,
            columns={"peer": (np.repeat(owner, sizes - n_test), np.repeat(owner, n_test))},
            own_tasks=True,
        )
