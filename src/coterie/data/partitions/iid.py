"""Partitions that need no skew: at random, or by a column that the data bring along."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from coterie.data.partitions.partition import NOBODY, Assignment, Ints, even_sizes, require_samples
from coterie.data.source import Source
from coterie.errors import ConfigError, DataError
from coterie.registry import nearest


def shuffle_evenly(source: Source, peers: int, rng: np.random.Generator) -> Ints:
    """Deal all samples at random; sizes differ by at most one."""
    require_samples(source, peers)
    n = len(source.y_train)
    owner = np.empty(n, dtype=np.int64)
    owner[rng.permutation(n)] = np.repeat(np.arange(peers), even_sizes(n, peers))
    return owner


@dataclass(frozen=True)
class Iid:
    """Samples dealt at random, equal sizes."""

    def assign(self, source: Source, peers: int, rng: np.random.Generator) -> Assignment:
        return Assignment(shuffle_evenly(source, peers, rng))


@dataclass(frozen=True)
class Natural:
    """One peer for each distinct value of a column of the data."""

    column: str = ""

    def assign(self, source: Source, peers: int, rng: np.random.Generator) -> Assignment:
        train, test = source.columns[self._column(source)]
        values, owner = np.unique(train, return_inverse=True)
        if len(values) != peers:
            raise DataError(
                f"column {self._column(source)!r} has {len(values)} distinct values, and natural makes one "
                f"peer of each; set peers to {len(values)} instead of {peers}"
            )
        position = np.minimum(np.searchsorted(values, test), len(values) - 1)
        test_owner = np.where(values[position] == test, position, NOBODY)
        without = np.setdiff1d(np.arange(peers), test_owner)
        if len(without):
            raise DataError(
                f"{len(without)} of {peers} values of column {self._column(source)!r} have no test sample, "
                f"the first is {values[without[0]]!r}; add test samples or leave such values out"
            )
        numbered = np.issubdtype(values.dtype, np.integer) and np.array_equal(values, np.arange(peers))
        names = () if numbered else tuple(map(str, values.tolist()))
        return Assignment(owner.astype(np.int64), test_owner.astype(np.int64), common_test=False, names=names)

    def _column(self, source: Source) -> str:
        if self.column in source.other_columns:
            raise ConfigError(
                f"natural: the column {self.column!r} was not kept to split by; write "
                f"natural={self.column} in the data's arguments: huggingface(...,natural={self.column})"
            )
        if not source.columns and source.other_columns:
            raise ConfigError(
                "natural needs a column to split by; write natural=<one of "
                f"{', '.join(source.other_columns)}> in the data's arguments"
            )
        if not source.columns:
            raise ConfigError("natural needs data with a column to split by, and this data set has none")
        if not self.column and len(source.columns) == 1:
            return next(iter(source.columns))
        if self.column not in source.columns:
            hint = nearest(self.column, source.columns)
            raise ConfigError(f"natural: the data have no column {self.column!r}; {hint}")
        return self.column
