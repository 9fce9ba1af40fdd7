"""Three different label skews that papers call "Dirichlet"; ask for the one that your paper used.

    dirichlet         each class is spread over the peers by Dir(a): unequal sizes (Wang et al., 2020,
                      FedMA; BlendDFL, KD-PDFL)
    dirichlet-prior   each peer draws its own label distribution from Dir(a): equal sizes (Dis-PFL, DFedPGP)
    dirichlet-blocks  `dirichlet` within blocks of ten peers, none below half its fair share (PENS, QGM)

The published loops may run for ever on small data; here every search has a limit.
"""

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
    require_samples,
)
from coterie.data.source import Source
from coterie.errors import ConfigError, DataError

_MOST_DRAWS = 1000
_DRAW_BUDGET = 20_000_000  # numbers drawn in one search: keeps large federations within seconds


def class_over_peers(stock: Ints, peers: int, a: float, rng: np.random.Generator) -> Ints:
    """(peers, classes): each class spread by Dir(a) over the peers that hold less than the fair share."""
    counts = np.zeros((peers, len(stock)), dtype=np.int64)
    held = np.zeros(peers, dtype=np.int64)
    for k in np.flatnonzero(stock):  # some peer has room as long as a sample is left
        room = np.flatnonzero(held * peers < stock.sum())
        # Zeroing the full peers of a Dirichlet draw and renormalising gives Dir(a) over the others. Drawing
        # that directly cannot leave a sum of zero, as it would when a tiny a puts all weight on full peers.
        reached = np.cumsum(rng.dirichlet(np.full(len(room), a)))
        # Rounding the running total, not the parts, hands out every sample once.
        counts[room, k] = np.diff(np.rint(reached / reached[-1] * stock[k]).astype(np.int64), prepend=0)
        held += counts[:, k]
    return counts


def spread_until(stock: Ints, peers: int, a: float, smallest: int, rng: np.random.Generator) -> Ints:
    """Repeat `class_over_peers` until every peer has `smallest` samples, or say how close it came."""
    draws = int(np.clip(_DRAW_BUDGET // max(1, peers * len(stock)), 10, _MOST_DRAWS))
    best = 0
    for _ in range(draws):
        counts = class_over_peers(stock, peers, a, rng)
        least = int(counts.sum(1).min())
        if least >= smallest:
            return counts
        best = max(best, least)
    raise DataError(
        f"in {draws} draws of Dir({a:g}) over {peers} peers the smallest peer never had {smallest} of "
        f"{int(stock.sum())} samples, at best {best}; use fewer peers, a larger a, or "
        + (
            f"dirichlet({a:g},min_size={best})"
            if best
            else f"dirichlet-prior({a:g}), which gives equal sizes"
        )
    )


@dataclass(frozen=True)
class Dirichlet(ByClass):
    """Each class spread over the peers by Dir(a); unequal sizes, none below min_size."""

    a: float
    min_size: int = 10

    def __post_init__(self) -> None:
        check_concentration(self.a)
        if self.min_size < 1:
            raise ConfigError(f"dirichlet: min_size must be at least 1, not {self.min_size}")

    def assign(self, source: Source, peers: int, rng: np.random.Generator) -> Assignment:
        require_samples(source, peers, self.min_size)
        counts = spread_until(class_stock(source), peers, self.a, self.min_size, rng)
        return Assignment(owners(source, counts, rng))


@dataclass(frozen=True)
class DirichletPrior(ByClass):
    """Each peer draws its label distribution from Dir(a); equal sizes."""

    a: float

    def __post_init__(self) -> None:
        check_concentration(self.a)

    def assign(self, source: Source, peers: int, rng: np.random.Generator) -> Assignment:
        require_samples(source, peers)
        stock = class_stock(source)
        prior = rng.dirichlet(np.full(len(stock), self.a), size=peers)
        counts = draw_from_stock(prior, even_sizes(len(source.y_train), peers), stock, rng)
        return Assignment(owners(source, counts, rng))


def draw_from_stock(prior: np.ndarray, sizes: Ints, stock: Ints, rng: np.random.Generator) -> Ints:
    """(peers, classes): sizes[i] draws from prior[i] without replacement from a common stock.

    All peers draw at once. Where a class is asked for more often than it exists, chance decides who
    is served; the others draw again from their prior over the classes with stock left, or from the
    stock itself if they gave those no weight. Each repetition empties a class, so there are few.
    """
    counts = np.zeros(prior.shape, dtype=np.int64)
    missing, left = sizes.copy(), stock.copy()
    while missing.any():
        wishes = prior * (left > 0)
        wishes = np.where(wishes.sum(1, keepdims=True) > 0.0, wishes, left)
        drawn = rng.multinomial(missing, wishes / wishes.sum(1, keepdims=True))
        for k in np.flatnonzero(drawn.sum(0) > left):
            drawn[:, k] = rng.multivariate_hypergeometric(drawn[:, k], int(left[k]), method="marginals")
        counts += drawn
        missing -= drawn.sum(1)
        left -= drawn.sum(0)
    return counts


@dataclass(frozen=True)
class DirichletBlocks(ByClass):
    """Each class spread by Dir(a) within blocks of ten peers; none below half its fair share."""

    a: float
    block: int = 10

    def __post_init__(self) -> None:
        check_concentration(self.a)
        if self.block < 1:
            raise ConfigError(f"dirichlet-blocks: block must be at least 1, not {self.block}")

    def assign(self, source: Source, peers: int, rng: np.random.Generator) -> Assignment:
        require_samples(source, peers)
        left = class_stock(source)
        fair = even_sizes(len(source.y_train), peers)
        counts = np.zeros((peers, len(left)), dtype=np.int64)
        for first in range(0, peers, self.block):
            members = slice(first, min(first + self.block, peers))
            n = int(fair[members].sum())
            part = rng.multivariate_hypergeometric(left, n, method="marginals")
            size = members.stop - first
            counts[members] = spread_until(part, size, self.a, max(1, n // (2 * size)), rng)
            left = left - part
        return Assignment(owners(source, counts, rng))
