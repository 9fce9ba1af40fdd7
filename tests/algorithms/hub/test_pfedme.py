"""pFedMe against NumPy, and its limits: theta near w at a strong pull, nothing moves without inner steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from coterie.catalogue import algorithms
from coterie.errors import ConfigError

Check = Callable[..., None]
MakeWorld = Callable[..., Any]


def local_work(
    small: Any, w: Any, client: int, s: dict[str, Any], lr: float, steps: int, decay: float = 0.0
) -> tuple[Any, Any]:
    """(w_i, theta_i) after some full-batch outer steps."""
    theta, mine = w, w
    for _ in range(steps):
        for _ in range(s["inner_steps"]):
            g = small.gradient(theta, client)
            towards = tuple(
                a + s["pull"] * (t - centre) + decay * t for a, t, centre in zip(g, theta, mine, strict=True)
            )
            theta = small.step(theta, towards, s["personal_lr"])
        gap = tuple(centre - t for centre, t in zip(mine, theta, strict=True))
        mine = small.step(mine, gap, lr * s["pull"])
    return mine, theta


@pytest.mark.parametrize("executor", ["stacked", "looped"])
@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_two_rounds_equal_numpy(world: MakeWorld, assert_close: Check, executor: str, decay: float) -> None:
    small, lr = world(), 0.1
    s = {"pull": 3.0, "personal_lr": 0.2, "inner_steps": 4, "beta": 0.6}
    simulation = small.simulation("pfedme", s, lr=lr, steps=3, executor=executor, weight_decay=decay)
    w = small.initial()
    for _ in range(2):
        simulation.step()
        done = [local_work(small, w, client, s, lr, 3, decay) for client in range(3)]
        w = small.combine([w, small.by_samples([mine for mine, _ in done])], [0.4, 0.6])
        for client, (_, theta) in enumerate(done):
            assert_close(small.weights(simulation.personal(), client), theta)
        assert_close(small.weights(simulation.blocks[0].state.params, small.hub), w)


def test_all_train_but_only_the_sampled_are_averaged(world: MakeWorld, assert_close: Check) -> None:
    small = world((4, 6, 5, 3))
    s = {"pull": 3.0, "personal_lr": 0.2, "inner_steps": 2, "participation": 0.5}
    simulation = small.simulation("pfedme", s, lr=0.1)
    record = simulation.step()
    assert sorted(record.traffic[0].receivers.tolist()) == [0, 1, 2, 3]
    sampled = sorted(record.traffic[1].senders.tolist())
    assert len(sampled) == 2
    done = [local_work(small, small.initial(), client, s, 0.1, steps=1) for client in range(4)]
    for client, (_, theta) in enumerate(done):
        assert_close(small.weights(simulation.personal(), client), theta)
    samples = [small.sizes[client] for client in sampled]
    expected = small.combine([done[client][0] for client in sampled], [n / sum(samples) for n in samples])
    assert_close(small.weights(simulation.blocks[0].state.params, small.hub), expected)


def test_clients_with_fewer_steps_keep_what_they_had(world: MakeWorld, assert_close: Check) -> None:
    """Client 0 takes two steps, on two copies of one sample; clients in the same chunk of rows take one."""
    small = world((2, 1, 1, 1, 1))
    first, second = small.data.train.of(0).tolist()
    small.data.x[second], small.data.y[second] = small.data.x[first], small.data.y[first]
    s = {"pull": 3.0, "personal_lr": 0.2, "inner_steps": 2}
    simulation = small.simulation("pfedme", s, lr=0.1, steps=None, epochs=1, batch_size=1)
    simulation.step()
    done = [local_work(small, small.initial(), client, s, 0.1, small.sizes[client]) for client in range(5)]
    for client, (_, theta) in enumerate(done):
        assert_close(small.weights(simulation.personal(), client), theta)
    expected = small.by_samples([mine for mine, _ in done])
    assert_close(small.weights(simulation.blocks[0].state.params, small.hub), expected)


def test_strong_pull_keeps_theta_at_w(world: MakeWorld, assert_close: Check) -> None:
    small, pull = world(), 1e6
    s = {"pull": pull, "personal_lr": 1 / pull}
    simulation = small.simulation("pfedme", s, lr=0.1 / pull, steps=3)
    simulation.step()
    for client in range(3):
        assert_close(small.weights(simulation.personal(), client), small.initial(), 1e-5)
    assert_close(small.weights(simulation.blocks[0].state.params, small.hub), small.initial(), 1e-5)


def test_without_inner_steps_nothing_changes(world: MakeWorld, assert_close: Check) -> None:
    small = world()
    simulation = small.simulation("pfedme", {"inner_steps": 0}, steps=3, lr=0.01)
    simulation.step()
    for client in range(3):
        assert_close(small.weights(simulation.personal(), client), small.initial(), 1e-15)
    assert_close(small.weights(simulation.blocks[0].state.params, small.hub), small.initial(), 1e-15)


def test_theta_is_measured_not_w(world: MakeWorld) -> None:
    """The authors' repository aliases the two; w_i and theta_i differ here, and theta_i is shown."""
    simulation = world().simulation("pfedme", lr=0.01)
    record = simulation.step()
    scores = simulation.blocks[0].node.evaluate(simulation.personal())
    for evaluation in record.evaluations.values():
        assert torch.equal(evaluation.loss, scores.loss[:3])
    state = simulation.blocks[0].state
    assert all(bool((state.personal[name] != value).any()) for name, value in state.params.items())


@pytest.mark.parametrize(
    "settings",
    [{"pull": -1.0}, {"inner_steps": -1}, {"participation": 0.0}, {"personal_lr": 0.2, "pull": 15.0}],
)
def test_impossible_settings_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(settings))):
        algorithms["pfedme"](**settings)
