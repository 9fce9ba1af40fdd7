"""Kin: bounds, weights and guard by hand, rounds beside torch, and what it promises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import by_hand
import numpy as np
import pytest
import torch
from torch import Tensor

import coterie
from coterie.algorithms.kin import Kin, KinState
from coterie.algorithms.parts.best_model import Guard
from coterie.algorithms.parts.selection import Acquaintance
from coterie.errors import ConfigError
from coterie.protocol import Links, Params
from coterie.simulation import Simulation
from coterie.training import Training

Build = Callable[..., Simulation]
STILL = Training(epochs=0)
SIZES = (4, 7, 5, 6)


def test_losses_are_remembered_and_fade() -> None:
    none = torch.zeros(1, 3)
    known = Acquaintance(none, none)
    links = Links(torch.tensor([0, 0]), torch.tensor([1, 2]))
    known = known.heard(links, torch.tensor([2.0, 1.0]), 0.5)
    known = known.heard(Links(torch.tensor([0]), torch.tensor([1])), torch.tensor([5.0]), 0.5)
    assert known.number.tolist() == [[0.0, 1.5, 0.5]]
    assert known.mean[0, 1:].tolist() == [pytest.approx((0.5 * 2 + 5) / 1.5), 1.0]
    assert bool(known.mean[0, 0].isinf())


def test_the_bound_of_discounted_ucb_by_hand() -> None:
    loss, number = np.array([1.0, 2.0, 4.0]), np.array([2.0, 1.0, 0.25])
    table = np.append(loss * number, 0.0), np.append(number, 0.0)
    known = Acquaintance(*(torch.from_numpy(part)[None] for part in table))
    expected = loss - 0.7 * loss.std() * np.sqrt(np.log(number.sum()) / number)
    bound = known.lower_bound(0.7)[0]
    np.testing.assert_allclose(bound[:3], expected)
    assert float(bound[3]) == -torch.inf  # never seen: asked first
    assert bool((known.lower_bound(0.0)[0, :3] == torch.from_numpy(loss)).all())


def test_weights_fall_with_the_loss_and_the_worst_get_none() -> None:
    known = Acquaintance(torch.tensor([[0.5, 1.0, 3.0, 0.0]]), torch.tensor([[1.0, 1.0, 1.0, 0.0]]))
    everyone = [1.0, np.exp(-2.0), np.exp(-2 * 5.0), 0.0]  # (l - b) / b is 0, 1 and 5
    np.testing.assert_allclose(known.weights(2.0)[0], everyone, rtol=1e-6)
    refused = known.weights(2.0, torch.tensor([2.0]))[0]
    np.testing.assert_allclose(refused, [*everyone[:2], 0.0, 0.0], rtol=1e-6)


def test_the_guard_changes_its_mind_only_for_more_than_the_margin() -> None:
    guard = Guard.none(2, 2)
    nothing = torch.full((1, 2), torch.nan)
    for losses, choice in (([1.0, 0.95], 0), ([1.0, 0.95], 0), ([1.0, 0.2], 1), ([0.9, 1.0], 1)):
        guard = guard.seen(torch.cat((torch.tensor([losses]), nothing)), 0.5, 0.1)
        assert guard.choice.tolist() == [choice, 0]  # without validation data the first stays
    assert guard.loss[0].tolist() == pytest.approx([0.95, 0.7875])  # of 1 1 1 0.9 and 0.95 0.95 0.2 1
    models = [{"w": torch.zeros(2, 3)}, {"w": torch.ones(2, 3)}]
    assert guard.chosen(models)["w"].tolist() == [[1.0] * 3, [0.0] * 3]


def mixture(models: list[Params], weights: dict[int, float], peer: int) -> Params:
    total = 1 + sum(weights.values())
    return {
        name: (own + sum(w * models[j][name] for j, w in weights.items())) / total
        for name, own in models[peer].items()
    }


def started(build: Build, algorithm: Kin, **more: Any) -> tuple[Simulation, list[Params]]:
    run = build(algorithm, "full", sizes=SIZES, training=STILL, own_module=by_hand.own_network, **more)
    return run, [by_hand.of(run.personal(), peer) for peer in range(4)]


def check_in_use(run: Simulation, models: list[Params], peer: int, expected: Params) -> None:
    """Training goes on from the mixed model; in use is its body with one's own head."""
    state: KinState = run.blocks[0].state
    for name, value in expected.items():
        torch.testing.assert_close(state.params[name][peer], value)
        kept = models[peer][name] if name in by_hand.HEAD else value
        torch.testing.assert_close(state.used[name][peer], kept)


def losses_of(run: Simulation, models: list[Params], peer: int) -> list[float]:
    return [float(by_hand.loss(model, *by_hand.data_of(run, peer))) for model in models]


def weights_by_hand(losses: list[float], group: list[int], kappa: float) -> dict[int, float]:
    best = min(losses[j] for j in group)
    return {j: float(np.exp(-kappa * (losses[j] - best) / best)) for j in group}


def test_a_first_round_by_hand(small_simulation: Build) -> None:
    """All are strangers: two of them are drawn, seen one by one and weighed."""
    run, models = started(small_simulation, Kin(peers=2, kappa=4.0, refuse=False))
    run.step()
    state: KinState = run.blocks[0].state
    assert state.seen_in_clear.tolist() == [2] * 4
    for peer in range(4):
        group = (state.known.number[peer] > 0).nonzero().flatten().tolist()
        assert len(group) == 2
        weights = weights_by_hand(losses_of(run, models, peer), group, 4.0)
        check_in_use(run, models, peer, mixture(models, weights, peer))


