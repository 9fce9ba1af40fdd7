"""The exam can be failed: algorithms that break one rule each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from algorithm_exam import CLASSES, Exam, check_repeatable, check_shards_agree, check_states_are_left_alone

from coterie.protocol import Algorithm, Exchange, Facts, ModelAlgorithm, ModelState, Node, Round, average
from coterie.randomness import stream

_FACTS = Facts(paper="none", measured="after_mixing", communication="one model to each neighbour")


@dataclass(frozen=True)
class NoiseByRow(ModelAlgorithm):
    """Draws by position in the block instead of by node id."""

    facts = _FACTS

    def round(self, state: ModelState, node: Node) -> Round[ModelState]:
        noise = stream(0, "noise", node.round, torch.arange(node.rows)).uniform(CLASSES)
        yield Exchange()
        return ModelState({**state.params, "2.bias": state.params["2.bias"] + noise})


@dataclass(frozen=True)
class MeanOverRows(ModelAlgorithm):
    """Knows the mean of models that it never received."""

    facts = _FACTS

    def round(self, state: ModelState, node: Node) -> Round[ModelState]:
        mine = node.train(state.params)
        inbox = yield Exchange(mine)
        mixed = average(mine, inbox)
        return ModelState({name: value - 0.1 * value.mean(0) for name, value in mixed.items()})


@dataclass(frozen=True)
class GlobalGenerator(ModelAlgorithm):
    """Draws from torch's global generator."""

    facts = _FACTS

    def round(self, state: ModelState, node: Node) -> Round[ModelState]:
        yield Exchange()
        return ModelState({name: value + torch.rand_like(value) for name, value in state.params.items()})


@dataclass(frozen=True)
class InPlace(ModelAlgorithm):
    """Changes the state that it was given."""

    facts = _FACTS

    def round(self, state: ModelState, node: Node) -> Round[ModelState]:
        yield Exchange()
        for value in state.params.values():
            value.mul_(0.9)
        return state


@pytest.mark.parametrize(
    ("algorithm", "check"),
    [
        (NoiseByRow(), check_shards_agree),
        (MeanOverRows(), check_shards_agree),
        (GlobalGenerator(), check_repeatable),
        (InPlace(), check_states_are_left_alone),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Algorithm) else value.__name__,
)
def test_the_exam_can_be_failed(
    algorithm: Algorithm[Any], check: Callable[[Exam], None], sit: Callable[..., Exam]
) -> None:
    with torch.random.fork_rng(), pytest.raises(AssertionError):
        check(sit(algorithm))
