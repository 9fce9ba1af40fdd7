"""A short calibration: which executor trains this model faster on this machine?"""

from __future__ import annotations

import math
import time

import torch
from torch import nn

from coterie.data import Federation
from coterie.errors import ConfigError
from coterie.learning import Executor, ExecutorName, Precision, Workers, cross_entropy, model_tree
from coterie.learning.local_steps import LocalWork
from coterie.protocol import Loss
from coterie.randomness import stream
from coterie.training import Training

_ROWS_PER_WORKER = 8
_STEPS = 3
_TURNS = 5  # the best of so many, by turns, so that no disturbance of the machine decides
_ENOUGH = 0.5  # seconds after which no further turn begins


def fastest_executor(
    module: nn.Module,
    federation: Federation,
    training: Training,
    workers: Workers,
    precision: Precision = "float32",
    loss: Loss = cross_entropy,
) -> ExecutorName:
    """Time a few local steps of a few peers under each executor that can run the model."""
    seconds: dict[Executor, float] = {}
    for name in ("stacked", "looped"):
        try:
            executor = Executor(name, module, workers, precision)
            _time(executor, module, federation, training, loss, steps=1)  # warm up
            _evaluate(executor, module, federation)
        except ConfigError:
            if name == "looped":  # nothing else can run it
                raise
            continue
        seconds[executor] = math.inf
    started, turns = time.perf_counter(), _TURNS if len(seconds) > 1 else 0
    for _ in range(turns):
        for executor in seconds:
            taken = _time(executor, module, federation, training, loss, steps=_STEPS)
            seconds[executor] = min(seconds[executor], taken)
        if time.perf_counter() - started > _ENOUGH:
            break
    return min(seconds, key=lambda executor: seconds[executor]).name


def _evaluate(executor: Executor, module: nn.Module, federation: Federation) -> None:
    """Two samples: layers that take another way in evaluation must run, too."""
    params = {name: value.to(federation.device) for name, value in model_tree(module).items()}
    executor.visit_common(params, federation, federation.train.index[:2], lambda visit: None)


def _time(
    executor: Executor,
    module: nn.Module,
    federation: Federation,
    training: Training,
    loss: Loss,
    steps: int,
) -> float:
    count = min(federation.peers, _ROWS_PER_WORKER * executor.workers.count)
    rows = torch.arange(count)
    params = {
        name: value.expand(federation.peers, *value.shape[1:]).to(federation.device)
        for name, value in model_tree(module).items()
    }
    work = LocalWork.resolve(training, 0, {"steps": steps, "lr": 0.0})
    numbers = stream(0, "calibration", 0, torch.arange(federation.peers))
    start = time.perf_counter()
    executor.train(params, federation, rows, numbers, work, loss, executor.trainable)
    return time.perf_counter() - start
