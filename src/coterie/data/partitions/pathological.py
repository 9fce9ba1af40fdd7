"""Partitions in which a peer knows only a few classes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from coterie.data.partitions.partition import (
    Assignment,
    ByClass,
    Ints,
    check_concentration,
    class_stock,
    even_sizes,
    owners,
)
from coterie.data.source import Source
from coterie.errors import ConfigError, DataError

_MOST_PACKINGS = 200
_PAPER_SMALLEST, _PAPER_LARGEST = 1165 / 3000, 3834 / 3000  # of the fair share, 60,000 / 20


@dataclass(frozen=True)
class Pathological(ByClass):
    """c classes per peer: every class cut into equal shards, c shards of different classes each.

    The shard-based form (FedRep, FedBABU): disjoint, covers all samples, and test follows training.
    With fewer than classes / c peers some classes stay unused.
    """

    c: int

    def __post_init__(self) -> None:
        if self.c < 1:
            raise ConfigError(f"pathological: c must be at least 1, not {self.c}")

    def assign(self, source: Source, peers: int, rng: np.random.Generator) -> Assignment:
        stock = class_stock(source)
        present = np.flatnonzero(stock)
        if self.c > len(present):
            raise DataError(
                f"pathological({self.c}): the data have {len(present)} {source.groups.called}; use c <= "
                f"{len(present)}"
            )
        shards = np.zeros(len(stock), dtype=np.int64)
        shards[rng.permutation(present)] = even_sizes(peers * self.c, len(present))
        short = np.flatnonzero(shards > stock)
        if len(short):
            k, most = short[0], int(stock[present].min()) * len(present) // self.c
            raise DataError(
                f"pathological({self.c}) cuts class {source.group_names[k]} into {shards[k]} shards; it has "
                f"{stock[k]} samples; at most about {most} peers are possible"
            )
        chosen = deal_classes(shards, peers, self.c, rng)
        counts = np.zeros((peers, len(stock)), dtype=np.int64)
        for k in np.flatnonzero(shards):
            counts[chosen[:, k], k] = rng.permutation(even_sizes(int(stock[k]), int(shards[k])))
        return Assignment(owners(source, counts, rng))


def deal_classes(shards: Ints, peers: int, c: int, rng: np.random.Generator) -> np.ndarray:
    """(peers, classes) bool: c different classes for each peer, class k for shards[k] peers.

    Peer after peer draws at random by what is left, but takes every class that all peers still to
    come would have to take: that keeps a solution possible, so nothing is ever undone.
    """
    left = shards.copy()
    chosen = np.zeros((peers, len(shards)), dtype=bool)
    race = rng.exponential(size=chosen.shape)
    for peer in range(peers):
        arrival = np.where(left > 0, race[peer] / np.maximum(left, 1), np.inf)
        arrival[left == peers - peer] = -1.0
        picks = np.argpartition(arrival, c - 1)[:c]
        chosen[peer, picks] = True
        left[picks] -= 1
    return chosen


@dataclass(frozen=True)
class DigitPairs(ByClass):
    """Two classes per peer in proportions Dir(a); sizes evenly spaced from smallest to largest.

    The MNIST split of pFedKD-WCL (20 peers, 1,165 to 3,834 samples; other federations get sizes in
    proportion), but no sample goes to two peers, whereas the published code draws each peer's
    samples anew, so that one peer's test image could be another's training image.
    """

    a: float = 0.5
    smallest: int | None = None
    largest: int | None = None

    def __post_init__(self) -> None:
        check_concentration(self.a)

    def assign(self, source: Source, peers: int, rng: np.random.Generator) -> Assignment:
        stock = class_stock(source)
        if (stock > 0).sum() < 2:
            raise DataError("digit-pairs needs data with at least two classes")
        sizes = self._sizes(stock, peers)
        for _ in range(_MOST_PACKINGS):
            counts = pack_pairs(sizes, stock, self.a, rng)
            if counts is not None:
                return Assignment(owners(source, counts, rng))
        raise DataError(
            f"digit-pairs: {peers} peers with {sizes[0]} to {sizes[-1]} samples of two classes each "
            f"({int(sizes.sum())} of {int(stock.sum())} in all) did not fit in {_MOST_PACKINGS} attempts; "
            f"try smallest={max(2, sizes[0] * 3 // 4)}, largest={max(2, sizes[-1] * 3 // 4)}"
        )

    def _sizes(self, stock: Ints, peers: int) -> Ints:
        """The paper's sizes in proportion; with few peers no more than one class alone could fill."""
        n, rarest = int(stock.sum()), int(stock[stock > 0].min())
        fair = min(n / peers, rarest / _PAPER_LARGEST)
        smallest = round(fair * _PAPER_SMALLEST) if self.smallest is None else self.smallest
        largest = round(fair * _PAPER_LARGEST) if self.largest is None else self.largest
        if not 2 <= smallest <= largest:
            raise DataError(
                f"digit-pairs: sizes from {smallest} to {largest} are impossible, a peer needs two samples; "
                f"{n} samples suffice for at most about {int(n * _PAPER_SMALLEST / 2)} peers"
            )
        sizes = np.linspace(smallest, largest, peers).astype(np.int64)
        if sizes.sum() > n:
            raise DataError(
                f"digit-pairs: sizes from {smallest} to {largest} for {peers} peers need {int(sizes.sum())} "
                f"samples; there are {n}, enough for {2 * n // (smallest + largest)} peers of these sizes"
            )
        return sizes


def pack_pairs(sizes: Ints, stock: Ints, a: float, rng: np.random.Generator) -> Ints | None:
    """(peers, classes): the largest peers choose first, at random among the pairs that fit them.

    None when some peer finds no pair, even with its proportion drawn anew a few times.
    """
    left = stock.copy()
    counts = np.zeros((len(sizes), len(stock)), dtype=np.int64)
    different = ~np.eye(len(stock), dtype=bool)
    for peer in np.argsort(-sizes, kind="stable"):
        for _ in range(10):
            first = int(np.clip(round(float(rng.beta(a, a)) * sizes[peer]), 1, sizes[peer] - 1))
            second = int(sizes[peer]) - first
            fitting = np.argwhere((left >= first)[:, None] & (left >= second)[None, :] & different)
            if len(fitting):
                break
        else:
            return None
        one, other = fitting[rng.integers(len(fitting))]
        counts[peer, one], counts[peer, other] = first, second
        left[[one, other]] -= first, second
    return counts
