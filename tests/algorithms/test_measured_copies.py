"""Copies that clients tune before they are measured: everyone is measured, whether online or not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from coterie.algorithms.fedavg import FedAvg
from coterie.algorithms.fedbabu import FedBABU
from coterie.algorithms.fedper import FedPer
from coterie.algorithms.fedrep import FedRep
from coterie.algorithms.per_fedavg import PerFedAvg
from coterie.simulation import RoundRecord, Simulation
from coterie.topology import Churn, make
from coterie.training import Training

STILL = Training(steps=0, batch_size=2, lr=0.3)  # the federation stays where it started


def losses(records: list[RoundRecord]) -> torch.Tensor:
    return torch.stack([record.evaluations["after_mixing"].loss for record in records])


@pytest.mark.parametrize(
    "algorithm",
    [
        FedAvg(finetune_epochs=2),
        FedPer(head_tuning=2),
        FedRep(head_epochs=0, head_tuning=2),
        FedBABU(finetune_epochs=2),
        PerFedAvg(adaptation_lr=0.3),
    ],
    ids=lambda algorithm: type(algorithm).__name__,
)
def test_who_is_offline_is_measured_like_the_others(
    small_simulation: Callable[..., Simulation], algorithm: Any
) -> None:
    star = make("star", peers=6, seed=2)
    runs = [small_simulation(algorithm, topology, training=STILL) for topology in (star, Churn(star, 0.5, 3))]
    whole, faulty = ([run.step() for _ in range(4)] for run in runs)
    assert not all(bool(record.online.all()) for record in faulty)
    assert torch.equal(losses(whole), losses(faulty))
    untuned = small_simulation(FedAvg(), star, training=STILL).step()
    assert not bool((losses(whole)[0] == losses([untuned])[0]).any()), "the copies were not tuned"
    assert all(bool(record.train_loss.isnan().all()) for record in faulty)
