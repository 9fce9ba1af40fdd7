"""PPDL and PPDL-var: what they exchange, and single steps worked out by hand (the bandit: tests/learning)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from coterie.algorithms.ppdl import PPDL, PPDLVar
from coterie.data import Federation, from_peers
from coterie.errors import ConfigError, SealedError
from coterie.learning import Executor, Workers
from coterie.protocol import Algorithm, Inbox
from coterie.simulation import Simulation
from coterie.topology import MessageLoss, Topology, make
from coterie.training import Training

FEATURES, CLASSES = 3, 3
STILL = Training(epochs=0)
Maker = Callable[..., Simulation]


def federation(peers: int, size: int = 6, validation: int = 8) -> Federation:
    rng = np.random.default_rng(5)
    datasets = []
    for peer in range(peers):
        parts = {}
        for part, n in (("train", size + peer), ("validation", validation), ("test", 4)):
            y = rng.integers(0, CLASSES, n)
            if n:
                parts[part] = (rng.normal(size=(n, FEATURES)) + y[:, None], y)
        datasets.append(parts)
    made = from_peers(datasets, n_classes=CLASSES)
    return dataclasses.replace(made, x=made.x.double())


def linear(seed: int = 0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(FEATURES, CLASSES)).double()


@pytest.fixture(scope="module")
def simulation() -> Iterator[Maker]:
    with Workers(1) as workers:

        def build(
            algorithm: Algorithm[Any],
            topology: str | Topology = "full",
            training: Training = STILL,
            peers: int = 6,
            validation: int = 8,
        ) -> Simulation:
            net = linear()
            return Simulation(
                algorithm=algorithm,
                federation=federation(peers, validation=validation),
                module=net,
                topology=make(topology, peers=peers, seed=2) if isinstance(topology, str) else topology,
                training=training,
                executor=Executor("stacked", net, workers),
                seed=3,
                rounds=12,
                own_module=linear,
            )

        yield build


def weights_now(simulation: Simulation) -> Tensor:
    return simulation.blocks[0].state.params["0.weight"]


# PPDL


@pytest.mark.parametrize("algorithm", [PPDL(), PPDLVar(), PPDL(peers=2)])
def test_the_group_is_averaged_with_own_model_by_numbers_of_samples(
    algorithm: PPDL, simulation: Maker
) -> None:
    run = simulation(algorithm)
    before, n = weights_now(run).clone(), torch.arange(6, 12).double()
    group = run.step().diagnostics["group"]
    assert group.shape == (6, algorithm.peers)
    for peer in range(6):
        members = [peer, *group[peer].tolist()]
        assert len(set(members)) == algorithm.peers + 1
        mean = (n[members, None, None] * before[members]).sum(0) / n[members].sum()
        torch.testing.assert_close(weights_now(run)[peer], mean)


def test_equal_samples_give_every_one_of_four_a_quarter(simulation: Maker) -> None:
    run = simulation(PPDL())
    run.blocks[0].node.federation = dataclasses.replace(
        federation(6), train=dataclasses.replace(federation(6).train, offsets=torch.arange(7) * 6)
    )
    before = weights_now(run).clone()
    group = run.step().diagnostics["group"]
    for peer in range(6):
        torch.testing.assert_close(weights_now(run)[peer], before[[peer, *group[peer].tolist()]].mean(0))


def test_the_reward_is_the_validation_accuracy_before_training(simulation: Maker) -> None:
    run = simulation(PPDL(q=0.2), training=Training(epochs=3, lr=0.5))
    record = run.step()
    state, node = run.blocks[0].state, run.blocks[0].node
    mixed = node.evaluate(node.shown["after_mixing"], "validation").metrics["accuracy"]
    trained = node.evaluate(state.params, "validation").metrics["accuracy"]
    assert not torch.equal(mixed, trained)
    torch.testing.assert_close(state.bandit.pseudo[:, 0, 3], mixed.double())
    torch.testing.assert_close(state.bandit.pseudo[:, 0, 2], (mixed.double() + 0.1).clamp(max=1))
    torch.testing.assert_close(state.bandit.losses[:, 0], (1 - mixed.double()) * 10)  # C(5, 3) arms
    assert torch.equal(record.diagnostics["competitive_arms"], torch.full((6,), 10))


def test_reward_baseline_subtracts_the_accuracy_before_averaging(simulation: Maker) -> None:
    run = simulation(PPDL(reward_baseline=True))
    state, node = run.blocks[0].state, run.blocks[0].node
    before = node.evaluate(state.params, "validation").metrics["accuracy"]
    run.step()
    after = node.evaluate(run.blocks[0].state.params, "validation").metrics["accuracy"]
    torch.testing.assert_close(run.blocks[0].state.bandit.pseudo[:, 0, 3], (after - before).double())


def one_step(start: Tensor, bias: Tensor, x: Any, y: Any, lr: float) -> Any:
    """Softmax regression's weights after one gradient step on all samples, in NumPy."""
    z = x @ start.numpy().T + bias.numpy()
    p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    return start.numpy() - lr * (p - np.eye(CLASSES)[y]).T @ x / len(y)


