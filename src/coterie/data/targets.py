"""What samples are to be mapped to: a class each, several labels each, numbers, or a class at each position.

    classes   (n,) int64 from 0
    labels    (n, labels) float32, 1 for those that a sample has and 0 for the others
    numbers   (n, numbers) float32
    tokens    (n, positions) int64 from 0; PADDING where a sequence has no target

Partitions deal samples out by groups: classes, or bins of numbers with equally many samples each.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from coterie.catalogue import tasks
from coterie.data.own.values import plain_array
from coterie.errors import DataError
from coterie.registry import parse_call

Targets: TypeAlias = Literal["classes", "labels", "numbers", "tokens"]

PADDING = -100  # what torch's cross_entropy leaves out, too
BINS = 10  # groups of numbers
_WANTED = {
    "labels": "one row per sample, with 1 for each label that it has and 0 for the others",
    "numbers": "one number per sample, or one row of numbers",
    "tokens": f"one row of whole numbers per sample, {PADDING} where a sequence has no target",
}


def targets_of(task: str) -> Targets:
    """What a task, such as "regression" or "file.py:Task", has as its targets."""
    found: Targets = tasks[parse_call(task, "task")[0]].targets  # type: ignore[attr-defined]
    return found


def task_of_labels(labels: NDArray[Any]) -> str:
    """What to do with labels that are not one class per sample; empty if nothing is known."""
    if labels.dtype.kind == "f":
        return '; for numbers to predict, say task="regression"; for classes, give whole numbers'
    if labels.ndim == 2 and labels.shape[1] == 1:
        return "; leave out its second axis"
    if labels.ndim == 2 and labels.dtype.kind in "iub":
        return '; for several labels per sample, say task="multi-label"; for sequences, task="next-token"'
    return ""


def read_targets(values: Any, targets: Targets, where: str) -> Tensor:
    """Targets other than classes, as a tensor; refuses what cannot be such."""
    if targets == "tokens":
        values = _padded(values)
    array = plain_array(values, where)
    if array.ndim == 1 and targets == "numbers":
        array = array[:, None]
    whole = array.dtype.kind in "iub"
    if array.ndim != 2 or not (whole or (array.dtype.kind == "f" and targets != "tokens")):
        raise DataError(f"{where} must be {_WANTED[targets]}, not {array.dtype} of shape {array.shape}")
    if not len(array):
        raise DataError(f"{where} is empty; at least one sample is needed")
    _check(array, targets, where)
    return torch.from_numpy(array.astype(np.int64 if targets == "tokens" else np.float32))


def _padded(values: Any) -> Any:
    """Sequences of different lengths, filled up."""
    if isinstance(values, (Tensor, np.ndarray)) and getattr(values, "dtype", None) != np.object_:
        return values
    rows = [np.asarray(row) for row in values]
    longest = max((len(row) for row in rows if row.ndim == 1), default=0)
    if any(row.ndim != 1 or row.dtype.kind not in "iub" for row in rows):
        return values
    return np.stack([np.pad(row, (0, longest - len(row)), constant_values=PADDING) for row in rows])


def _check(array: NDArray[Any], targets: Targets, where: str) -> None:
    bad = ~np.isfinite(array.astype(np.float64)).all(axis=1)
    problem = "a missing, NaN or infinite value"
    if targets == "labels" and not bad.any():
        bad, problem = ~np.isin(array, (0, 1)).all(axis=1), "a value that is neither 0 nor 1"
    if targets == "tokens":
        bad = ((array < 0) & (array != PADDING)).any(axis=1)
        problem = f"a target below 0 that is not {PADDING}, the padding"
        if not bad.any():
            bad, problem = (array == PADDING).all(axis=1), "no target at any position"
    if bad.any():
        first = int(bad.argmax())
        raise DataError(f"{where}: {int(bad.sum())} samples have {problem}, first sample {first}")


def width_of(y: Tensor, targets: Targets) -> int:
    """How many labels or numbers a sample has, or how many classes occur."""
    return int(y.shape[1]) if targets in ("labels", "numbers") else int(y.max()) + 1


def positions_present(y: Tensor, present: Tensor | None) -> Tensor:
    """(rows, batch, positions) 1 where there is a target. present: (rows, batch) 1 for samples."""
    real = (y != PADDING).float()
    return real if present is None else real * present[..., None]


class Groups:
    """By what samples are dealt out and held out: a number for each, from 0 to `count` - 1."""

    def __init__(self, targets: Targets, n_classes: int, train: Tensor) -> None:
        self.targets, self._classes = targets, n_classes
        self.count = {"classes": n_classes, "labels": n_classes + 1, "numbers": BINS, "tokens": 1}[targets]
        self._edges = torch.zeros(0)
        if targets == "numbers" and len(train):
            steps = torch.arange(1, BINS, dtype=torch.double) / BINS
            self._edges = train[:, 0].double().quantile(steps).to(train)

    def of(self, y: Tensor) -> Tensor:
        """(n,) int64. Of several labels the first counts, of several numbers the first."""
        if self.targets == "classes":
            return y
        if self.targets == "numbers":
            return torch.bucketize(y[:, 0].contiguous(), self._edges.to(y), right=True)
        if self.targets == "labels":
            return torch.where(y.any(1), y.argmax(1), self._classes)
        return torch.zeros(len(y), dtype=torch.long, device=y.device)

    @property
    def called(self) -> str:
        """What the groups are, for messages."""
        return "bins of numbers" if self.targets == "numbers" else "classes"

    def names(self, class_names: tuple[str, ...]) -> tuple[str, ...]:
        if self.targets == "classes":
            return class_names
        if self.targets == "labels":
            return (*class_names, "none")
        if self.targets == "tokens":
            return ("all",)
        return tuple(f"bin {number}" for number in range(BINS))


def same_width(parts: list[Tensor], targets: Targets, who: list[str]) -> list[Tensor]:
    """Targets of several, which must have as many labels or numbers; sequences are filled up."""
    if targets == "tokens":
        longest = max(part.shape[1] for part in parts)
        return [functional.pad(part, (0, longest - part.shape[1]), value=PADDING) for part in parts]
    for name, part in zip(who, parts, strict=True):
        if part.shape[1:] != parts[0].shape[1:]:
            raise DataError(
                f"{name} has {part.shape[1]} {targets} for each sample, but {who[0]} has {parts[0].shape[1]}"
            )
    return parts
