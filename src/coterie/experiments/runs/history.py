"""What a run measured, round by round, and its summary."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from coterie.protocol import Point
from coterie.simulation import RoundRecord

COLUMNS = ("accuracy", "loss", "global_accuracy")


@dataclass(frozen=True)
class Measurement:
    """All peers' personal models at both points of one round."""

    round: int
    values: dict[tuple[str, str], Tensor]  # (column, point) -> (peers,)

    def get(self, column: str, point: str) -> Tensor | None:
        return self.values.get((column, point))


@dataclass
class History:
    """Measurements in the order of rounds, and the time of every round."""

    measurements: list[Measurement] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    collaboration: Tensor | None = None  # (peers, peers) the weights that an algorithm learned, if it does

    def add(self, record: RoundRecord) -> None:
        self.seconds.append(record.seconds)
        self.collaboration = record.diagnostics.get("collaboration", self.collaboration)
        if record.evaluations:
            self.measurements.append(measurement_of(record))

    @property
    def rounds(self) -> list[int]:
        """The rounds that were measured, counted from 1 as users do."""
        return [m.round + 1 for m in self.measurements]

    def accuracy(self, point: Point) -> Tensor:
        """(measured rounds, peers) personal accuracy over time."""
        return torch.stack([m.values["accuracy", point] for m in self.measurements])

    def last(self, column: str, point: str) -> Tensor | None:
        """The last round in which it was measured."""
        for measurement in reversed(self.measurements):
            values = measurement.get(column, point)
            if values is not None:
                return values
        return None


def measurement_of(record: RoundRecord) -> Measurement:
    values: dict[tuple[str, str], Tensor] = {}
    for point, evaluation in record.evaluations.items():
        values["accuracy", point] = evaluation.accuracy
        values["loss", point] = evaluation.loss
        if evaluation.global_accuracy is not None:
            values["global_accuracy", point] = evaluation.global_accuracy
    return Measurement(record.round, values)


def distribution(values: Tensor | None) -> dict[str, Any] | None:
    """Mean, standard deviation and worst decile over peers: one mean hides who was hurt.

    The worst decile is the mean of the lowest tenth of the peers, at least one.
    """
    if values is None:
        return None
    known = values[~values.isnan()].double()
    if not len(known):
        return None
    worst = known.sort().values[: max(1, math.ceil(len(known) / 10))]
    return {
        "mean": float(known.mean()),
        "std": float(known.std(unbiased=False)),
        "worst_decile": float(worst.mean()),
        "per_peer": [None if math.isnan(value) else value for value in values.tolist()],
    }
