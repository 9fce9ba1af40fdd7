"""With equal local work every algorithm takes the mini-batches of Local, however it is run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from algorithm_exam import PEERS, SIZES, Exam, assert_same, check_shards_agree, exam, state_of

from coterie.algorithms.cobo import CoBo
from coterie.algorithms.pfedme import PFedMe
from coterie.catalogue import algorithms
from coterie.protocol import Algorithm
from coterie.simulation import load_checkpoint, save_checkpoint

ROUNDS, BATCH = 4, 4
BUDGET = torch.tensor([-(-size // BATCH) for size in SIZES])  # mini-batches of one epoch


def equal(exam: Exam) -> Exam:
    return dataclasses.replace(exam, work="equal")


def beside(algorithm: Algorithm[Any]) -> int:
    """Gradients of a round beside its training, for the hub or to see where weights should grow."""
    settings = algorithm.settings()
    return int("grad" in settings.get("server_update", "") or settings.get("regrow") == "gradient")


def meets_in_pairs(algorithm: Algorithm[Any]) -> bool:
    """A node of CoBo takes a gradient beside its training in the rounds in which it has a partner."""
    return isinstance(algorithm, CoBo)


def trains_when_sampled(algorithm: Algorithm[Any]) -> bool:
    """pFedMe trains all clients and averages those that are sampled."""
    return algorithm.settings().get("participation", 1.0) < 1 and not isinstance(algorithm, PFedMe)


@exam()
def test_every_algorithm_takes_the_steps_of_local(
    algorithm: Algorithm[Any], sit: Callable[..., Exam]
) -> None:
    """Over the run, and its samples; a client that is sampled in every other round takes the steps of two."""
    for groups, epochs in ((0, torch.ones(PEERS)), (3, 1 + torch.arange(PEERS) % 3)):
        sitting = dataclasses.replace(equal(sit(algorithm)), epoch_groups=groups)
        records = sitting.played(ROUNDS)[1]
        steps = torch.stack([record.gradient_steps for record in records])
        if not (beside(algorithm) or meets_in_pairs(algorithm)):
            seen = torch.stack([record.samples_seen for record in records])
            times = 2 * (steps > 0) if trains_when_sampled(algorithm) else torch.ones_like(steps)
            assert seen.sum(0).tolist() == (times.sum(0) * epochs * torch.tensor(SIZES)).tolist()
        if trains_when_sampled(algorithm):
            assert bool(((steps > 0).sum(1) == PEERS / 2).all())
            assert steps.tolist() == ((steps > 0) * (2 * epochs * BUDGET + beside(algorithm))).tolist()
        elif meets_in_pairs(algorithm):
            more = steps - epochs * BUDGET
            assert bool(((more == 0) | (more == 1)).all())
            assert bool(more.any())
        else:
            assert steps.sum(0).tolist() == (ROUNDS * (epochs * BUDGET + beside(algorithm))).tolist()


@exam(variants=False)
def test_executors_and_shards_agree(algorithm: Algorithm[Any], sit: Callable[..., Exam]) -> None:
    stacked, looped = (equal(sit(algorithm)).played(executor=name)[0] for name in ("stacked", "looped"))
    assert_same(state_of(stacked), state_of(looped), 1e-9)
    check_shards_agree(equal(sit(algorithm)))


@pytest.mark.parametrize("name", ["random-gossip", "dfedpgp", "per-fedavg", "ditto"])
def test_a_resumed_run_has_the_same_budgets(name: str, sit: Callable[..., Exam], tmp_path: Path) -> None:
    exam = equal(sit(algorithms[name](), torch.float32))
    whole, records = exam.played(3)
    started, first = exam.played(1)
    save_checkpoint(tmp_path / "state", started, {})
    resumed = exam.simulation()
    load_checkpoint(tmp_path / "state", resumed)
    rest = [resumed.step() for _ in range(2)]
    assert_same(state_of(whole), state_of(resumed))
    for ours, theirs in zip(records, [*first, *rest], strict=True):
        assert torch.equal(ours.gradient_steps, theirs.gradient_steps)
        assert torch.equal(ours.samples_seen, theirs.samples_seen)
