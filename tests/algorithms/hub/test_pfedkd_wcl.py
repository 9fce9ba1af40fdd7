"""pFedKD-WCL against NumPy: both gradients worked out by hand for softmax regression."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from coterie.catalogue import algorithms
from coterie.errors import ConfigError
from coterie.simulation import Simulation
from coterie.topology import Topology


def kl(p: np.ndarray, q: np.ndarray) -> float:
    """Mean over samples of KL(p || q)."""
    return float((p * (np.log(p) - np.log(q))).sum(1).mean())


def state(simulation: Simulation) -> Any:
    return simulation.blocks[0].state


def set_state(simulation: Simulation, seed: int) -> None:
    """Random personal models and a random w, the same w for all."""
    generator = torch.Generator().manual_seed(seed)
    for name, value in state(simulation).params.items():
        value.copy_(torch.randn(value[:1].shape, generator=generator, dtype=value.dtype).expand_as(value))
        personal = state(simulation).personal[name]
        personal.copy_(torch.randn(personal.shape, generator=generator, dtype=value.dtype))


def personal_after(world: Any, w: Any, theta: Any, peer: int, alpha: float, lr: float) -> Any:
    """One full-batch step of eq. 3: (1 - alpha)(p_theta - y) + alpha (p_theta - p_w) through the logits."""
    p, y = world.probabilities(theta, peer), world.samples(peer)[1]
    per_sample = (1 - alpha) * (p - y) + alpha * (p - world.probabilities(w, peer))
    return world.step(theta, world.through_logits(per_sample, peer), lr)


def server_gradient(world: Any, w: Any, theta: Any, peer: int) -> Any:
    """Eq. 4: p_w - p_theta through the logits of w."""
    return world.through_logits(world.probabilities(w, peer) - world.probabilities(theta, peer), peer)


def finite_differences(function: Callable[[Any], float], model: Any, h: float = 1e-6) -> Any:
    result = tuple(np.zeros_like(part) for part in model)
    for part, out in zip(model, result, strict=True):
        for place in np.ndindex(*part.shape):
            before = part[place]
            part[place] = before + h
            up = function(model)
            part[place] = before - h
            out[place] = (up - function(model)) / (2 * h)
            part[place] = before
    return result


def test_two_rounds_equal_numpy(world: Callable[..., Any], assert_close: Callable[..., None]) -> None:
    """Teacher-weighted step at each client, then one server step with the mean of their gradients."""
    small, alpha, lr, eta = world(), 0.3, 0.2, 0.7
    simulation = small.simulation("pfedkd-wcl", {"alpha": alpha, "server_lr": eta}, lr=lr)
    w, thetas = small.initial(), [small.initial()] * 3
    for _ in range(2):
        simulation.step()
        thetas = [personal_after(small, w, theta, peer, alpha, lr) for peer, theta in enumerate(thetas)]
        gradients = [server_gradient(small, w, theta, peer) for peer, theta in enumerate(thetas)]
        w = small.step(w, small.combine(gradients, [1 / 3] * 3), eta)
        for peer, theta in enumerate(thetas):
            assert_close(small.weights(simulation.personal(), peer), theta)
        assert_close(small.weights(state(simulation).params, small.hub), w)


@pytest.mark.parametrize("executor", ["stacked", "looped"])
@pytest.mark.parametrize("update", ["kl_grad", "kl_grad_reverse_lastclient"])
def test_server_gradient_agrees_with_finite_differences(
    world: Callable[..., Any], assert_close: Callable[..., None], update: str, executor: str
) -> None:
    """One client, no local step: w moves by the gradient of the divergence that its server_update names."""
    small = world((5,))
    settings = {"server_lr": 1.0, "server_update": update}
    simulation = small.simulation("pfedkd-wcl", settings, steps=0, executor=executor)
    set_state(simulation, 1)
    w, theta = small.weights(state(simulation).params, 1), small.weights(state(simulation).personal, 0)
    simulation.step()
    p_theta = small.probabilities(theta, 0)

    def server_loss(model: Any) -> float:
        p_w = small.probabilities(model, 0)
        return kl(p_theta, p_w) if update == "kl_grad" else kl(p_w, p_theta)

    factor = 1.0 if update == "kl_grad" else 2.0  # 1 + n / n
    moved = tuple(a - b for a, b in zip(w, small.weights(state(simulation).params, 1), strict=True))
    expected = tuple(factor * part for part in finite_differences(server_loss, w))
    assert max(float(np.abs(part).max()) for part in expected) > 0.01
    assert_close(moved, expected, 1e-7)


def test_alpha_one_and_equal_models_have_no_gradient(
    world: Callable[..., Any], assert_close: Callable[..., None]
) -> None:
    """theta = w: the teacher has nothing to teach, and nothing to learn."""
    small = world()
    simulation = small.simulation(
        "pfedkd-wcl", {"alpha": 1.0, "server_lr": 1.0}, steps=3, batch_size=2, lr=1.0
    )
    simulation.step()
    for row in range(3):
        assert_close(small.weights(simulation.personal(), row), small.initial())
    assert_close(small.weights(state(simulation).params, small.hub), small.initial())


@pytest.mark.parametrize(
    "training",
    [
        {"steps": 5, "batch_size": 2},
        {"steps": None, "epochs": 2, "batch_size": 3, "momentum": 0.9, "lr_decay": 0.9, "weight_decay": 0.01},
        {"steps": 4, "batch_size": 2, "optimizer": "adam", "clip": 0.5},
    ],
    ids=["steps", "epochs", "adam"],
)
def test_alpha_zero_is_local_bit_for_bit(world: Callable[..., Any], training: dict[str, Any]) -> None:
    small = world((4, 6, 1))
    ours = small.simulation("pfedkd-wcl", {"alpha": 0.0}, **training)
    local = small.simulation("local", **training)
    for _ in range(3):
        record, local_record = ours.step(), local.step()
        for name, value in local.personal().items():
            assert torch.equal(ours.personal()[name], value)
        assert torch.equal(record.train_loss, local_record.train_loss)  # not that of the server's gradient


def test_only_sampled_clients_train_and_count(
    world: Callable[..., Any], assert_close: Callable[..., None]
) -> None:
    """The others keep their theta; 1 / S counts the sampled ones alone."""
    small, eta, lr = world((4, 6, 5, 3)), 0.5, 0.2
    simulation = small.simulation("pfedkd-wcl", {"participation": 0.5, "server_lr": eta}, lr=lr)
    set_state(simulation, 2)
    w = small.weights(state(simulation).params, 4)
    before = [small.weights(simulation.personal(), peer) for peer in range(4)]
    record = simulation.step()
    sampled = sorted(record.traffic[0].receivers.tolist())
    assert len(sampled) == 2
    gradients = []
    for peer in range(4):
        theta = personal_after(small, w, before[peer], peer, 0.1, lr) if peer in sampled else before[peer]
        assert_close(small.weights(simulation.personal(), peer), theta)
        if peer in sampled:
            gradients.append(server_gradient(small, w, theta, peer))
    assert_close(
        small.weights(state(simulation).params, 4), small.step(w, small.combine(gradients, [0.5, 0.5]), eta)
    )


def test_parameter_average_is_the_plain_mean(
    world: Callable[..., Any], assert_close: Callable[..., None]
) -> None:
    small = world()
    simulation = small.simulation("pfedkd-wcl", {"server_update": "param_avg"}, steps=2, batch_size=2)
    simulation.step()
    thetas = [small.weights(simulation.personal(), peer) for peer in range(3)]
    assert_close(small.weights(state(simulation).params, small.hub), small.combine(thetas, [1 / 3] * 3))


def test_the_authors_update_counts_one_client(world: Callable[..., Any]) -> None:
    """w moves by (1 + n_i / sum n) times the reverse gradient of ONE client, and not always the same one."""
    small, eta, seen = world(), 0.5, set()
    settings = {"server_update": "kl_grad_reverse_lastclient", "server_lr": eta}
    simulation = small.simulation("pfedkd-wcl", settings, steps=0)
    set_state(simulation, 3)
    thetas = [small.weights(simulation.personal(), peer) for peer in range(3)]
    for _ in range(8):
        w = small.weights(state(simulation).params, small.hub)
        simulation.step()
        after = small.weights(state(simulation).params, small.hub)
        candidates = []
        for peer, theta in enumerate(thetas):
            p_w, p_theta = small.probabilities(w, peer), small.probabilities(theta, peer)
            log_ratio = np.log(p_w) - np.log(p_theta)
            per_sample = p_w * (log_ratio - (p_w * log_ratio).sum(1, keepdims=True))
            gradient = small.through_logits(per_sample, peer)
            candidates.append(small.step(w, gradient, eta * (1 + small.sizes[peer] / sum(small.sizes))))
        matching = [peer for peer in range(3) if np.allclose(candidates[peer][0], after[0], atol=1e-12)]
        assert len(matching) == 1
        seen.update(matching)
    assert len(seen) > 1


def test_personal_models_are_never_the_hubs(world: Callable[..., Any]) -> None:
    """Changing one never changes the other (three reference repositories alias them)."""
    simulation = world().simulation("pfedkd-wcl")
    for _ in range(2):
        for name, value in state(simulation).params.items():
            assert value.data_ptr() != state(simulation).personal[name].data_ptr()
        simulation.step()


class LostUploads(Topology):
    """A star on which nothing reaches the hub."""

    def __init__(self, inner: Topology) -> None:
        self.inner, self.nodes, self.hub = inner, inner.nodes, inner.hub
        self.directed, self.time_varying = inner.directed, inner.time_varying

    def graph(self, round: int) -> Any:
        return self.inner.graph(round)

    def online(self, round: int) -> Any:
        return self.inner.online(round)

    def delivers(self, round: int, slot: int, senders: Any, receivers: Any) -> Any:
        return receivers != self.hub


@pytest.mark.parametrize("update", ["kl_grad", "kl_grad_reverse_lastclient", "param_avg"])
def test_hub_that_hears_nobody_keeps_its_model(
    world: Callable[..., Any], assert_close: Callable[..., None], update: str
) -> None:
    small = world()
    whole = small.simulation("pfedkd-wcl")
    settings = {"server_update": update}
    simulation = small.simulation("pfedkd-wcl", settings, topology=LostUploads(whole.topology))
    simulation.step()
    assert_close(small.weights(state(simulation).params, small.hub), small.initial(), 0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"alpha": 1.5}, "alpha"),
        ({"alpha": -0.1}, "alpha"),
        ({"participation": 0.0}, "participation"),
        ({"server_lr": -1.0}, "server_lr"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        algorithms["pfedkd-wcl"](**settings)
