"""Kin: bounds, weights and guard by hand, rounds beside torch, and what it promises."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
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
from coterie.experiments.setup.config import resolve
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


def under_own_head(models: list[Params], peer: int) -> list[Params]:
    own = {name: models[peer][name] for name in by_hand.HEAD}
    return [{**model, **own} for model in models]


def weights_by_hand(losses: list[float], group: list[int], kappa: float) -> dict[int, float]:
    best = min(losses[j] for j in group)
    return {j: float(np.exp(-kappa * (losses[j] - best) / best)) for j in group}


def in_parts(body: Params, head: Params) -> Params:
    return {**body, **{name: head[name] for name in by_hand.HEAD}}


def test_a_first_round_by_hand(small_simulation: Build) -> None:
    """All are strangers: two of them are drawn, seen one by one and weighed, body and head apart."""
    run, models = started(small_simulation, Kin(peers=2, kappa=4.0, refuse=False))
    run.step()
    state: KinState = run.blocks[0].state
    assert state.looks.sum(1).tolist() == [2] * 4
    for peer in range(4):
        group = (state.known.number[peer] > 0).nonzero().flatten().tolist()
        assert len(group) == 2
        heads = weights_by_hand(losses_of(run, models, peer), group, 4.0)
        bodies = weights_by_hand(losses_of(run, under_own_head(models, peer), peer), group, 4.0)
        assert heads != bodies
        expected = in_parts(mixture(models, bodies, peer), mixture(models, heads, peer))
        check_in_use(run, models, peer, expected)


def test_body_and_head_may_be_judged_together(small_simulation: Build) -> None:
    run, models = started(small_simulation, Kin(peers=3, kappa=4.0, refuse=False, apart=False))
    run.step()
    for peer in range(4):
        group = [j for j in range(4) if j != peer]
        weights = weights_by_hand(losses_of(run, models, peer), group, 4.0)
        check_in_use(run, models, peer, mixture(models, weights, peer))


def test_the_head_of_who_is_worse_than_the_untrained_model_is_refused(small_simulation: Build) -> None:
    run, models = started(small_simulation, Kin(peers=3, kappa=4.0))
    run.step()
    refused = 0
    for peer in range(4):
        losses, group = losses_of(run, models, peer), [j for j in range(4) if j != peer]
        heads = weights_by_hand(losses, group, 4.0)
        heads = {j: w for j, w in heads.items() if losses[j] < losses[peer]}  # its own is still untrained
        refused += 3 - len(heads)
        bodies = weights_by_hand(losses_of(run, under_own_head(models, peer), peer), group, 4.0)
        expected = in_parts(mixture(models, bodies, peer), mixture(models, heads, peer))
        check_in_use(run, models, peer, expected)
    assert 0 < refused < 12


def test_the_model_in_use_is_a_running_mean_over_rounds(small_simulation: Build) -> None:
    """A round counts half of the next one."""
    still = small_simulation(Kin(peers=3, smooth=0.0), "full", sizes=SIZES, training=Training(steps=2))
    mean = small_simulation(Kin(peers=3, smooth=0.5), "full", sizes=SIZES, training=Training(steps=2))
    parts = []
    for _ in range(3):
        still.step()
        mean.step()
        parts.append(dict(still.personal()))
    for name, value in mean.personal().items():
        expected = (0.25 * parts[0][name] + 0.5 * parts[1][name] + parts[2][name]) / 1.75
        torch.testing.assert_close(value, expected)
        assert torch.equal(mean.blocks[0].state.params[name], still.blocks[0].state.params[name])


def test_friends_send_a_sealed_sum(small_simulation: Build) -> None:
    """In the second round; with kappa 0 all weigh the same, and nobody is seen again."""
    run, models = started(small_simulation, Kin(peers=3, kappa=0.0, refuse=False, smooth=0.0))
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
    assert run.blocks[0].state.looks.sum(1).tolist() == [3] * 4
    for peer in range(4):
        others = {j: 1.0 for j in range(4) if j != peer}
        check_in_use(run, models, peer, mixture(models, others, peer))


def test_nobody_is_alone_in_a_sum_and_nobody_is_sealed_for_ever(small_simulation: Build) -> None:
    alone, _ = started(small_simulation, Kin(peers=1, refuse=False))
    for _ in range(3):
        alone.step()
    assert alone.blocks[0].state.looks.sum(1).tolist() == [3] * 4
    run, _ = started(small_simulation, Kin(peers=3, kappa=0.0, refuse=False, memory=0.6))
    counts = []
    for _ in range(5):
        run.step()
        counts.append(int(run.blocks[0].state.looks[0].sum()))
    assert counts == [3, 3, 3, 6, 6]  # a look counts 1, then 0.6, then 0.36, which is less than a half
    opened, _ = started(small_simulation, Kin(peers=3, kappa=0.0, refuse=False, private="never"))
    for _ in range(3):
        opened.step()
    assert opened.blocks[0].state.looks.sum(1).tolist() == [9] * 4


def test_validation_data_choose_among_mixed_blended_and_own(small_simulation: Build) -> None:
    """The candidate with the least validation loss is in use, and the next round starts as it says."""
    run, models = started(small_simulation, Kin(peers=3, refuse=False, margin=0.0), validation=8)
    run.step()
    state: KinState = run.blocks[0].state
    for peer in range(4):
        group = [j for j in range(4) if j != peer]
        heads = weights_by_hand(losses_of(run, models, peer), group, 3.0)
        bodies = weights_by_hand(losses_of(run, under_own_head(models, peer), peer), group, 3.0)
        mixed = in_parts(mixture(models, bodies, peer), mixture(models, heads, peer))
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


def test_whom_nobody_can_reach_trains_alone_bit_for_bit() -> None:
    """Training is Local's; in use is the mean over rounds."""
    alone = {**HOW, "topology": "erdos-renyi(0)"}
    runs = [
        coterie.simulate(name, data=opposed(4), rounds=5, training={"lr": 0.5, "epochs": 3}, **alone)
        for name in ("kin(smooth=0)", "local")
    ]
    for name, value in runs[1].model(0).items():
        assert torch.equal(runs[0].model(0)[name], value)


