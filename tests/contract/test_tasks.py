"""Every algorithm learns every task that makes sense for it, and says at once where it makes none."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import coterie
from coterie.catalogue import algorithms, tasks
from coterie.errors import ConfigError

PEERS, SAMPLES, POSITIONS, VOCABULARY = 3, 12, 4, 5
SETTINGS: dict[str, dict[str, Any]] = {  # cheap ones, where the defaults are not
    "kd-pdfl": {"exchange_every": 4},
    "star-fedavg": {"exchange_every": 4},
    "pfedme": {"inner_steps": 1},
}
NEEDS_CLUSTERS = {name for name in algorithms if algorithms[name].facts.clusters}  # type: ignore[attr-defined]


class Tagger(nn.Module):
    """Logits for the next token at each position."""

    def __init__(self, shape: tuple[int, ...], n_classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 3)
        self.head = nn.Linear(3, n_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.embedding(x))


def samples_of(task: str, peer: int) -> tuple[Any, Any]:
    numbers = torch.Generator().manual_seed(peer)
    x = torch.randn(SAMPLES, 4, generator=numbers)
    if task == "classification":
        return x, torch.arange(SAMPLES) % 3
    if task == "binary":
        return x, torch.arange(SAMPLES) % 2
    if task == "multi-label":
        return x, (x[:, :3] > 0).long()
    if task == "regression":
        return x, x.sum(1)
    tokens = torch.randint(VOCABULARY, (SAMPLES, POSITIONS + 1), generator=numbers)
    y = tokens[:, 1:].clone()
    y[::2, -1] = -100  # every second sequence is shorter
    return tokens[:, :-1], y


def learned(name: str, task: str, **more: Any) -> coterie.Run:
    data = coterie.from_peers(
        [samples_of(task, peer) for peer in range(PEERS)],
        validation=0.2,
        task=task,
        n_classes=VOCABULARY if task == "next-token" else None,
    )
    if name in NEEDS_CLUSTERS:
        data = coterie.Federation(**{**vars(data), "clusters": torch.tensor([0, 0, 1])})
    facts = algorithms[name].facts  # type: ignore[attr-defined]
    return coterie.simulate(
        name,
        data=data,
        model=Tagger if task == "next-token" else "mlp(4)",
        task=task,
        topology="star" if facts.hub else "full",
        rounds=2,
        settings=SETTINGS.get(name, {}),
        training={"batch_size": 6, "lr": 0.01},
        execution={"executor": "stacked", "workers": 1},
        **more,
    )


@pytest.mark.parametrize("task", list(tasks))
@pytest.mark.parametrize("name", list(algorithms))
def test_every_algorithm_learns_every_task(name: str, task: str) -> None:
    run = learned(name, task)
    assert run.result()["task"] == task
    for column in (run.metric.name, "loss"):
        for point in ("after_local", "after_mixing"):
            values = run.scores_over_time(column, point)  # type: ignore[arg-type]
            assert values.shape == (2, PEERS)
            assert bool(values.isfinite().all()), (column, point)
    assert math.isfinite(run.result()[f"personal_{run.metric.name}"]["worst_decile"])


def test_weights_by_class_are_refused_where_samples_have_none() -> None:
    with pytest.raises(ConfigError, match="weighting 'fixed' weighs samples by their class"):
        coterie.simulate(
            "blend-dfl(weighting=fixed)", data=[samples_of("regression", 0)] * 2, task="regression"
        )
