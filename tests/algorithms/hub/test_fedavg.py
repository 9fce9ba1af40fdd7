"""What FedAvg's clients are measured with, while the federation goes on from w."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from coterie.catalogue import algorithms
from coterie.errors import ConfigError

Check = Callable[..., None]
MakeWorld = Callable[..., Any]


def test_who_was_not_sampled_shows_the_model_that_the_round_began_with(
    world: MakeWorld, assert_close: Check
) -> None:
    """Also where no round before was measured: then the client itself last heard of an older model."""
    small, lr = world((4, 6, 5, 3)), 0.2
    simulation = small.simulation("fedavg", {"participation": 0.5}, lr=lr)
    for _ in range(3):
        simulation.step(evaluate=False)
    w = small.weights(simulation.blocks[0].state.params, small.hub)
    sampled = simulation.step().traffic[0].receivers.tolist()
    assert len(sampled) == 2
    shown = simulation.blocks[0].node.shown["after_local"]
    for client in range(4):
        trained = small.step(w, small.gradient(w, client), lr)
        assert_close(small.weights(shown, client), trained if client in sampled else w)


def test_fine_tuned_copy_is_measured(world: MakeWorld, assert_close: Check) -> None:
    small, lr = world(), 0.2
    simulation = small.simulation("fedavg", {"finetune_epochs": 3}, lr=lr)
    record = simulation.step()
    w = small.initial()
    w = small.by_samples([small.step(w, small.gradient(w, client), lr) for client in range(3)])
    assert_close(small.weights(simulation.blocks[0].state.params, small.hub), w)
    shown = simulation.blocks[0].node.shown["after_mixing"]
    for client in range(3):
        tuned = w
        for _ in range(3):
            tuned = small.step(tuned, small.gradient(tuned, client), lr)
        assert_close(small.weights(shown, client), tuned)
    assert torch.equal(
        record.evaluations["after_mixing"].loss, simulation.blocks[0].node.evaluate(shown).loss[:3]
    )


def test_fine_tuning_changes_nothing_but_the_measurement(world: MakeWorld) -> None:
    small, batches = world(), {"steps": None, "epochs": 2, "batch_size": 2}
    tuned = small.simulation("fedavg", {"finetune_epochs": 2, "participation": 0.67}, **batches)
    plain = small.simulation("fedavg", {"participation": 0.67}, **batches)
    for _ in range(3):
        ours, theirs = tuned.step(), plain.step()
        assert torch.equal(ours.train_loss.nan_to_num(), theirs.train_loss.nan_to_num())
        assert torch.equal(ours.evaluations["after_local"].loss, theirs.evaluations["after_local"].loss)
        assert not torch.equal(ours.evaluations["after_mixing"].loss, theirs.evaluations["after_mixing"].loss)
    assert torch.equal(tuned.totals.bytes_sent, plain.totals.bytes_sent)
    for name, value in plain.blocks[0].state.params.items():
        assert torch.equal(tuned.blocks[0].state.params[name], value)


def test_negative_epochs_are_refused() -> None:
    with pytest.raises(ConfigError, match="finetune_epochs"):
        algorithms["fedavg"](finetune_epochs=-1)
