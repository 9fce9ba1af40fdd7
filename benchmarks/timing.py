"""Timing, and the table that a benchmark prints."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """Two times of one run; the ratio is what counts."""

    what: str
    seconds: float
    other: float
    wanted: float | None  # None: for information
    at_least: bool

    @property
    def ratio(self) -> float:
        return self.seconds / self.other

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


def by_turns(*measures: Callable[[], float], turns: int = 3) -> list[float]:
    """The best of several turns of each, taken by turns: a disturbance of the machine hits all alike."""
    taken = [[measure() for measure in measures] for _ in range(turns)]
    return [min(times) for times in zip(*taken, strict=True)]


def best_seconds(work: Callable[[], object], repeats: int = 2) -> float:
    """The fastest of several repeats after a warm-up: the least disturbed one."""
    work()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)
