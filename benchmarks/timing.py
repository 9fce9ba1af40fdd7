"""Timing, and the table that a benchmark prints."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any


class Turns(float):
    """The median of several turns, which remembers all of them."""

    turns: tuple[float, ...]

    @classmethod
    def of(cls, turns: list[float]) -> Turns:
        middle = cls(median(turns))
        middle.turns = tuple(turns)
        return middle


@dataclass(frozen=True)
class Row:
    """Two times of one run; the ratio is what counts.

    limit: what this machine could do at best, and by what; "" if nobody has worked it out.
    """

    what: str
    seconds: float
    other: float
    wanted: float | None  # None: for information
    at_least: bool
    limit: str = ""

    @property
    def ratio(self) -> float:
        """The median of the turns, as `compare` takes it: the best of each side need not have met."""
        return median(self.ratios)

    @property
    def ratios(self) -> list[float]:
        """Of every turn, where both were measured by turns; else the one that there is."""
        if isinstance(self.seconds, Turns) and isinstance(self.other, Turns):
            return [a / b for a, b in zip(self.seconds.turns, self.other.turns, strict=True)]
        return [self.seconds / self.other]

    @property
    def verdict(self) -> str:
        if self.wanted is None:
            return ""
        good = self.ratio >= self.wanted if self.at_least else self.ratio <= self.wanted
        return "yes" if good else "NO"

    @property
    def target(self) -> str:
        if self.wanted is None:
            return ""
        return f"{'>=' if self.at_least else '<='} {self.wanted:g}"

    def entry(self) -> dict[str, Any]:
        """As JSON."""
        better = None if self.wanted is None else ("higher" if self.at_least else "lower")
        return {"what": self.what, "ratio": self.ratio, "ratios": self.ratios, "better": better}


def by_turns(*measures: Callable[[], float], turns: int = 3) -> list[Turns]:
    """The median of several turns of each, taken by turns: a disturbance of the machine hits all alike."""
    taken = [[measure() for measure in measures] for _ in range(turns)]
    return [Turns.of(list(times)) for times in zip(*taken, strict=True)]


def best_seconds(work: Callable[[], object], repeats: int = 2) -> float:
    """The fastest of several repeats after a warm-up: the least disturbed one."""
    work()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)
