"""Executors, shards, workers and checkpoints change nothing; the seed does."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from algorithm_exam import (
    Exam,
    assert_same,
    check_repeatable,
    check_shards_agree,
    differs,
    exam,
    measured,
    state_of,
    topology_for,
)

from coterie.catalogue import algorithms
from coterie.learning import ExecutorName, pinned_threads
from coterie.protocol import Algorithm
from coterie.simulation import load_checkpoint, save_checkpoint
from coterie.topology import Churn, MessageLoss

# Executors and shards


def check_executors_agree(exam: Exam) -> None:
    stacked, stacked_records = exam.played(executor="stacked")
    looped, looped_records = exam.played(executor="looped")
    assert_same(state_of(stacked), state_of(looped), 1e-9)
    assert_same(measured(stacked_records), measured(looped_records), 1e-5)


@exam()
def test_stacked_and_looped_agree(algorithm: Algorithm[Any], sit: Callable[..., Exam]) -> None:
    check_executors_agree(sit(algorithm))


@exam()
def test_one_block_three_shards_and_one_node_each_agree(
    algorithm: Algorithm[Any], sit: Callable[..., Exam]
) -> None:
    check_shards_agree(sit(algorithm))


@exam()
def test_uneven_compute_changes_neither(algorithm: Algorithm[Any], sit: Callable[..., Exam]) -> None:
    uneven = dataclasses.replace(sit(algorithm), epoch_groups=3)
    check_executors_agree(uneven)
    check_shards_agree(uneven)


# Workers and seeds


def check_workers_do_not_matter(exam: Exam, executor: ExecutorName) -> None:
    finals = []
    for count in (1, 2):
        with pinned_threads(count):
            finals.append(state_of(exam.played(executor=executor, workers=count)[0]))
    assert_same(*finals)


@pytest.mark.parametrize("executor", ["stacked", "looped"])
@exam(variants=False)
def test_number_of_workers_changes_no_bit(
    algorithm: Algorithm[Any], executor: ExecutorName, sit: Callable[..., Exam]
) -> None:
    check_workers_do_not_matter(sit(algorithm, torch.float32), executor)


@exam(variants=False)
def test_same_seed_same_bits_other_seed_other_result(
    algorithm: Algorithm[Any], sit: Callable[..., Exam]
) -> None:
    check_repeatable(sit(algorithm, torch.float32))


# Checkpoints


@pytest.mark.parametrize(
    "algorithm", [algorithms[name]() for name in algorithms if not algorithms[name].facts.restarts], ids=str
)
def test_an_optimiser_that_keeps_its_memory(
    algorithm: Algorithm[Any], sit: Callable[..., Exam], tmp_path: Path
) -> None:
    """Executors and shards agree, and a checkpoint has all of it: the rest of a run has the same bits."""
    adam = {"optimizer": "adam", "optimizer_state": "kept", "momentum": 0.0}
    exam = dataclasses.replace(sit(algorithm), training=adam)
    check_executors_agree(exam)
    check_shards_agree(exam)
    whole, _ = exam.played(4)
    started, _ = exam.played(2)
    save_checkpoint(tmp_path / "state", started, {})
    resumed = exam.simulation()
    load_checkpoint(tmp_path / "state", resumed)
    for _ in range(2):
        resumed.step()
    assert_same(state_of(whole), state_of(resumed))
    afresh = dataclasses.replace(exam, training={"optimizer": "adam"}).played(4)[0]
    assert differs(state_of(whole), state_of(afresh))


@pytest.mark.parametrize("faulty", [False, True], ids=["healthy", "faulty"])
@exam()
def test_resumed_run_equals_uninterrupted_run(
    algorithm: Algorithm[Any], faulty: bool, sit: Callable[..., Exam], tmp_path: Path
) -> None:
    topology = topology_for(algorithm)
    if faulty:
        topology = MessageLoss(Churn(topology, 0.3, 8), 0.3, 8)
    exam = sit(algorithm, torch.float32)
    whole, records = exam.played(4, topology=topology)
    started, first = exam.played(2, topology=topology)
    save_checkpoint(tmp_path / "state", started, {"note": 1})
    resumed = exam.simulation(topology=topology)
    assert load_checkpoint(tmp_path / "state", resumed) == {"note": 1}
    rest = [resumed.step() for _ in range(2)]
    assert resumed.round == whole.round
    assert_same(state_of(whole), state_of(resumed))
    assert_same(vars(whole.totals), vars(resumed.totals))
    assert_same(measured(records), measured([*first, *rest]))
