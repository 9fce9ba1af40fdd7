"""Dis-PFL: masks, their average and their movement, against NumPy; its limit D-PSGD."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from coterie.algorithms.d_psgd import DPSGD
from coterie.algorithms.dis_pfl import DisPFL
from coterie.algorithms.parts.sparsity import kept_by_layer, largest, pack, unpack
from coterie.errors import ConfigError
from coterie.simulation import Simulation
from coterie.training import Training

Build = Callable[..., Simulation]
MINI_BATCHES = Training(epochs=2, batch_size=3, lr=0.1, weight_decay=0.01)
WEIGHTS = ("0.weight", "2.weight")


def state_of(simulation: Simulation) -> Any:
    return simulation.blocks[0].state


def test_erk_counts_by_hand() -> None:
    """8x4 and 4x8 are alike; 2x8 has the higher share (10/16 against 12/32). Biases are not pruned."""
    params = {
        "a": torch.zeros(1, 8, 4),
        "b": torch.zeros(1, 4, 8),
        "c": torch.zeros(1, 2, 8),
        "bias": torch.zeros(1, 8),
    }
    # epsilon = 0.5 * 80 / (12 + 12 + 10) = 1.17647: shares 0.4412, 0.4412, 0.7353
    assert kept_by_layer(params, 0.5) == {"a": 14, "b": 14, "c": 12}
    # At 0.8: epsilon 1.88 would give c 1.18 of its places: it is full, and the rest share 64 - 16 = 48.
    assert kept_by_layer(params, 0.8) == {"a": 24, "b": 24, "c": 16}
    assert kept_by_layer(params, 1.0) == {"a": 32, "b": 32, "c": 16}


def test_packing_is_undone_by_unpacking() -> None:
    torch.manual_seed(0)
    weight = torch.randn(3, 2, 7)
    mask = largest(torch.rand(3, 14), 5).view(3, 2, 7)
    packed = pack({"w": weight * mask, "b": torch.ones(3, 2)}, {"w": mask})
    assert packed["values"]["w"].shape == (3, 5)
    assert packed["masks"]["w"].shape == (3, 2)  # 14 bits
    assert packed["masks"]["w"].dtype == torch.uint8
    back = unpack(packed, {"w": 14})
    assert torch.equal(back["weights"]["w"].view(3, 2, 7), weight * mask)
    assert torch.equal(back["masks"]["w"].view(3, 2, 7), mask.float())
    assert torch.equal(back["dense"]["b"], torch.ones(3, 2))


@pytest.mark.parametrize("regrow", ["random", "gradient"])
def test_density_stays_and_masks_move(small_simulation: Build, regrow: Any) -> None:
    wide = nn.Sequential(nn.Linear(3, 30), nn.Tanh(), nn.Linear(30, 2)).double()  # many weights: fine shares
    simulation = small_simulation(
        DisPFL(regrow=regrow), "ring", training=MINI_BATCHES, rounds=6, network=wide
    )
    counts = kept_by_layer(state_of(simulation).params, 0.5)
    for number in range(6):
        before = state_of(simulation).masks
        simulation.step()
        state, trained = state_of(simulation), simulation.blocks[0].node.shown["after_local"]
        for name in WEIGHTS:
            mask = state.masks[name].flatten(1)
            assert bool((trained[name][~before[name]] == 0).all())  # whatever its gradient
            assert mask.sum(1).tolist() == [counts[name]] * 6
            assert bool((state.params[name].flatten(1)[~mask] == 0).all())
            moving = math.ceil(0.25 * (1 + math.cos(math.pi * number / 6)) * counts[name])
            moving = min(moving, mask.shape[1] - counts[name])  # there must be a free place for each
            # New weights start at zero, so those that are not have stayed.
            assert (state.params[name].flatten(1) != 0).sum(1).tolist() == [counts[name] - moving] * 6
    assert not torch.equal(before["0.weight"], state.masks["0.weight"])


def test_masks_start_different_and_weights_alike(small_simulation: Build) -> None:
    own, common = (state_of(small_simulation(DisPFL(common_masks=flag))) for flag in (False, True))
    assert not torch.equal(own.masks["0.weight"][0], own.masks["0.weight"][1])
    both = own.masks["0.weight"][0] & own.masks["0.weight"][1]
    assert torch.equal(own.params["0.weight"][0][both], own.params["0.weight"][1][both])
    assert all(torch.equal(common.masks["0.weight"][0], mask) for mask in common.masks["0.weight"])


def test_average_counts_only_those_who_have_a_weight(small_simulation: Build) -> None:
    """Peers 0 and 1 are neighbours, peer 2 is alone. lr 0: the model after mixing is also the trained one."""
    still = Training(lr=0.0)
    simulation = small_simulation(DisPFL(), [(0, 1)], sizes=(3, 3, 3), training=still)
    state = state_of(simulation)
    torch.manual_seed(1)
    params = {
        name: torch.randn(value.shape).double() * state.masks.get(name, 1)
        for name, value in state.params.items()
    }
    simulation.blocks[0].state = type(state)(params, state.masks)
    simulation.step()
    shown = simulation.blocks[0].node.shown["after_mixing"]
    for name in WEIGHTS:
        w, m = params[name].numpy(), state.masks[name].numpy().astype(float)
        mean = m * (w[0] + w[1]) / np.maximum(m[0] + m[1], 1)
        np.testing.assert_allclose(shown[name][:2], mean[:2], rtol=1e-12)
        np.testing.assert_allclose(shown[name][2], w[2])
    np.testing.assert_allclose(shown["0.bias"][0], (params["0.bias"][0] + params["0.bias"][1]) / 2)
    assert torch.equal(shown["0.bias"][2], params["0.bias"][2])


@pytest.mark.parametrize("regrow", ["random", "gradient"])
def test_prune_and_regrow_by_hand(small_simulation: Build, regrow: Any) -> None:
    """Round 0 moves half of each layer's weights: the smallest leave, the new start at zero."""
    network = nn.Sequential(nn.Linear(3, 2)).double()
    training = Training(epochs=1, batch_size=100, lr=0.1, clip=0.0)
    simulation = small_simulation(
        DisPFL(regrow=regrow), "full", sizes=(5,), training=training, network=network
    )
    start = state_of(simulation)
    mask = start.masks["0.weight"][0].numpy()
    x, y = simulation.federation.x[:5].numpy(), simulation.federation.y[:5].numpy()

    def gradient(w: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        p = np.exp(x @ w.T + b)
        p /= p.sum(1, keepdims=True)
        p[np.arange(5), y] -= 1
        return p.T @ x / 5, p.mean(0)

    w, b = start.params["0.weight"][0].numpy(), start.params["0.bias"][0].numpy()
    gw, gb = gradient(w, b)
    w, b = (w - 0.1 * gw) * mask, b - 0.1 * gb  # one masked step
    assert mask.sum() == 3
    by_size = np.argsort(np.where(mask, np.abs(w), np.inf).ravel())
    kept = mask.ravel().copy()
    kept[by_size[:2]] = False  # ceil(0.5 * 3) leave
    simulation.step()
    after = state_of(simulation)
    new_mask, new_w = after.masks["0.weight"][0].numpy().ravel(), after.params["0.weight"][0].numpy().ravel()
    assert new_mask.sum() == 3
    assert bool(new_mask[kept].all())
    np.testing.assert_allclose(new_w, np.where(kept, w.ravel(), 0.0), rtol=1e-9)
    if regrow == "gradient":
        scores = np.where(kept, -1.0, np.abs(gradient(w, b)[0]).ravel())
        assert set(np.flatnonzero(new_mask & ~kept)) == set(np.argsort(-scores)[:2])


def test_full_masks_are_d_psgd(small_simulation: Build) -> None:
    """The same sequence seen at another point: mix and train here, train and mix there."""
    ours = small_simulation(DisPFL(density=1.0), "ring", training=MINI_BATCHES)
    theirs = small_simulation(DPSGD(), "ring", training=MINI_BATCHES)
    for _ in range(4):
        ours.step(), theirs.step()
        expected = theirs.blocks[0].node.shown["after_local"]
        for name, value in ours.personal().items():
            torch.testing.assert_close(value, expected[name], rtol=1e-9, atol=1e-12)
    assert all(bool(mask.all()) for mask in state_of(ours).masks.values())


def test_statistics_kept_at_home(small_simulation: Build) -> None:
    network = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2)).double()
    for local in (False, True):
        simulation = small_simulation(
            DisPFL(), "ring", training=Training(batch_size=3), network=network, local_buffers=local
        )
        for _ in range(3):
            simulation.step()
        assert bool((state_of(simulation).params["1.running_var"] > 0).all())


@pytest.mark.parametrize(
    "settings", [{"density": 0.0}, {"density": 1.1}, {"pruning": -0.1}, {"pruning": 1.1}]
)
def test_settings_that_cannot_be(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        DisPFL(**settings)
