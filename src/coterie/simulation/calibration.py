"""Which executor trains this model faster? Known for convolutions and small dense networks, else measured."""

from __future__ import annotations

import time
from statistics import median

import torch
from torch import nn

from coterie.data import Federation
from coterie.errors import ConfigError
from coterie.learning import Executor, ExecutorName, Precision, Workers, cross_entropy, model_tree
from coterie.learning.local_steps import LocalWork
from coterie.learning.stacked import StackedLayers
from coterie.protocol import Loss
from coterie.protocol.trees import row_bytes
from coterie.randomness import stream
from coterie.training import Training

_ROWS_PER_WORKER = 8
_STEPS = 3
_TURNS = 5  # the median of so many, by turns, so that no disturbance of the machine decides
_ENOUGH = 0.5  # seconds after which no further turn begins
_SMALL_BYTES = 8 << 20  # of a dense network whose rows train best together
_BOTH: tuple[ExecutorName, ...] = ("stacked", "looped")
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def fastest_executor(
    module: nn.Module,
    federation: Federation,
    training: Training,
    workers: Workers,
    precision: Precision = "float32",
    loss: Loss = cross_entropy,
) -> ExecutorName:
    """By rule where one is known; else by the CPU seconds of a few local steps of a few peers.

    Not by the clock on the wall, which other programs of the machine move.
    """
    rule = _known(module, precision)
    federation = federation.take(torch.arange(min(federation.peers, _ROWS_PER_WORKER * workers.count)))
    seconds: dict[Executor, list[float]] = {}
    for name in _BOTH if rule != "looped" else _BOTH[1:]:
        try:
            executor = Executor(name, module, workers, precision)
            _time(executor, module, federation, training, loss, steps=1)  # warm up
            _evaluate(executor, module, federation)
        except ConfigError:
            if name == "looped":  # nothing else can run it
                raise
            continue
        seconds[executor] = []
        if name == rule:
            break
    started, turns = time.perf_counter(), _TURNS if len(seconds) > 1 else 0
    for _ in range(turns):
        for executor in seconds:
            seconds[executor].append(_time(executor, module, federation, training, loss, steps=_STEPS))
        if time.perf_counter() - started > _ENOUGH:
            break
    return min(seconds, key=lambda executor: median(seconds[executor] or [0.0])).name


def _known(module: nn.Module, precision: Precision) -> ExecutorName | None:
    """What needs no measurement: convolutions one row after another, small dense networks together."""
    if any(isinstance(layer, _CONVOLUTIONS) for layer in module.modules()):
        return "looped"
    small = row_bytes(model_tree(module)) <= _SMALL_BYTES
    return "stacked" if small and precision == "float32" and StackedLayers.supports(module) else None


def _evaluate(executor: Executor, module: nn.Module, federation: Federation) -> None:
    """Two samples: layers that take another way in evaluation must run, too."""
    params = {name: value.to(federation.device) for name, value in model_tree(module).items()}
    first = federation.take(torch.zeros(1, dtype=torch.long)).kept()
    executor.visit_common(params, first, first.train.index[:2], lambda visit: None)


def _time(
    executor: Executor,
    module: nn.Module,
    federation: Federation,
    training: Training,
    loss: Loss,
    steps: int,
) -> float:
    rows = torch.arange(federation.peers)
    params = {
        name: value.expand(federation.peers, *value.shape[1:]).to(federation.device)
        for name, value in model_tree(module).items()
    }
    work = LocalWork.resolve(training, 0, {"steps": steps, "lr": 0.0})
    numbers = stream(0, "calibration", 0, rows)
    start = time.process_time()
    executor.train(params, federation, rows, numbers, work, loss, executor.trainable)
    return time.process_time() - start
