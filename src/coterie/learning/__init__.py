"""Local learning: training, losses, update rules, and the nodes that a process hosts."""

from coterie.learning.augmentation import Augmented
from coterie.learning.batched import check_module
from coterie.learning.executor import (
    Executor,
    ExecutorName,
    Workers,
    cores,
    keep_freed_memory,
    pinned_threads,
)
from coterie.learning.local_steps import LocalWork
from coterie.learning.node import LearningNode
from coterie.learning.precision import Precision, require_precision
from coterie.learning.tasks import CLASSIFICATION, Task, cross_entropy
from coterie.learning.updates import SGD, Adam, Gradients, Memory, Outer, Proximal, Rate, Update
from coterie.models import model_tree

__all__ = [
    "CLASSIFICATION",
    "SGD",
    "Adam",
    "Augmented",
    "Executor",
    "ExecutorName",
    "Gradients",
    "LearningNode",
    "LocalWork",
    "Memory",
    "Outer",
    "Precision",
    "Proximal",
    "Rate",
    "Task",
    "Update",
    "Workers",
    "check_module",
    "cores",
    "cross_entropy",
    "keep_freed_memory",
    "model_tree",
    "pinned_threads",
    "require_precision",
]
