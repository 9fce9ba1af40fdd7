"""A metric: what it is called, which way is better, and how people read it. Needs no PyTorch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Metric:
    """One of a task's metrics. The first of them is the main one, which tables and plots show."""

    name: str  # in columns and keys: accuracy, balanced_accuracy
    higher_is_better: bool = True
    percent: bool = False  # a share from 0 to 1, which people read in percent

    @classmethod
    def of(cls, result: Mapping[str, Any]) -> Metric:
        """The main metric of a run's result; those of older versions have accuracy only."""
        name, higher = result.get("metric", "accuracy"), result.get("higher_is_better", True)
        return cls(str(name), bool(higher), bool(result.get("percent", True)))

    @property
    def title(self) -> str:
        return self.name.replace("_", " ")

    @property
    def unit(self) -> str:
        """What stands beside its name in a caption."""
        return f"{self.title} in %" if self.percent else self.title

    @property
    def better(self) -> str:
        return "higher is better" if self.higher_is_better else "lower is better"

    def gain(self, mine: Any, other: Any) -> Any:
        """By how much the first is better than the second: numbers, arrays or tensors."""
        return mine - other if self.higher_is_better else other - mine

    def worst(self, values: Sequence[float]) -> list[float]:
        """The worst tenth, at least one; the values hold no NaN."""
        ordered = sorted(values, reverse=not self.higher_is_better)
        return ordered[: max(1, math.ceil(len(ordered) / 10))]

    def text(self, value: float, *, signed: bool = False, digits: int = 1) -> str:
        """As people read it: 93.1 for a share of 0.931, four digits of other numbers."""
        if self.percent:
            return f"{100 * value:{'+' if signed else ''}.{digits}f}"
        return f"{value:{'+' if signed else ''}.{digits + 3}g}"


ACCURACY = Metric("accuracy", percent=True)
GLOBAL = "global_"  # before the name of a metric in columns and keys: on the common test set
VALIDATION = "validation_"  # on each peer's own validation data
