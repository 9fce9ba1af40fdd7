"""Synthetic(alpha, beta) of Li et al., 2020 (FedProx), in the sizes of pFedMe and pFedKD-WCL.

Per peer: u ~ N(0, alpha) and B ~ N(0, beta), both used as standard deviations as in all published
generators; v[d] ~ N(B, 1); x ~ N(v, diag(d^-1.2)); W[d, c], b[c] ~ N(u, 1); y = argmax(x W + b).
A peer's data depend only on the seed and its number, not on how many peers there are. They are computed for
many peers at once, and for any of their samples: beyond `MOST_HELD` bytes nobody holds them all.

Because x stays near v, always answering a peer's most frequent class is right for about four samples
in five: compare results with that floor.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from coterie.data.federation import Federation, Made, Stretch
from coterie.data.partitions.partition import Ints
from coterie.data.source import Source
from coterie.data.splitting import training_sizes
from coterie.errors import ConfigError
from coterie.randomness import normals, numpy_generator, stream

DIMENSIONS = 60
CLASSES = 10
MOST_HELD = 1 << 30  # bytes of samples up to which all are made once and kept
_DEVIATION = torch.arange(1, DIMENSIONS + 1, dtype=torch.float64).pow(-0.6).float()  # root of d^-1.2
_TASK_NUMBERS = 2 + DIMENSIONS + CLASSES * (DIMENSIONS + 1)  # u, B, v, W, b
_SAMPLE_BYTES = 4 * DIMENSIONS + 8
# Samples are made in pieces of so many of one peer, and so many pieces at once, which stay in cache.
_PIECE, _PIECES = 40, 128


class Tasks(NamedTuple):
    """What decides the samples of some peers: the centres of their features and their classifiers."""

    centre: Tensor  # (peers, 60)
    weight: Tensor  # (peers, 60, 10)
    bias: Tensor  # (peers, 10)


@dataclass(frozen=True)
class Generator:
    """Makes the samples of any peers; implements `coterie.data.federation.Maker`.

    clusters: peers whose numbers leave the same rest have the same task; 0: everyone has a task of their own.
    """

    alpha: float
    beta: float
    seed: int
    clusters: int = 0

    def tasks(self, peers: Tensor) -> Tasks:
        """The tasks of some peers."""
        drawn = self._drawn(peers, _TASK_NUMBERS)
        model = drawn[:, 2 + DIMENSIONS :].add_(self.alpha * drawn[:, :1])
        weight, bias = model.split((CLASSES * DIMENSIONS, CLASSES), dim=1)
        return Tasks(self._centred(drawn), weight.unflatten(1, (DIMENSIONS, CLASSES)), bias)

    def make(self, peers: Tensor, first: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
        """x (total, 60) and y (total,): those of one peer after the other's."""
        x = self.inputs(peers, first, count)
        y = torch.empty(len(x), dtype=torch.long)
        for some in _pieces(count):
            own, task = some.owner.unique_consecutive(return_inverse=True)
            tasks = self.tasks(peers[own])
            weight, bias = tasks.weight[task].double(), tasks.bias[task][:, None].double()
            # In double precision no rounding decides between classes, whoever's samples are made together.
            y[some.place] = some.cut(torch.baddbmm(bias, some.padded(x).double(), weight).argmax(2))
        return x, y

    def inputs(self, peers: Tensor, first: Tensor, count: Tensor) -> Tensor:
        """x alone, which takes a third of the time: it needs no classifiers, and nothing is classified."""
        x = torch.empty(int(count.sum()), DIMENSIONS)
        keys = stream(self.seed, "synthetic-samples", 0, peers).keys()
        centres = self._centred(self._drawn(peers, 2 + DIMENSIONS))
        for some in _pieces(count):
            start = (first[some.owner] + some.start) * DIMENSIONS
            drawn = normals(keys[some.owner.numpy()], start.numpy(), some.n * DIMENSIONS)
            made = drawn.view(-1, some.n, DIMENSIONS).mul_(_DEVIATION).add_(centres[some.owner][:, None])
            x[some.place] = some.cut(made)
        return x

    def _drawn(self, peers: Tensor, n: int) -> Tensor:
        """(peers, n) the first numbers of those that decide the tasks: u, B, v, W and b."""
        owners = peers % self.clusters if self.clusters else peers
        keys = stream(self.seed, "synthetic", 0, owners).keys()
        return normals(keys, np.zeros(len(keys), dtype=np.int64), n)

    def _centred(self, drawn: Tensor) -> Tensor:
        """(peers, 60) the centres of everyone's features."""
        return drawn[:, 2 : 2 + DIMENSIONS] + self.beta * drawn[:, 1:2]


@dataclass(frozen=True)
class _Pieces:
    """A few samples of each of some peers, which are made together."""

    owner: Tensor  # (pieces,) whose each piece is
    start: Tensor  # (pieces,) how many of its owner's samples come before
    n: int  # samples of a piece
    present: Tensor | None  # (pieces, n) bool, where the last one of a peer is shorter
    place: slice  # of these samples among all

    def cut(self, padded: Tensor) -> Tensor:
        """(samples, ...) out of (pieces, n, ...)."""
        return padded.flatten(0, 1) if self.present is None else padded[self.present]

    def padded(self, x: Tensor) -> Tensor:
        """(pieces, n, 60) out of x (total, 60)."""
        if self.present is None:
            return x[self.place].view(len(self.owner), self.n, -1)
        found = x.new_zeros(*self.present.shape, x.shape[1])
        found[self.present] = x[self.place]
        return found


