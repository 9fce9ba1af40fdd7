"""Ditto against NumPy, and its limits: Local at pull 0, the hub's model at a strong pull."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from coterie.catalogue import algorithms
from coterie.errors import ConfigError

Check = Callable[..., None]
MakeWorld = Callable[..., Any]
MINI_BATCHES = {"steps": None, "epochs": 2, "batch_size": 2, "momentum": 0.5, "clip": 1.0}


def test_two_rounds_equal_numpy(world: MakeWorld, assert_close: Check) -> None:
    """The anchor of v is the w that arrived, not the copy that the client has just trained."""
    small, pull, lr = world(), 0.8, 0.3
    simulation = small.simulation("ditto", {"pull": pull}, lr=lr)
    w, personal = small.initial(), [small.initial()] * 3
    for _ in range(2):
        simulation.step()
        for client, v in enumerate(personal):
            g = small.gradient(v, client)
            towards = tuple(a + pull * (b - c) for a, b, c in zip(g, v, w, strict=True))
            personal[client] = small.step(v, towards, lr)
        w = small.by_samples([small.step(w, small.gradient(w, client), lr) for client in range(3)])
        for client, v in enumerate(personal):
            assert_close(small.weights(simulation.personal(), client), v)
        assert_close(small.weights(simulation.blocks[0].state.params, small.hub), w)


def test_without_pull_it_is_local_bit_for_bit(world: MakeWorld) -> None:
    small = world((4, 6, 1))
    ditto = small.simulation("ditto", {"pull": 0.0}, **MINI_BATCHES)
    local = small.simulation("local", **MINI_BATCHES)
    for _ in range(3):
        ours, theirs = ditto.step(), local.step()
        assert torch.equal(ours.train_loss, theirs.train_loss)
        for name, value in local.personal().items():
            assert torch.equal(ditto.personal()[name], value)


def test_the_hubs_model_is_fedavgs_bit_for_bit(world: MakeWorld) -> None:
    """Personal models do not touch the federation."""
    small = world((4, 6, 1))
    ditto = small.simulation("ditto", {"participation": 0.67}, **MINI_BATCHES)
    fedavg = small.simulation("fedavg", {"participation": 0.67}, **MINI_BATCHES)
    for _ in range(3):
        ditto.step(evaluate=False)
        fedavg.step(evaluate=False)
    for name, value in fedavg.blocks[0].state.params.items():
        assert torch.equal(ditto.blocks[0].state.params[name], value)


def test_strong_pull_leads_to_the_received_model(world: MakeWorld, assert_close: Check) -> None:
    small, pull = world(), 1e6
    simulation = small.simulation("ditto", {"pull": pull}, lr=1 / pull)
    with torch.no_grad():
        for value in simulation.blocks[0].state.personal.values():
            value.add_(1.0)
    simulation.step()
    for client in range(3):
        assert_close(small.weights(simulation.personal(), client), small.initial(), 1e-5)


def test_epochs_of_the_two_models_are_separate(world: MakeWorld, assert_close: Check) -> None:
    small, lr = world(), 0.3
    settings = {"pull": 0.0, "global_epochs": 0, "personal_epochs": 3}
    simulation = small.simulation("ditto", settings, steps=7, lr=lr)
    simulation.step()
    assert_close(small.weights(simulation.blocks[0].state.params, small.hub), small.initial())
    for client in range(3):
        v = small.initial()
        for _ in range(3):
            v = small.step(v, small.gradient(v, client), lr)
        assert_close(small.weights(simulation.personal(), client), v)


def test_unsampled_clients_keep_their_model(world: MakeWorld) -> None:
    simulation = world((4, 6, 5, 3)).simulation("ditto", {"participation": 0.5})
    record = simulation.step()
    sampled = set(record.traffic[0].receivers.tolist())
    assert len(sampled) == 2
    for client in range(4):
        moved = bool((simulation.personal()["0.bias"][client] != simulation.module[0].bias).any())
        assert moved == (client in sampled)


@pytest.mark.parametrize("settings", [{"pull": -1.0}, {"participation": 2.0}, {"personal_epochs": -1}])
def test_impossible_settings_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(settings))):
        algorithms["ditto"](**settings)
