"""What a partition is: a rule that says which peer gets which training sample.

The result has one owner per sample, so no sample can go to two peers. Most rules only decide how
many samples of each class each peer gets, a (peers, classes) matrix; `owners` turns it into samples.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from coterie.data.source import Source
from coterie.errors import ConfigError, DataError

Ints = NDArray[np.int64]

NOBODY = -1


@dataclass(frozen=True)
class Assignment:
    """Who gets which sample. Without `test_owner`, test data follow each peer's training labels."""

    owner: Ints  # (n_train,) peer, or NOBODY
    test_owner: Ints | None = None  # (n_test,)
    clusters: Ints | None = None  # (peers,)
    degrees: NDArray[np.float64] | None = None  # (peers,) by how much each peer's images are turned
    common_test: bool = True  # can one test set be fair to all peers?
    names: tuple[str, ...] = ()  # of the peers, where the data name them


class Partition(Protocol):
    """A frozen dataclass of parameters; `assign` is a pure function of its arguments."""

    def assign(self, source: Source, peers: int, rng: np.random.Generator) -> Assignment: ...


class ByClass:
    """A partition that deals samples out by their classes, labels or bins of numbers."""


def refuse_sequences(partition: Partition, shown: object, source: Source) -> None:
    """A partition by class says nothing of sequences, which have a target at each position."""
    if isinstance(partition, ByClass) and source.targets == "tokens":
        raise ConfigError(
            f"partition {_name(shown)} deals samples out by their classes, and sequences with a target at "
            "each position have none; use iid or natural, or give each peer its own data"
        )


def require_partition(found: Any, shown: str = "") -> None:
    """Refuse what deals out nothing: an object, or, with its name, what a user's file defines."""
    if shown and inspect.isroutine(found):  # seen by what it returns
        return
    if not callable(getattr(found, "assign", None)):
        raise ConfigError(
            f"{shown or repr(found)} is no partition: that is a name such as iid or dirichlet(0.3), or has a "
            "method assign(source, peers, rng) that returns a coterie.data.Assignment"
        )


_LARGEST_CONCENTRATION = 1e100  # equal shares long before; the sum of larger ones overflows


def check_concentration(a: float) -> None:
    """Refuse a Dirichlet distribution that cannot be drawn from."""
    if not 0.0 < a <= _LARGEST_CONCENTRATION:
        raise ConfigError(
            f"the Dirichlet concentration must be above 0 and at most {_LARGEST_CONCENTRATION:g}, not {a}"
        )


def checked(assignment: Any, partition: object, source: Source, peers: int) -> Assignment:
    """What a partition's `assign` returned, which may be the user's own code."""
    name = _name(partition)
    if not isinstance(assignment, Assignment):
        raise ConfigError(
            f"partition {name}: `assign` must return a coterie.data.Assignment, "
            f"not {type(assignment).__name__}"
        )
    for key, size, kind, least, most in (
        ("owner", len(source.y_train), np.integer, NOBODY, peers - 1),
        ("test_owner", len(source.y_test), np.integer, NOBODY, peers - 1),
        ("clusters", peers, np.integer, 0, 2**31 - 1),
        ("degrees", peers, np.number, -360, 360),
    ):
        values = getattr(assignment, key)
        if values is None and key != "owner":
            continue
        if not isinstance(values, np.ndarray) or not np.issubdtype(values.dtype, kind):
            found = getattr(values, "dtype", type(values).__name__)
            raise ConfigError(
                f"partition {name}: {key} must be a NumPy array of {kind.__name__}, not {found}"
            )
        if values.shape != (size,):
            raise ConfigError(f"partition {name}: {key} must have shape ({size},), not {values.shape}")
        if size and not least <= values.min() <= values.max() <= most:
            raise ConfigError(
                f"partition {name}: {key} must lie from {least} to {most}, not from {values.min()} to "
                f"{values.max()}"
            )
    return assignment


def _name(partition: object) -> str:
    """As the user wrote it, or its class."""
    return repr(partition) if isinstance(partition, str) else type(partition).__name__


def class_stock(source: Source) -> Ints:
    """(classes,) number of training samples of each class."""
    return np.bincount(source.group_train, minlength=source.groups.count).astype(np.int64)


def require_samples(source: Source, peers: int, each: int = 1) -> None:
    """Refuse more peers than there are training samples for."""
    n = len(source.y_train)
    if n < peers * each:
        possible = f"at most {n // each} peers" if n >= each else "no peers at all"
        raise DataError(
            f"{n} training samples cannot give {peers} peers {each} each; they suffice for {possible}"
        )


def runs(counts: Ints) -> Ints:
    """0, 1, ..., counts[0] - 1, 0, 1, ..., counts[1] - 1, and so on."""
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)


def by_class(labels: Ints, rng: np.random.Generator) -> Ints:
    """All samples, grouped by class, in random order within a class."""
    shuffled = rng.permutation(len(labels))
    return shuffled[np.argsort(labels[shuffled], kind="stable")]


def owners(source: Source, counts: Ints, rng: np.random.Generator) -> Ints:
    """Give peer i counts[i, k] random samples of class k; what is left belongs to nobody."""
    labels = source.group_train
    taken, stock = counts.sum(0), class_stock(source)
    owner = np.full(len(labels), NOBODY, dtype=np.int64)
    positions = runs(taken) + np.repeat(np.cumsum(stock) - stock, taken)
    who = np.tile(np.arange(len(counts)), counts.shape[1])
    owner[by_class(labels, rng)[positions]] = np.repeat(who, counts.T.ravel())
    return owner


def even_sizes(n: int, peers: int) -> Ints:
    """n as a sum of `peers` numbers that differ by at most one."""
    return np.full(peers, n // peers, dtype=np.int64) + (np.arange(peers) < n % peers)


def proportional_sizes(weights: NDArray[np.float64], peers: int) -> Ints:
    """`peers` shared out by weight: largest remainders, and at least one for everybody."""
    groups = len(weights)
    if peers < groups:
        raise DataError(f"{groups} clusters need at least {groups} peers, not {peers}")
    quota = weights / weights.sum() * peers
    sizes: Ints = np.floor(quota).astype(np.int64)
    order = np.argsort(sizes - quota, kind="stable")
    sizes[order[: peers - sizes.sum()]] += 1
    while (sizes == 0).any():  # each pass fills one empty cluster from the largest
        sizes[np.argmax(sizes)] -= 1
        sizes[np.argmin(sizes)] += 1
    return sizes
