"""pDFL: attention, mixing and distillation, beside torch one peer at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import by_hand
import pytest
import torch
from torch import Tensor

from coterie.algorithms.pdfl import PDFL
from coterie.errors import ConfigError
from coterie.protocol import Params
from coterie.simulation import Simulation
from coterie.training import Training

Build = Callable[..., Simulation]
SIZES = (4, 7, 5)
STILL = Training(epochs=0)


def attention(models: list[Params], x: Tensor, peer: int, tau: float) -> Tensor:
    p = [torch.softmax(by_hand.logits(model, x) / tau, 1) for model in models]
    kl = torch.stack([(q * (q / p[peer]).log()).sum(1).mean() for q in p])
    return torch.softmax(-kl / tau, 0)


def test_bodies_are_mixed_by_attention_and_heads_stay(small_simulation: Build) -> None:
    algorithm = PDFL(attention_temperature=0.4)
    run = small_simulation(algorithm, "full", sizes=SIZES, training=STILL, own_module=by_hand.own_network)
    models = [by_hand.of(run.personal(), peer) for peer in range(3)]
    run.step()
    for peer in range(3):
        a = attention(models, by_hand.data_of(run, peer)[0], peer, 0.4)
        assert float(a.max() - a.min()) > 0.01  # even weights would not pass
        for name in by_hand.BODY:
            expected = sum(a[j] * models[j][name] for j in range(3))
            torch.testing.assert_close(run.personal()[name][peer], expected)
        for name in by_hand.HEAD:
            assert torch.equal(run.personal()[name][peer], models[peer][name])


def test_a_step_follows_labels_and_teachers(small_simulation: Build) -> None:
    """theta - lr grad (CE + lambda T^2 KL(q || p)), from the mixed model; teachers are not mixed."""
    algorithm = PDFL(kd_weight=0.7, temperature=3.0, attention_temperature=1.5)
    run = small_simulation(algorithm, "full", sizes=SIZES, own_module=by_hand.own_network)
    models = [by_hand.of(run.personal(), peer) for peer in range(3)]
    run.step()
    mixed = run.blocks[0].node.shown["after_mixing"]
    for peer in range(3):
        x, y = by_hand.data_of(run, peer)
        a = attention(models, x, peer, 1.5)
        q = sum(a[j] * torch.softmax(by_hand.logits(models[j], x) / 3.0, 1) for j in range(3))
        model = by_hand.differentiable(by_hand.of(mixed, peer))
        log_p = torch.log_softmax(by_hand.logits(model, x) / 3.0, 1)
        kl = (q * (q.log() - log_p)).sum(1).mean()
        step = by_hand.gradient(model, by_hand.loss(model, x, y) + 0.7 * 9.0 * kl)
        for name, value in model.items():
            expected = value.detach() - 0.1 * step[name]
            torch.testing.assert_close(run.personal()[name][peer], expected)


def test_a_small_probe_is_part_of_the_data_and_drawn_anew(small_simulation: Build) -> None:
    run = small_simulation(PDFL(probe=3), "full", sizes=SIZES)
    node, seen = run.blocks[0].node, []
    for number in range(6):
        node.begin(number, run.topology.graph(number), torch.ones(3, dtype=torch.bool))
        probed = PDFL(probe=3).probed(node)
        assert probed.sum(1).tolist() == [3, 3, 3]
        assert not bool(probed[0, 4:].any() | probed[2, 5:].any())  # padding is nobody's sample
        seen.append(probed[1])
    assert len({tuple(probe.tolist()) for probe in seen}) > 1
    assert PDFL(probe=64).probed(node).sum(1).tolist() == list(SIZES)


def test_equal_models_without_teachers_are_trained_alone(small_simulation: Build) -> None:
    """Attention among equals is even, and changes nothing."""
    run = small_simulation(PDFL(kd_weight=0.0), "full", sizes=SIZES)
    before = by_hand.of(run.personal(), 1)
    run.step()
    model = by_hand.differentiable(before)
    step = by_hand.gradient(model, by_hand.loss(model, *by_hand.data_of(run, 1)))
    for name, value in before.items():
        torch.testing.assert_close(run.personal()[name][1], value - 0.1 * step[name])


@pytest.mark.parametrize(
    "settings", [{"probe": 0}, {"kd_weight": -1.0}, {"temperature": 0.0}, {"attention_temperature": 0.0}]
)
def test_settings_that_cannot_be(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        PDFL(**settings)
