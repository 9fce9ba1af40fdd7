"""Learning rates against torch.optim.lr_scheduler, over rounds and within them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler
from training_lab import Lab, assert_equal_models, batches_of, dense, peers, seeded, torch_training

from coterie.errors import ConfigError
from coterie.learning import ExecutorName, LocalWork, Workers
from coterie.learning.schedules import learning_rates
from coterie.training import Training

ROUNDS, STEPS = 6, 4
LR = 0.3
Scheduler = Callable[[torch.optim.Optimizer], lr_scheduler.LRScheduler]


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with Workers(2) as workers:
        yield Lab(workers)


def rates(training: Training, steps: int = STEPS) -> list[float]:
    """Of all steps of a run."""
    each = (learning_rates(training, round, ROUNDS, torch.tensor([steps])) for round in range(ROUNDS))
    return [float(rate) for one in each for rate in one]


def torch_rates(schedule: Scheduler, count: int = ROUNDS * STEPS) -> list[float]:
    """One step of the scheduler for each step of the optimiser."""
    optimiser = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=LR)
    steps, found = schedule(optimiser), []
    for _ in range(count):
        found.append(optimiser.param_groups[0]["lr"])
        optimiser.step()
        steps.step()
    return found


def test_a_constant_rate_needs_no_schedule() -> None:
    """Local work then does not ask for one, and has the very same numbers."""
    training, steps = Training(lr=LR, lr_decay=0.9), torch.tensor([5, 3, 3])
    for round in (-1, 0, 4):
        short = LocalWork.resolve(training, round, {}, rounds=ROUNDS).rates(steps)
        assert short == learning_rates(training, round, ROUNDS, steps)


def warm(steps: int) -> Scheduler:
    return lambda o: lr_scheduler.LinearLR(o, start_factor=1 / steps, total_iters=steps - 1)


def then(first: Scheduler, second: Scheduler, when: int) -> Scheduler:
    return lambda o: lr_scheduler.SequentialLR(o, [first(o), second(o)], milestones=[when])


def cosine(steps: int) -> Scheduler:
    return lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=steps)


def step(every: int) -> Scheduler:
    return lambda o: lr_scheduler.StepLR(o, step_size=every, gamma=0.5)


def linear(steps: int) -> Scheduler:
    return lambda o: lr_scheduler.LinearLR(o, start_factor=1.0, end_factor=0.0, total_iters=steps)


ALL = ROUNDS * STEPS
SCHEDULES: dict[str, tuple[dict[str, Any], Scheduler]] = {
    "cosine": ({"schedule": "cosine"}, cosine(ALL)),
    "step": ({"schedule": "step(2,0.5)"}, step(2 * STEPS)),
    "step-within-rounds": ({"schedule": "step(every=0.75,factor=0.5)"}, step(3)),
    "linear": ({"schedule": "linear"}, linear(ALL)),
    "warm-up": ({"warmup": 2.0}, warm(2 * STEPS)),
    "part-of-a-round": ({"warmup": 0.5}, warm(STEPS // 2)),
    "warm-up-cosine": ({"warmup": 1.5, "schedule": "cosine"}, then(warm(6), cosine(ALL - 6), 6)),
    "warm-up-step": ({"warmup": 0.5, "schedule": "step(1,0.5)"}, then(warm(2), step(STEPS), 2)),
    "decay": (
        {"lr_decay": 0.9},
        lambda o: lr_scheduler.LambdaLR(o, lambda n: 0.9 ** (n // STEPS)),
    ),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_rates_equal_those_of_torch(name: str) -> None:
    settings, schedule = SCHEDULES[name]
    assert rates(Training(lr=LR, **settings)) == pytest.approx(torch_rates(schedule), rel=1e-9, abs=1e-12)


def test_one_step_per_round_is_a_schedule_over_rounds() -> None:
    found = rates(Training(lr=LR, schedule="cosine"), steps=1)
    assert found == pytest.approx(torch_rates(cosine(ROUNDS), ROUNDS), rel=1e-9)


def test_decay_and_schedule_multiply() -> None:
    both = rates(Training(lr=LR, lr_decay=0.9, schedule="linear"))
    plain = rates(Training(lr=LR, schedule="linear"))
    assert both == pytest.approx([rate * 0.9 ** (n // STEPS) for n, rate in enumerate(plain)])


def test_a_rate_depends_on_the_row_alone() -> None:
    """Rows with 6, 3 and 2 steps go through the same part of the schedule, each at its own pace."""
    training = Training(lr=LR, schedule="cosine", warmup=0.5)
    together = learning_rates(training, 0, ROUNDS, torch.tensor([6, 3, 3, 2]))
    for row, steps in enumerate((6, 3, 3, 2)):
        alone = learning_rates(training, 0, ROUNDS, torch.tensor([steps]))
        mine = [rate if isinstance(rate, float) else float(rate[row]) for rate in together[:steps]]
        assert mine == alone
    assert [len(rate) for rate in together[:3] if isinstance(rate, torch.Tensor)] == [4, 4, 3]
    assert all(isinstance(rate, float) for rate in together[3:]), "one row is left"


OPTIMISERS: dict[str, tuple[dict[str, Any], Callable[..., torch.optim.Optimizer]]] = {
    "sgd-decay": ({"weight_decay": 0.05}, lambda p: torch.optim.SGD(p, LR, weight_decay=0.05)),
    "momentum": ({"momentum": 0.9}, lambda p: torch.optim.SGD(p, LR, momentum=0.9)),
    "nesterov": (
        {"momentum": 0.9, "nesterov": True, "weight_decay": 0.05},
        lambda p: torch.optim.SGD(p, LR, momentum=0.9, nesterov=True, weight_decay=0.05),
    ),
    "adam": ({"optimizer": "adam"}, lambda p: torch.optim.Adam(p, LR)),
    "adamw": (
        {"optimizer": "adamw", "weight_decay": 0.5},
        lambda p: torch.optim.AdamW(p, LR, weight_decay=0.5),
    ),
}


@pytest.mark.parametrize("executor", ["stacked", "looped"])
@pytest.mark.parametrize("name", OPTIMISERS)
def test_training_with_a_schedule_equals_torch(name: str, executor: ExecutorName, lab: Lab) -> None:
    """The peers have different numbers of steps, and so different rates at the same step."""
    settings, make = OPTIMISERS[name]
    module, data = seeded(dense), peers()
    training = Training(epochs=3, batch_size=4, lr=LR, clip=0.0, schedule="cosine", **settings)
    params, _ = lab.coterie(module, executor, data, training)  # the only round: down to 0 within it
    for peer in range(data.peers):
        batches = batches_of(data, peer, training)

        def scheduled(p: Any, n: int = len(batches)) -> torch.optim.Optimizer:
            optimiser = make(p)
            schedule = lr_scheduler.CosineAnnealingLR(optimiser, T_max=n)
            optimiser.register_step_post_hook(lambda *_: schedule.step())
            return optimiser

        net, _ = torch_training(module, batches, scheduled, 0.0)
        assert_equal_models(params, peer, net)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cosin", "did you mean cosine"),
        ("step", r"form step\(every,factor\)"),
        ("step(1,2,3)", r"form step\(every,factor\)"),
        ("step(1,factor=2,every=3)", r"form step\(every,factor\)"),
        ("step(1,x)", r"form step\(every,factor\)"),
        ("step(0,0.5)", "above 0"),
        ("cosine(3)", "form cosine"),
    ],
)
def test_what_is_no_schedule_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Training(schedule=text)
