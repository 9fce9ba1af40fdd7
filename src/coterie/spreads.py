"""Values of very many peers: which peers are listed, and how the values of all are spread.

Up to `MOST_LISTED` peers everyone has lines of their own in records, results and pictures. Of more, so many
evenly spaced ones have, and quantiles say the rest. Needs no PyTorch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

MOST_LISTED = 5000
SAMPLE = 1000
QUANTILES = {
    "min": 0.0,
    "q01": 0.01,
    "q05": 0.05,
    "q10": 0.1,
    "q25": 0.25,
    "median": 0.5,
    "q75": 0.75,
    "q90": 0.9,
    "q95": 0.95,
    "q99": 0.99,
    "max": 1.0,
}
MOMENTS = ("mean", "std", "lowest_tenth", "highest_tenth")
COLUMNS = ("measured", *MOMENTS, *QUANTILES)


def evenly(peers: int, most: int = SAMPLE) -> NDArray[np.int64]:
    """All peers, or so many evenly spaced ones."""
    if peers <= most:
        return np.arange(peers)
    return np.linspace(0, peers - 1, most).astype(np.int64)


def listed(peers: int) -> NDArray[np.int64] | None:
    """The peers that have lines of their own; None: everyone has."""
    return None if peers <= MOST_LISTED else evenly(peers)


@dataclass(frozen=True)
class Spread:
    """How the values of all peers are spread at one moment."""

    measured: int  # peers whose value is known
    mean: float
    std: float
    lowest_tenth: float  # mean of the lowest tenth of them, at least one
    highest_tenth: float
    quantiles: tuple[float, ...]  # of QUANTILES

    @classmethod
    def of(cls, values: Any) -> Spread | None:
        """Of an array or a tensor, NaN where a value is not known; None if none is."""
        known = np.asarray(values, dtype=np.float64)
        known = np.sort(known[~np.isnan(known)])
        if not len(known):
            return None
        tenth = math.ceil(len(known) / 10)
        return cls(
            len(known),
            float(known.mean()),
            float(known.std()),
            float(known[:tenth].mean()),
            float(known[-tenth:].mean()),
            tuple(float(value) for value in np.quantile(known, list(QUANTILES.values()))),
        )

    @classmethod
    def read(cls, line: Mapping[str, str]) -> Spread:
        """From a line of a table with the columns COLUMNS."""
        numbers = (float(line[name]) for name in (*MOMENTS, *QUANTILES))
        mean, std, lowest, highest, *quantiles = numbers
        return cls(int(line["measured"]), mean, std, lowest, highest, tuple(quantiles))

    def line(self) -> list[object]:
        """The values of COLUMNS."""
        return [self.measured, self.mean, self.std, self.lowest_tenth, self.highest_tenth, *self.quantiles]

    def named_quantiles(self) -> dict[str, float]:
        return dict(zip(QUANTILES, self.quantiles, strict=True))