def _pieces(count: Tensor) -> Iterator[_Pieces]:
    """All samples of peers with so many each, one peer after the other, many pieces at a time."""
    n = min(_PIECE, int(count.max())) if len(count) else 0
    parts = -(-count // max(1, n))
    owner = torch.repeat_interleave(torch.arange(len(count)), parts)
    start = (torch.arange(len(owner)) - (parts.cumsum(0) - parts)[owner]) * n
    sizes = (count[owner] - start).clamp(max=n)
    present = None if bool((sizes == n).all()) else torch.arange(n) < sizes[:, None]
    done = 0
    for first in range(0, len(owner), _PIECES):
        some = slice(first, first + _PIECES)
        place = slice(done, done := done + int(sizes[some].sum()))
        yield _Pieces(owner[some], start[some], n, None if present is None else present[some], place)


@dataclass(frozen=True)
class Synthetic:
    """Synthetic(alpha, beta): 60 features, 10 classes, every peer with a task of its own.

    Sizes are 5 * (int(lognormal(4, 2)) + 50), at most `cap` because the tail is heavy; `size` gives
    every peer equally many. The fraction `test` of each peer's samples is for testing. With `clusters`,
    peers of the same cluster have the same task.
    """

    default_model: ClassVar[str] = "mlr"
    default_partition: ClassVar[str] = "natural"
    needs_files: ClassVar[bool] = False

    alpha: float = 0.5
    beta: float = 0.5
    cap: int = 4000
    size: int | None = None
    test: float = 0.25
    clusters: int = 0

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
        if self.clusters < 0:
            raise ConfigError(f"synthetic: clusters must be 0 or more, not {self.clusters}")

    def sizes(self, peers: int, seed: int) -> Ints:
        """(peers,) number of samples of each peer."""
        if self.size is not None:
            return np.full(peers, self.size, dtype=np.int64)
        drawn = numpy_generator(seed, "synthetic-sizes").lognormal(4.0, 2.0, peers)
        return np.minimum((drawn.astype(np.int64) + 50) * 5, self.cap)

    def total_bytes(self, peers: int, seed: int) -> int:
        return int(self.sizes(peers, seed).sum()) * _SAMPLE_BYTES

    def generator(self, seed: int) -> Generator:
        return Generator(self.alpha, self.beta, seed, self.clusters)

    def deal(
        self,
        peers: int,
        seed: int,
        *,
        validation: float = 0.0,
        samples_per_peer: int | None = None,
        test_samples_per_peer: int | None = None,
    ) -> Federation:
        """Everyone's data: of each peer's samples the first are for training, then come validation and test.

        Samples are drawn independently, so that the first ones are as good as any.
        """
        n_train, n_test = self._cut(peers, seed)
        wanted = n_train if samples_per_peer is None else n_train.clamp(max=samples_per_peer)
        trained = wanted
        if validation > 0.0:
            trained = torch.from_numpy(training_sizes(wanted.numpy(), validation))
        tested = n_test if test_samples_per_peer is None else n_test.clamp(max=test_samples_per_peer)
        made = Federation(
            x=torch.empty(0, DIMENSIONS),
            y=torch.empty(0, dtype=torch.long),
            train=Stretch.after(torch.zeros_like(trained), trained),
            validation=Stretch.after(trained, wanted - trained),
            test=Stretch.after(n_train, tested),
            common_test=None,
            n_classes=CLASSES,
            class_names=tuple(map(str, range(CLASSES))),
            clusters=torch.arange(peers) % self.clusters if self.clusters else None,
            made=Made(self.generator(seed), torch.arange(peers)),
        )
        parts = (made.train, made.validation, made.test)
        return made.kept() if sum(part.total for part in parts) * _SAMPLE_BYTES <= MOST_HELD else made

    def load(self, data_dir: Path | None, peers: int, seed: int) -> Source:
        n_train, n_test = self._cut(peers, seed)
        make, owner = self.generator(seed).make, torch.arange(peers)
        x_train, y_train = make(owner, torch.zeros_like(n_train), n_train)
        x_test, y_test = make(owner, n_train, n_test)
        number = tuple(owner.repeat_interleave(n).numpy() for n in (n_train, n_test))
        return Source(
            x_train,
            y_train,
            x_test,
            y_test,
            n_classes=CLASSES,
            columns={"peer": (number[0], number[1])},
            own_tasks=True,
        )

    def _cut(self, peers: int, seed: int) -> tuple[Tensor, Tensor]:
        """(peers,) samples for training, and for testing."""
        sizes = self.sizes(peers, seed)
        n_test = np.clip(np.rint(self.test * sizes), 1, sizes - 1).astype(np.int64)
        return torch.from_numpy(sizes - n_test), torch.from_numpy(n_test)
