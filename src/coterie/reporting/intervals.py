"""Means over seeds with Student's confidence intervals. Plain Python: whole degrees need no SciPy."""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Interval:
    """The mean of some numbers, and where the true mean lies with the given confidence."""

    mean: float
    std: float | None  # of a sample: n - 1 in the denominator; None for a single number
    low: float | None
    high: float | None
    n: int

    def holds(self, value: float) -> bool:
        """Whether the true mean may be this value."""
        return self.low is not None and self.high is not None and self.low <= value <= self.high


def interval(values: Sequence[float], confidence: float = 0.95) -> Interval | None:
    """None if there are no numbers."""
    if not values:
        return None
    mean, n = statistics.fmean(values), len(values)
    if n == 1:
        return Interval(mean, None, None, None, 1)
    std = statistics.stdev(values)
    half = student_quantile(confidence, n - 1) * std / math.sqrt(n)
    return Interval(mean, std, mean - half, mean + half, n)


@functools.cache
def student_quantile(confidence: float, degrees: int) -> float:
    """The t with P(|T| <= t) = confidence, by bisection."""
    low, high = 0.0, 1.0
    while _within(high, degrees) < confidence:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, degrees) < confidence else (low, middle)
    return (low + high) / 2


def _within(t: float, degrees: int) -> float:
    """P(|T| <= t), the finite sums for whole degrees of freedom (Abramowitz and Stegun 26.7.3 and 26.7.4)."""
    angle = math.atan(t / math.sqrt(degrees))
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = degrees % 2
    term = total = cosine if odd else 1.0
    for k in range(2 if odd else 1, degrees - 1, 2):
        term *= cosine**2 * k / (k + 1)
        total += term
    if not odd:
        return sine * total
    return 2 / math.pi * (angle + (sine * total if degrees > 1 else 0.0))
