"""Both points of a round are measured, and nobody changes a state in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from algorithm_exam import PEERS, Exam, check_states_are_left_alone, exam

from coterie.protocol import Algorithm
from coterie.simulation import POINTS


@exam(variants=False)
def test_both_points_are_measured(algorithm: Algorithm[Any], sit: Callable[..., Exam]) -> None:
    simulation, records = sit(algorithm, torch.float32).played(2)
    for record in records:
        assert tuple(record.evaluations) == POINTS
        for evaluation in record.evaluations.values():
            assert evaluation.accuracy.shape == evaluation.loss.shape == (PEERS,)
            assert bool(((evaluation.accuracy >= 0) & (evaluation.accuracy <= 1)).all())
    assert algorithm.facts.measured in POINTS
    assert simulation.step(evaluate=False).evaluations == {}


@exam()
def test_a_round_leaves_the_state_it_was_given(algorithm: Algorithm[Any], sit: Callable[..., Exam]) -> None:
    check_states_are_left_alone(sit(algorithm))
