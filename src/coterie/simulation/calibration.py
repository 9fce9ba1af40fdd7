"""Which executor trains this model faster? Known for convolutions and small dense networks, else measured.

Measured by turns, in CPU seconds, before the first round. Where a few turns do not agree, a second look takes
more of them; where these do not agree either, the two are alike, and a rule decides. Nothing is looked at
again while rounds go on: executors agree to rounding only, so that a change by the clock in mid-run would
take the promise that the same seed gives the same bits. A resumed run keeps what its folder says.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import cast

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
_WON_BY_FAR = 1.5  # slower by so much in every turn: few turns will do
_MOST = 0.8  # of the turns of both looks, which are no accident
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
    able: dict[ExecutorName, Executor] = {}
    for name in _BOTH if rule != "looped" else _BOTH[1:]:
        try:
            executor = Executor(name, module, workers, precision)
            _time(executor, module, federation, training, loss, steps=1)  # warm up
            _evaluate(executor, module, federation)
        except ConfigError:
            if name == "looped":  # nothing else can run it
                raise
            continue
        able[name] = executor
        if name == rule:
            break
    if len(able) == 1:
        return next(iter(able))
    return faster_by_turns(
        *(partial(_time, able[name], module, federation, training, loss, steps=_STEPS) for name in _BOTH)
    )


def faster_by_turns(stacked: Callable[[], float], looped: Callable[[], float]) -> ExecutorName:
    """Each call takes a turn, and says how many CPU seconds it took."""
    turns: list[tuple[float, float]] = []
    for look in (_FIRST_LOOK, _SECOND_LOOK):
        spent = 0.0
        for taken in range(look.turns):
            if taken >= look.at_least and spent > look.seconds:
                break
            turns.append((stacked(), looped()))
            spent += sum(turns[-1])
        for name, ratios in (("looped", [a / b for a, b in turns]), ("stacked", [b / a for a, b in turns])):
            if look.is_clear(ratios):
                return cast(ExecutorName, name)
    return "stacked"  # they are alike; always the same one, so that a run repeats itself


@dataclass(frozen=True)
class _Look:
    turns: int
    at_least: int
    seconds: float  # after which no further turn begins

    def is_clear(self, ratios: list[float]) -> bool:
        """Whether an executor with these ratios, of the other one's seconds to its own, is the faster one."""
        if len(ratios) <= _FIRST_LOOK.turns and min(ratios) > 1:
            return len(ratios) == _FIRST_LOOK.turns or min(ratios) >= _WON_BY_FAR
        return self is _SECOND_LOOK and sum(ratio > 1 for ratio in ratios) >= _MOST * len(ratios)


_FIRST_LOOK = _Look(turns=5, at_least=1, seconds=0.5)
_SECOND_LOOK = _Look(turns=10, at_least=4, seconds=2.0)


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