def test_an_opponents_head_is_refused() -> None:
    """With one peer of each opinion; bodies are mixed, and nobody is worse off than alone."""
    runs = [
        coterie.simulate(name, data=opposed(2), rounds=5, training={"lr": 0.5, "epochs": 3}, **HOW)
        for name in ("kin", "local")
    ]
    assert min(runs[0].personal_accuracy) >= min(runs[1].personal_accuracy)


def test_a_peer_shows_its_model_to_another_only_so_often(small_simulation: Build) -> None:
    """Whom it then knows to be good is asked for a sealed sum; the others are not asked."""
    run, _ = started(small_simulation, Kin(peers=3, kappa=0.0, refuse=False, memory=0.5, shows=2))
    sent = []
    for _ in range(9):
        traffic = run.step().traffic
        sent.append([len(traffic[1].senders), len(traffic[3].senders)])
    # a look counts 1, 0.5 and then less than a half: it is renewed in the fourth round, and never again
    assert sent == [[12, 0], [0, 12], [0, 12], [12, 0], *[[0, 12]] * 5]
    state: KinState = run.blocks[0].state
    assert state.looks.max() == 2
    assert torch.equal(state.looks, state.shown.T)


def test_who_asks_too_often_gets_no_model(small_simulation: Build) -> None:
    """The one who shows counts itself, and does not rely on those who ask."""
    run, _ = started(small_simulation, Kin(peers=3, refuse=False, private="never", shows=1))
    run.step()
    block = run.blocks[0]
    block.state = replace(block.state, looks=torch.zeros_like(block.state.looks))  # as a liar would have it
    again = run.step()
    assert [len(traffic.senders) for traffic in again.traffic] == [12, 0, 0, 0]


def test_all_sealed_members_count_as_the_mean_of_their_sum(small_simulation: Build) -> None:
    run, models = started(small_simulation, Kin(peers=2, kappa=4.0, refuse=False, private="always"))
    first = run.step()
    assert [len(traffic.senders) for traffic in first.traffic] == [0, 0, 8, 8]
    state: KinState = run.blocks[0].state
    assert state.looks.sum() == 0
    for peer in range(4):
        group = (state.known.number[peer] > 0).nonzero().flatten().tolist()
        assert len(group) == 2
        mean = by_hand.mean(*(models[j] for j in group))
        for known, model in (
            (state.known, mean),
            (state.bodies, under_own_head([mean, *models], 1 + peer)[0]),
        ):
            loss = losses_of(run, [model], peer)[0]
            assert known.mean[peer, group].tolist() == pytest.approx([loss, loss])
        check_in_use(run, models, peer, mixture(models, dict.fromkeys(group, 1.0), peer))


def test_all_sealed_needs_one_network() -> None:
    table = {"algorithm": "kin(private=always)", "data": "digits", "models": {"mlp(8)": "0-1"}, "peers": 4}
    with pytest.raises(ConfigError, match="needs the same model at all peers"):
        resolve(table)
    assert resolve({**table, "algorithm": "kin"}).models


def test_the_result_says_how_many_models_were_seen_in_the_clear() -> None:
    run = coterie.simulate("kin(private=never,peers=2)", data=opposed(4), rounds=3, **HOW)
    assert run.result()["seen_in_clear_per_peer"] == {"mean": 6.0, "min": 6.0, "max": 6.0}
    sealed = coterie.simulate("kin(private=always)", data=opposed(4), rounds=3, **HOW)
    assert sealed.result()["seen_in_clear_per_peer"] == {"mean": 0.0, "min": 0.0, "max": 0.0}
    uncounted = coterie.simulate("d-psgd", data=opposed(4), rounds=1, **HOW)
    assert uncounted.result()["seen_in_clear_per_peer"] is None


def test_it_finds_those_of_its_opinion() -> None:
    run = coterie.simulate("kin", data=opposed(8), rounds=8, training={"lr": 0.5, "epochs": 3}, **HOW)
    weights = run.collaboration
    assert weights is not None
    same = torch.arange(8)[:, None] % 2 == torch.arange(8) % 2
    same.fill_diagonal_(False)
    others = torch.arange(8)[:, None] % 2 != torch.arange(8) % 2
    assert float(weights[same].mean()) > 10 * float(weights[others].mean())


@pytest.mark.parametrize(
    "settings",
    [
        {"peers": 0},
        {"kappa": -1.0},
        {"explore": -0.1},
        {"memory": 0.0},
        {"margin": -0.1},
        {"smooth": 1.1},
        {"shows": -1},
        {"private": "always", "peers": 1},
    ],
)
def test_settings_that_cannot_be(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Kin(**settings)