def test_who_is_worse_than_the_untrained_model_is_refused(small_simulation: Build) -> None:
    run, models = started(small_simulation, Kin(peers=3, kappa=4.0))
    run.step()
    refused = 0
    for peer in range(4):
        losses = losses_of(run, models, peer)
        weights = weights_by_hand(losses, [j for j in range(4) if j != peer], 4.0)
        weights = {j: w for j, w in weights.items() if losses[j] < losses[peer]}  # its own is still untrained
        refused += 3 - len(weights)
        check_in_use(run, models, peer, mixture(models, weights, peer))
    assert 0 < refused < 12


def test_friends_send_a_sealed_sum(small_simulation: Build) -> None:
    """In the second round; with kappa 0 all weigh the same, and nobody is seen again."""
    run, models = started(small_simulation, Kin(peers=3, kappa=0.0, refuse=False))
    first = run.step()
    assert [len(traffic.senders) for traffic in first.traffic] == [
        12,
        12,
        0,
        0,
    ]  # nothing is sealed
    models = [by_hand.of(run.blocks[0].state.params, peer) for peer in range(4)]
    second = run.step()
    assert [len(traffic.senders) for traffic in second.traffic] == [0, 0, 12, 12]
    assert run.blocks[0].state.seen_in_clear.tolist() == [3] * 4
    for peer in range(4):
        others = {j: 1.0 for j in range(4) if j != peer}
        check_in_use(run, models, peer, mixture(models, others, peer))


def test_nobody_is_alone_in_a_sum_and_nobody_is_sealed_for_ever(small_simulation: Build) -> None:
    alone, _ = started(small_simulation, Kin(peers=1, refuse=False))
    for _ in range(3):
        alone.step()
    assert alone.blocks[0].state.seen_in_clear.tolist() == [3] * 4
    run, _ = started(small_simulation, Kin(peers=3, kappa=0.0, refuse=False, memory=0.6))
    counts = []
    for _ in range(5):
        run.step()
        counts.append(run.blocks[0].state.seen_in_clear[0].item())
    assert counts == [3, 3, 3, 6, 6]  # a look counts 1, then 0.6, then 0.36, which is less than a half
    opened, _ = started(small_simulation, Kin(peers=3, kappa=0.0, refuse=False, private=False))
    for _ in range(3):
        opened.step()
    assert opened.blocks[0].state.seen_in_clear.tolist() == [9] * 4


def test_validation_data_choose_among_mixed_blended_and_own(small_simulation: Build) -> None:
    """The candidate with the least validation loss is in use, and the next round starts as it says."""
    run, models = started(small_simulation, Kin(peers=3, refuse=False, margin=0.0), validation=8)
    run.step()
    state: KinState = run.blocks[0].state
    for peer in range(4):
        weights = weights_by_hand(losses_of(run, models, peer), [j for j in range(4) if j != peer], 3.0)
        mixed = mixture(models, weights, peer)
        half = by_hand.mean(mixed, models[peer])
        with_head = {**mixed, **{name: models[peer][name] for name in by_hand.HEAD}}
        candidates = [with_head, mixed, half, models[peer]]
        data = by_hand.data_of(run, peer, "validation")
        best = min(range(4), key=lambda k: float(by_hand.loss(candidates[k], *data)))
        assert int(state.guard.choice[peer]) == best
        start = [mixed, mixed, half, models[peer]][best]
        for name in mixed:
            torch.testing.assert_close(state.used[name][peer], candidates[best][name])
            torch.testing.assert_close(state.params[name][peer], start[name])


def opposed(peers: int) -> list[tuple[Tensor, Tensor]]:
    """Every second peer calls 0 what the others call 1."""
    rng = torch.Generator().manual_seed(3)
    x = [torch.randn(40, 5, generator=rng) for _ in range(peers)]
    return [(part, (part[:, 0] > 0).long() ^ (number % 2)) for number, part in enumerate(x)]


HOW: dict[str, Any] = {
    "model": "mlp(8)",
    "topology": "full",
    "execution": {"executor": "stacked", "workers": 1},
}


def test_among_opponents_it_is_local_training_bit_for_bit() -> None:
    """With one peer of each opinion there is nobody to learn from."""
    runs = [
        coterie.simulate(name, data=opposed(2), rounds=5, training={"lr": 0.5, "epochs": 3}, **HOW)
        for name in ("kin", "local")
    ]
    for name, value in runs[1].model(0).items():
        assert torch.equal(runs[0].model(0)[name], value)


def test_it_finds_those_of_its_opinion() -> None:
    run = coterie.simulate("kin", data=opposed(8), rounds=8, training={"lr": 0.5, "epochs": 3}, **HOW)
    weights = run.collaboration
    assert weights is not None
    same = torch.arange(8)[:, None] % 2 == torch.arange(8) % 2
    same.fill_diagonal_(False)
    others = torch.arange(8)[:, None] % 2 != torch.arange(8) % 2
    assert float(weights[same].mean()) > 10 * float(weights[others].mean())


@pytest.mark.parametrize(
    "settings", [{"peers": 0}, {"kappa": -1.0}, {"explore": -0.1}, {"memory": 0.0}, {"margin": -0.1}]
)
def test_settings_that_cannot_be(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Kin(**settings)
