"""Local learning: training, losses, update rules, and the nodes that a process hosts."""

from coterie.learning.batched import check_module, model_tree
from coterie.learning.executor import Executor, ExecutorName
from coterie.learning.losses import cross_entropy
from coterie.learning.node import LearningNode
from coterie.learning.settings import LocalWork
from coterie.learning.updates import SGD, Adam, Gradients, Memory, Outer, Proximal, Update
from coterie.learning.workers import Workers, cores, keep_freed_memory, pinned_threads

__all__ = [
    "SGD",
    "Adam",
    "Executor",
    "ExecutorName",
    "Gradients",
    "LearningNode",
    "LocalWork",
    "Memory",
    "Outer",
    "Proximal",
    "Update",
    "Workers",
    "check_module",
    "cores",
    "cross_entropy",
    "keep_freed_memory",
    "model_tree",
    "pinned_threads",
]
