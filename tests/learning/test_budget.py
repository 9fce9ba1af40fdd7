"""Equal local work: what is counted, and how a round's budget is shared out; numbers worked by hand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from coterie.data import from_peers
from coterie.learning import Executor, LearningNode, Workers
from coterie.learning.node import due, samples_in
from coterie.topology import make
from coterie.training import Training

SIZES = (5, 9)  # in batches of 4: 2 and 3 mini-batches; the third row is a hub, without data
EVERYONE = torch.ones(3, dtype=torch.bool)


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    with Workers(1) as pool:
        yield pool


def node(workers: Workers, round: int = 0, **training: Any) -> LearningNode:
    sets = [(np.arange(2.0 * n).reshape(n, 2) / n, np.arange(n) % 2) for n in SIZES]
    peers = [{"train": one, "test": sets[0]} for one in sets]
    federation = from_peers(peers, n_classes=2).of_nodes(torch.arange(3), hub=2)
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    made = LearningNode(
        ids=torch.arange(3),
        federation=federation,
        module=module,
        executor=Executor("stacked", module, workers),
        training=Training(**{"batch_size": 4, **training}),
        seed=0,
        rounds=4,
        hub=2,
    )
    begin(made, round)
    return made


def begin(made: LearningNode, round: int) -> None:
    made.begin(round, make("star", peers=2, seed=0).graph(0), EVERYONE)


def steps(made: LearningNode) -> list[int]:
    return made.work.gradient_steps.tolist()


def test_samples_seen_are_those_of_whole_epochs_and_of_the_rest() -> None:
    """10 samples in batches of 4: 4, 4 and 2; 4, 4 and 2; ..."""
    n = torch.full((7,), 10)
    assert samples_in(torch.arange(7), n, 4).tolist() == [0, 4, 8, 10, 14, 18, 20]
    assert samples_in(torch.tensor([3]), torch.tensor([0]), 4).tolist() == [0]
    assert samples_in(torch.tensor([2]), torch.tensor([10]), 1 << 40).tolist() == [20]


def played(budget: int, share: float, rounds: int, per_step: int = 1) -> list[int]:
    return [int(due(torch.tensor([budget]), share, t, per_step)) for t in range(rounds)]


def test_shares_of_a_budget_add_up_over_the_rounds() -> None:
    assert played(6, 1.0, 3) == [6, 6, 6]
    assert played(6, 0.5, 3) == [3, 3, 3]
    assert played(5, 0.5, 4) == [3, 2, 3, 2], "2.5 steps a round"
    assert played(1, 0.5, 4) == [1, 0, 1, 0], "two phases take turns"
    assert played(1, 1 / 3, 6) == [0, 1, 0, 0, 1, 0]
    assert played(3, 2.5, 2) == [8, 7], "a client that is sampled in two rounds of five"
    assert played(3, 1.0, 4, per_step=2) == [4, 2, 4, 2], "whole steps of two mini-batches"
    assert played(1, 1.0, 4, per_step=2) == [2, 0, 2, 0]


def test_own_work_is_counted_as_it_comes(workers: Workers) -> None:
    made = node(workers)
    made.train(made.initial(), epochs=2)
    assert (steps(made), made.work.samples_seen.tolist()) == ([4, 6, 0], [10, 18, 0])
    made.train(made.initial(), steps=1, share=0.1, purpose="gradient")
    assert (steps(made), made.work.samples_seen.tolist()) == ([5, 7, 0], [14, 22, 0])
    made.train(made.initial(), epochs=9, purpose="measurement")
    assert steps(made) == [5, 7, 0], "what is measured and dropped is nobody's training"
    begin(made, 1)
    assert steps(made) == [0, 0, 0]


def test_equal_work_overrules_the_epochs_and_steps_of_a_call(workers: Workers) -> None:
    made = node(workers, epochs=2, work="equal")
    for settings in ({"steps": 18}, {"epochs": 5}, {"epochs": torch.tensor([7, 7, 7])}, {}):
        begin(made, 1)
        made.train(made.initial(), **settings)
        assert steps(made) == [4, 6, 0]
        made.train(made.initial(), **settings)
        assert steps(made) == [4, 6, 0], "the budget is used up"


def test_equal_work_follows_steps_and_epoch_groups(workers: Workers) -> None:
    made = node(workers, steps=7, work="equal")
    made.train(made.initial(), epochs=1)
    assert steps(made) == [7, 7, 0]
    made = node(workers, epoch_groups=2, work="equal")  # peer 0 has one epoch, peer 1 has two
    made.train(made.initial(), epochs=1)
    assert steps(made) == [2, 6, 0]


def test_two_phases_share_a_round(workers: Workers) -> None:
    made = node(workers, epochs=2, work="equal")
    made.train(made.initial(), share=0.25)
    assert steps(made) == [1, 2, 0], "a quarter of 4 and of 6"
    made.train(made.initial())
    assert steps(made) == [4, 6, 0], "the rest"


def test_two_phases_see_the_samples_of_one(workers: Workers) -> None:
    """5 and 9 samples in batches of 4: 4, 1 and 4, 4, 1. The second phase goes on where the first stopped."""
    made = node(workers, work="equal")
    made.train(made.initial(), share=0.5, stream="head")
    assert (steps(made), made.work.samples_seen.tolist()) == ([1, 2, 0], [4, 8, 0])
    made.train(made.initial())
    assert (steps(made), made.work.samples_seen.tolist()) == ([2, 3, 0], [5, 9, 0])


def test_steps_of_two_batches_see_the_samples_of_local(workers: Workers) -> None:
    """Of budgets of 2 and 3, peer 1 takes 4 and 2 in turn: 4, 4, 1, 4 and then 4, 1."""
    made, seen = node(workers, work="equal"), []
    for round in range(2):
        begin(made, round)
        made.train(made.initial(), batches_per_step=2)
        seen.append((steps(made), made.work.samples_seen.tolist()))
    assert seen == [([2, 4, 0], [5, 13, 0]), ([2, 2, 0], [5, 5, 0])]


def test_only_who_trains_uses_up_its_budget(workers: Workers) -> None:
    made = node(workers, work="equal")
    made.train(made.initial(), active=torch.tensor([True, False, False]))
    assert steps(made) == [2, 0, 0]
    made.train(made.initial(), only=())
    assert steps(made) == [2, 0, 0], "nothing was trained"
    made.train(made.initial())
    assert steps(made) == [2, 3, 0]


def test_gradients_beside_the_training_are_counted_but_not_budgeted(workers: Workers) -> None:
    made = node(workers, work="equal")
    made.train(made.initial(), steps=1, purpose="gradient")
    made.train(made.initial())
    assert steps(made) == [3, 4, 0]


def test_training_before_the_first_round_is_work_of_the_first(workers: Workers) -> None:
    made = node(workers, round=-1, work="equal")
    trained = made.train(made.initial())
    assert steps(made) == [2, 3, 0]
    begin(made, 0)
    assert same(made.train(trained), trained), "nothing is left"
    assert steps(made) == [2, 3, 0]
    begin(made, 1)
    assert not same(made.train(trained), trained)
    assert steps(made) == [2, 3, 0]


def test_epochs_of_a_round(workers: Workers) -> None:
    assert node(workers, epochs=3).epochs.tolist() == [3, 3, 0]
    assert node(workers, steps=3).epochs.tolist() == [1.5, 1, 0]
    assert node(workers, epoch_groups=2).epochs.tolist() == [1, 2, 0]


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return all(torch.equal(a[name], b[name]) for name in a)
