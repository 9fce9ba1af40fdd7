"""DFedSAM: the rule worked out in NumPy, and its limit D-PSGD."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from coterie.algorithms.d_psgd import DPSGD
from coterie.algorithms.dfedsam import DFedSAM, SharpnessAware
from coterie.errors import ConfigError
from coterie.learning import SGD, Gradients, Outer
from coterie.learning.updates import Moved, Pass
from coterie.simulation import Simulation
from coterie.training import Training

Build = Callable[..., Simulation]
MINI_BATCHES = Training(epochs=2, batch_size=3, lr=0.1)


def softmax_gradient(
    w: np.ndarray, b: np.ndarray, x: np.ndarray, y: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    logits = x @ w.T + b
    p = np.exp(logits - logits.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    p[np.arange(len(y)), y] -= 1
    p /= len(y)
    return p.T @ x, p.sum(0)


def test_rounds_equal_numpy(small_simulation: Build) -> None:
    """Softmax regression with full batches on a ring of three, each peer the neighbour of all."""
    network = nn.Sequential(nn.Linear(3, 2)).double()
    rho, lr = 0.3, 0.1
    training = Training(epochs=2, batch_size=100, lr=lr, clip=0.0)
    simulation = small_simulation(
        DFedSAM(rho=rho), "full", sizes=(4, 7, 1), training=training, network=network
    )
    data = simulation.federation
    start = simulation.personal()
    w, b = start["0.weight"].numpy().copy(), start["0.bias"].numpy().copy()
    for _ in range(2):
        for i in range(3):
            x, y = data.x[data.train.of(i)].numpy(), data.y[data.train.of(i)].numpy()
            for _ in range(2):
                gw, gb = softmax_gradient(w[i], b[i], x, y)
                length = np.sqrt((gw**2).sum() + (gb**2).sum())
                gw, gb = softmax_gradient(w[i] + rho * gw / length, b[i] + rho * gb / length, x, y)
                w[i], b[i] = w[i] - lr * gw, b[i] - lr * gb
        w[:], b[:] = w.mean(0), b.mean(0)
        simulation.step()
    np.testing.assert_allclose(simulation.personal()["0.weight"], w, rtol=1e-10)
    np.testing.assert_allclose(simulation.personal()["0.bias"], b, rtol=1e-10)


@pytest.mark.parametrize(
    "training", [MINI_BATCHES, Training(epochs=1, batch_size=3, lr=0.1, momentum=0.9, weight_decay=0.01)]
)
def test_rho_zero_is_d_psgd_bit_for_bit(small_simulation: Build, training: Training) -> None:
    ours = small_simulation(DFedSAM(rho=0.0), "ring", training=training)
    theirs = small_simulation(DPSGD(), "ring", training=training)
    for _ in range(3):
        ours.step(), theirs.step()
    for name, value in theirs.personal().items():
        assert torch.equal(ours.personal()[name], value)


def test_rho_matters(small_simulation: Build) -> None:
    ours, theirs = (small_simulation(DFedSAM(rho=rho), "ring", training=MINI_BATCHES) for rho in (0.5, 0.0))
    ours.step(), theirs.step()
    assert not torch.equal(ours.personal()["0.weight"], theirs.personal()["0.weight"])


def added_up(value: torch.Tensor | Moved) -> torch.Tensor:
    return value.weight + value.step.dense(value.weight) if isinstance(value, Moved) else value.clone()


def test_zero_gradient_moves_nothing() -> None:
    """A row without any gradient must not divide by its norm; factored and plain gradients alike."""
    params = {"w": torch.ones(2, 2, 3), "b": torch.ones(2, 2)}
    inputs = torch.tensor([[[1.0, 0.0, 0.0]]]).repeat(2, 1, 1)
    taken = Pass(inputs, inputs @ params["w"].mT, params["w"], params["b"])
    seen: list[dict[str, torch.Tensor]] = []

    def gradient() -> Gradients:
        seen.append({name: added_up(value) for name, value in params.items()})
        delta = torch.tensor([[[0.0, 0.0]], [[3.0, 0.0]]])
        return {
            "w": Outer(delta, taken),
            "b": delta[:, 0] * 4 / 3,
        }

    rule = SharpnessAware(0.5, SGD())
    rule.step(params, rule.begin(params, torch.arange(2)), gradient, 0.1, 0)
    assert len(seen) == 2
    assert torch.equal(seen[1]["w"][0], torch.ones(2, 3))
    # Row 1: gradient 3 on w[0, 0] and 4 on b[0], norm 5, so the point is rho * (0.6, 0.8) away.
    torch.testing.assert_close(seen[1]["w"][1], torch.tensor([[1.3, 1.0, 1.0], [1.0, 1.0, 1.0]]))
    torch.testing.assert_close(seen[1]["b"][1], torch.tensor([1.4, 1.0]))
    torch.testing.assert_close(params["w"][1], torch.tensor([[0.7, 1.0, 1.0], [1.0, 1.0, 1.0]]))
    torch.testing.assert_close(params["b"], torch.tensor([[1.0, 1.0], [0.6, 1.0]]))


def test_negative_rho_is_refused() -> None:
    with pytest.raises(ConfigError, match="rho"):
        DFedSAM(rho=-0.1)


def settings_of(name: str) -> dict[str, Any]:
    return dict(DFedSAM.presets[name])


def test_preset_has_neither_momentum_nor_decay() -> None:
    assert settings_of("blend-dfl")["training.weight_decay"] == 0.0
    assert settings_of("blend-dfl")["training.momentum"] == 0.0
