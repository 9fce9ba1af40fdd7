"""Both points of a round are measured, which changes nothing, and nobody changes a state in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from algorithm_exam import (
    PEERS,
    Exam,
    assert_same,
    check_states_are_left_alone,
    exam,
    measured,
    state_of,
    topology_for,
)

from coterie.protocol import Algorithm
from coterie.simulation import POINTS
from coterie.topology import Churn, MessageLoss


@exam(variants=False)
def test_both_points_are_measured(algorithm: Algorithm[Any], sit: Callable[..., Exam]) -> None:
    simulation, records = sit(algorithm, torch.float32).played(2)
    for record in records:
        assert tuple(record.evaluations) == POINTS
        for evaluation in record.evaluations.values():
            assert evaluation.metrics["accuracy"].shape == evaluation.loss.shape == (PEERS,)
            assert bool(((evaluation.metrics["accuracy"] >= 0) & (evaluation.metrics["accuracy"] <= 1)).all())
    assert algorithm.facts.measured in POINTS
    assert simulation.step(evaluate=False).evaluations == {}


@exam()
def test_a_round_leaves_the_state_it_was_given(algorithm: Algorithm[Any], sit: Callable[..., Exam]) -> None:
    check_states_are_left_alone(sit(algorithm))


@pytest.mark.parametrize("faulty", [False, True], ids=["healthy", "faulty"])
@exam()
def test_a_measurement_does_not_depend_on_those_before(
    algorithm: Algorithm[Any], faulty: bool, sit: Callable[..., Exam]
) -> None:
    """Every round measured or only the last: the same numbers and, unless a client was away, models."""
    topology = topology_for(algorithm)
    if faulty:
        topology = MessageLoss(Churn(topology, 0.3, 8), 0.3, 8)
    often, seldom = (sit(algorithm, torch.float32).simulation(topology=topology) for _ in range(2))
    for _ in range(3):
        often.step(), seldom.step(evaluate=False)
    assert_same(measured([often.step()]), measured([seldom.step()]))
    if not faulty:
        assert_same(state_of(often), state_of(seldom))