@pytest.mark.parametrize("algorithm", [PPDL(), PPDLVar()])
def test_one_local_training_phase_precedes_the_first_round(algorithm: PPDL, simulation: Maker) -> None:
    run = simulation(algorithm, training=Training(epochs=1, batch_size=1000, lr=0.1, clip=0.0))
    start, data = run.blocks[0].node.initial(), run.federation
    for peer in range(6):
        mine = data.train.of(peer)
        x, y = data.x[mine].numpy(), data.y[mine].numpy()
        expected = one_step(start["0.weight"][peer], start["0.bias"][peer], x, y, 0.1)
        np.testing.assert_allclose(weights_now(run)[peer], expected, rtol=1e-9, atol=1e-12)


def test_rounds_of_the_variant_use_q_of_their_time(simulation: Maker) -> None:
    """What each round adds for arms that share two nodes with the pulled one: min(r + q(t) / 2, 1)."""
    run = simulation(PPDLVar())
    for q in (0.5, 0.5, 0.43 * 0.9 + 0.07, 0.43 * 0.81 + 0.07):
        before = run.blocks[0].state.bandit.pseudo.sum(1)
        run.step(evaluate=False)
        added = run.blocks[0].state.bandit.pseudo.sum(1) - before  # (peers, overlap)
        reward = added[:, 3]
        assert bool((reward + q / 2 < 1).any())
        torch.testing.assert_close(added[:, 2], (reward + q / 2).clamp(max=1))


def test_q_of_the_variant() -> None:
    values = [PPDLVar().q_in(t) for t in range(3)]
    assert values == pytest.approx([0.5, 0.5, 0.43 * 0.9 + 0.07])
    assert PPDLVar().q_in(200) == pytest.approx(0.07, abs=1e-8)
    assert PPDL(q=0.3).q_in(17) == 0.3


def test_the_best_checkpoint_is_personal(simulation: Maker) -> None:
    run = simulation(PPDL(), training=Training(epochs=1, lr=3.0))
    seen = [run.blocks[0].node.evaluate(run.blocks[0].state.params, "validation").loss]
    for _ in range(4):
        run.step()
        seen.append(run.blocks[0].node.evaluate(run.blocks[0].state.params, "validation").loss)
    kept = run.blocks[0].node.evaluate(run.personal(), "validation").loss
    torch.testing.assert_close(kept, torch.stack(seen).amin(0))


def test_few_neighbours_are_all_taken_and_an_isolated_node_goes_on(simulation: Maker) -> None:
    run = simulation(PPDL(), topology="ring")
    record = run.step()
    for peer in range(6):
        ring = sorted([(peer - 1) % 6, (peer + 1) % 6])
        assert record.diagnostics["group"][peer].tolist() == [*ring, -1]
    alone = simulation(PPDL(), peers=1)
    before = weights_now(alone).clone()
    assert alone.step().diagnostics["group"].tolist() == [[-1, -1, -1]]
    assert torch.equal(weights_now(alone), before)


def test_incomplete_groups_teach_nothing(simulation: Maker) -> None:
    run = simulation(PPDL(), topology=MessageLoss(make("full", peers=6, seed=2), 1.0, 0))
    before = weights_now(run).clone()
    run.step()
    assert torch.equal(weights_now(run), before)
    assert int(run.blocks[0].state.bandit.pulls.sum()) == 0


def test_a_group_of_which_one_is_missing_teaches_nothing(simulation: Maker) -> None:
    run = simulation(PPDL(), topology=MessageLoss(make("full", peers=6, seed=2), 0.2, 0))
    answers = run.step().traffic[-1]
    arrived = torch.bincount(answers.receivers[answers.delivered], minlength=6)
    assert {2, 3} <= set(arrived.tolist()), "some peers must hear from a part of their group, some from all"
    assert torch.equal(run.blocks[0].state.bandit.pulls.sum(1), (arrived == 3).int())


def test_a_changing_graph_restricts_the_arms(simulation: Maker) -> None:
    topology = make("random-regular(4,every=1)", peers=10, seed=1)
    run = simulation(PPDL(), topology=topology, peers=10)
    for t in range(10):
        group = run.step().diagnostics["group"]
        reach = topology.graph(t).adjacency()
        for peer in range(10):
            assert bool(reach[peer, group[peer]].all())


def test_ppdl_asks_for_validation_data(simulation: Maker) -> None:
    with pytest.raises(ConfigError, match=r"splitting\.validation"):
        simulation(PPDL(), validation=0)


def test_ppdl_uses_only_sealed_sums(simulation: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A payload is never opened alone: single messages and weights raise in the second exchange."""
    sealed: list[bool] = []
    original = Inbox.sum

    def watched(self: Inbox, weights: Tensor | None = None) -> Any:
        sealed.append(self.sealed)
        return original(self, weights)

    def refuse(*_: Any) -> Any:
        raise SealedError("opened a message")

    monkeypatch.setattr(Inbox, "sum", watched)
    monkeypatch.setattr(Inbox, "map", refuse)
    monkeypatch.setattr(Inbox, "mean_of", refuse)
    simulation(PPDL()).step()
    assert sealed == [True]


@pytest.mark.parametrize(
    "make_it",
    [
        lambda: PPDL(peers=0),
        lambda: PPDL(q=-0.1),
        lambda: PPDLVar(q_last=0.6),
        lambda: PPDLVar(q_decay=0.0),
    ],
)
def test_impossible_settings_are_refused(make_it: Callable[[], Any]) -> None:
    with pytest.raises(ConfigError):
        make_it()
