"""DPFL: the greedy choice beside one that tries every candidate in plain Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import by_hand
import pytest
import torch

from coterie.algorithms.dpfl import DPFL
from coterie.errors import ConfigError
from coterie.protocol import Params
from coterie.simulation import Simulation
from coterie.training import Training

Build = Callable[..., Simulation]
STILL = Training(epochs=0)
SIZES = (4, 7, 5, 6, 3)


def greedy(run: Simulation, models: list[Params], peer: int, most: int) -> list[int]:
    data, chosen = by_hand.data_of(run, peer, "validation"), [peer]

    def loss(members: list[int]) -> float:
        return float(by_hand.loss(by_hand.mean(*(models[j] for j in members)), *data))

    while len(chosen) <= most:
        others = [j for j in range(len(models)) if j not in chosen]
        best = min(others, key=lambda j: loss([*chosen, j]), default=None)
        if best is None or loss([*chosen, best]) > loss(chosen):
            break
        chosen.append(best)
    return chosen


@pytest.mark.parametrize("most", [1, 2, 4])
def test_the_choice_and_the_mean_by_hand(most: int, small_simulation: Build) -> None:
    run = small_simulation(
        DPFL(peers=most), "full", SIZES, STILL, validation=6, own_module=by_hand.own_network
    )
    models = [by_hand.of(run.personal(), peer) for peer in range(5)]
    run.step()
    sizes = set()
    for peer in range(5):
        members = greedy(run, models, peer, most)
        chosen = run.blocks[0].state.chosen[peer].nonzero().flatten().tolist()
        assert sorted(members[1:]) == chosen
        expected = by_hand.mean(*(models[j] for j in members))
        for name, value in expected.items():
            torch.testing.assert_close(run.personal()[name][peer], value)
        sizes.add(len(chosen))
    assert max(sizes) <= most
    assert most == 1 or len(sizes) > 1  # somebody stops early


def test_between_choices_only_the_chosen_are_asked(small_simulation: Build) -> None:
    run = small_simulation(
        DPFL(peers=2, every=3), "full", SIZES, STILL, validation=6, own_module=by_hand.own_network
    )
    first = run.step()
    chosen = run.blocks[0].state.chosen.clone()
    models = [by_hand.of(run.personal(), peer) for peer in range(5)]
    second = run.step()
    assert [len(t.senders) for t in first.traffic] == [20, 20]  # asked, and answered
    asked = second.traffic[0]
    assert {(int(a), int(b)) for a, b in zip(asked.senders, asked.receivers, strict=True)} == {
        (int(a), int(b)) for a, b in chosen.nonzero()
    }
    assert torch.equal(run.blocks[0].state.chosen, chosen)
    for peer in range(5):
        members = [models[peer], *(models[int(j)] for j in chosen[peer].nonzero().flatten())]
        for name, value in by_hand.mean(*members).items():
            torch.testing.assert_close(run.personal()[name][peer], value)


def test_it_says_that_it_needs_validation_data(small_simulation: Build) -> None:
    with pytest.raises(ConfigError, match=r"chooses peers by validation loss.*splitting\.validation"):
        small_simulation(DPFL(), "full", SIZES)


@pytest.mark.parametrize("settings", [{"peers": 0}, {"every": 0}])
def test_settings_that_cannot_be(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        DPFL(**settings)
