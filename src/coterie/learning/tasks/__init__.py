"""Tasks: what learning means. `task.py` has the contract and classification, `kinds.py` the others."""

from coterie.learning.tasks.kinds import Binary, MultiLabel, NextToken, Regression
from coterie.learning.tasks.metrics import scored_by
from coterie.learning.tasks.task import (
    CLASSIFICATION,
    Classification,
    MeanMetric,
    Task,
    WholeMetric,
    cross_entropy,
    loss_of,
    require_task,
)
from coterie.learning.tasks.trying import try_task

__all__ = [
    "CLASSIFICATION",
    "Binary",
    "Classification",
    "MeanMetric",
    "MultiLabel",
    "NextToken",
    "Regression",
    "Task",
    "WholeMetric",
    "cross_entropy",
    "loss_of",
    "require_task",
    "scored_by",
    "try_task",
]
