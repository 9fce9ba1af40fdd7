"""One's own task is tried before anything trains, and what is wrong with it gets a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import coterie
from coterie.errors import ConfigError
from coterie.learning import Executor

OWN = """
from typing import ClassVar
from coterie.learning.tasks import Classification, MeanMetric, Task

class Doubled(Classification):
    name = "doubled"

    def losses(self, outputs, y):
        return 2 * super().losses(outputs, y)

class WithoutMetrics(Task):
    name = "without-metrics"

class WithoutLosses(Task):
    name = "without-losses"
    offers = Classification.offers

class Raising(Classification):
    name = "raising"

    def losses(self, outputs, y):
        return outputs[..., 9]

class Averaged(Classification):
    name = "averaged"

    def losses(self, outputs, y):
        return super().losses(outputs, y).mean()

class Miscounting(Classification):
    name = "miscounting"
    offers = (MeanMetric("sureness", of_samples=lambda task, outputs, y: outputs.softmax(-1)),)
"""


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("WithoutMetrics", "task 'without-metrics' offers no metric"),
        ("WithoutLosses", "task 'without-losses' has no method losses, which is needed here"),
        ("Raising", r"losses of task 'raising' raised IndexError: .* given \(1, 10, 3\) float32 outputs"),
        ("Averaged", r"losses of task 'averaged' must give a tensor of shape \(1, 10\), .* not \(\) float32"),
        ("Miscounting", r"sureness of task 'miscounting' must give a tensor of shape \(1, 10\)"),
    ],
)
def test_mistakes_show_before_anything_trains(
    name: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Executor, "train", lambda *_, **__: pytest.fail("something trained"))
    with pytest.raises(ConfigError, match=words):
        run(tmp_path, name)


def test_what_only_some_algorithms_need_is_said_when_it_is_needed(tmp_path: Path) -> None:
    """A task with losses and a metric is enough for Local, but PDFL compares what models say."""
    more = (
        OWN
        + """
class Bare(Task):
    name = "bare"
    offers = (MeanMetric("loss_of", False, of_samples=lambda task, outputs, y: task.losses(outputs, y)),)

    def losses(self, outputs, y):
        return (outputs[..., 0] - y).square()
"""
    )
    assert run(tmp_path, "Bare", more).metric.name == "loss_of"
    with pytest.raises(ConfigError, match=r"task 'bare' has no method (softened|answers)"):
        run(tmp_path, "Bare", more, algorithm="pdfl")


def test_a_good_one_learns(tmp_path: Path) -> None:
    """Twice the loss at half the rate is the same plain gradient step."""
    one, other = run(tmp_path, "Doubled", lr=0.05), run(tmp_path, None, lr=0.1)
    torch.testing.assert_close(one.params, other.params)


def run(
    folder: Path, name: str | None, code: str = OWN, algorithm: str = "local", lr: float = 0.1
) -> coterie.Run:
    (folder / "own.py").write_text(code)
    generator = torch.Generator().manual_seed(0)
    data = [
        {part: (torch.randn(10, 4, generator=generator), torch.arange(10) % 3) for part in ("train", "test")}
        for _ in range(3)
    ]
    task = {} if name is None else {"task": f"{folder / 'own.py'}:{name}"}
    training = {"lr": lr, "momentum": 0.0}
    return coterie.simulate(algorithm, data, "mlr", topology="full", rounds=2, training=training, **task)
