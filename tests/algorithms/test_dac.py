"""DAC and DAC-var: scores, two hops and draws by hand, and one round in NumPy."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from coterie.algorithms.dac import DAC, DACState, DACVar
from coterie.algorithms.parts.selection import draw, probabilities, rescored
from coterie.algorithms.random_gossip import RandomGossip
from coterie.errors import ConfigError
from coterie.protocol import Links
from coterie.randomness import stream
from coterie.simulation import Simulation
from coterie.topology import MessageLoss, make
from coterie.training import Training

FEATURES, CLASSES, SIZES = 3, 2, (6, 7, 8, 1, 10, 11)
STILL = Training(epochs=0)
Maker = Callable[..., Simulation]


def linear(seed: int = 0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(FEATURES, CLASSES)).double()


def weights_now(simulation: Simulation) -> Tensor:
    return simulation.blocks[0].state.params["0.weight"]


def test_softmax_is_stable_and_unknown_nodes_stay_possible() -> None:
    scores = torch.tensor([[0.0, 1000.0, 0.0, 2.0]])
    possible = torch.tensor([[False, True, True, True]])
    p = probabilities(scores, possible, 30.0)
    assert bool(p.isfinite().all())
    assert float(p[0, 0]) == 0.0
    assert float(p[0, 1]) == pytest.approx(1.0)
    assert float(p[0, 2]) >= 0.9e-12
    even = probabilities(torch.tensor([[0.0, 0.1, 0.0, 0.2]]), possible, 5.0)[0, 1:]
    by_hand = np.exp([0.5, 0.0, 1.0])
    np.testing.assert_allclose(even.numpy(), by_hand / by_hand.sum(), rtol=1e-6)
    assert bool((probabilities(scores, possible & False, 30.0) == 0).all())


@dataclasses.dataclass
class OnlyRandom:
    """As much of a node as `draw` needs."""

    ids: Tensor

    def rng(self, purpose: str) -> Any:
        return stream(0, purpose, 0, self.ids)


def test_draws_follow_the_probabilities_without_replacement() -> None:
    """P(first a, then b) = p_a p_b / (1 - p_a); the chance that a set holds a node, by hand."""
    p, rows = torch.tensor([0.0, 0.5, 0.3, 0.2]).double(), 20_000
    links = draw(OnlyRandom(torch.arange(rows)), p.expand(rows, 4), 2)  # type: ignore[arg-type]
    assert len(links) == 2 * rows
    holds = torch.zeros(4).index_add_(0, links.ids, torch.ones(len(links))) / rows
    expected = [
        sum(p[a] * p[b] / (1 - p[a]) for a in (1, 2, 3) for b in (1, 2, 3) if a != b and node in (a, b))
        for node in range(4)
    ]
    np.testing.assert_allclose(holds.numpy(), [float(e) for e in expected], atol=0.015)
    few = draw(OnlyRandom(torch.arange(5)), torch.tensor([0.0, 1.0, 0.0]).double().expand(5, 3), 2)  # type: ignore[arg-type]
    assert few.ids.tolist() == [1] * 5


def test_two_hop_scores_come_from_the_most_similar_peer() -> None:
    """Row 0 (node 0) hears 1 (loss 0.5) and 2 (loss 0.25, closer); node 3 was sampled long ago."""
    scores = torch.tensor([[0.0, 0.0, 0.0, 9.0, 0.5, 0.0]])
    sampled = torch.tensor([[False, False, False, True, False, False]])
    heard = torch.tensor([[7.0, 0.0, 5.0, 1.0, 1.5, 6.0], [8.0, 4.0, 0.0, 2.0, 2.5, 0.0]])
    links = Links(torch.tensor([0, 0]), torch.tensor([1, 2]))
    for order in ([0, 1], [1, 0]):
        new, known = rescored(
            scores,
            sampled,
            Links(links.rows, links.ids[order]),
            torch.tensor([0.5, 0.25])[order],
            heard[order],
            torch.tensor([0]),
        )
        # self stays 0; 1 and 2 by their losses; 3 keeps its own score; 4 from 2; 5 from 1, as 2 knows nothing
        assert new.tolist() == [[0.0, 2.0, 4.0, 9.0, 2.5, 6.0]]
        assert known.tolist() == [[False, True, True, True, False, False]]
    assert scores[0, 1] == 0.0  # the given state is left alone


def test_a_loss_near_zero_is_floored() -> None:
    none = torch.zeros(1, 3)
    links = Links(torch.tensor([0]), torch.tensor([2]))
    new, _ = rescored(none, none > 0, links, torch.tensor([1e-9]), none, torch.tensor([0]))
    assert float(new[0, 2]) == pytest.approx(1000.0)
    nan, known = rescored(none, none > 0, links, torch.tensor([torch.nan]), none, torch.tensor([0]))
    assert not bool(nan.any() | known.any())


def test_a_round_of_dac_by_hand(small_simulation: Maker) -> None:
    run = small_simulation(
        DAC(peers=2), "full", sizes=SIZES, training=STILL, network=linear(), own_module=linear
    )
    before, n = weights_now(run).clone(), torch.tensor(SIZES).double()
    bias = run.blocks[0].state.params["0.bias"].clone()
    run.step()
    state: DACState = run.blocks[0].state
    data = run.federation
    for peer in range(6):
        heard = state.sampled[peer].nonzero().flatten().tolist()
        assert len(heard) == 2
        members = [peer, *heard]
        mean = (n[members, None, None] * before[members]).sum(0) / n[members].sum()
        torch.testing.assert_close(state.params["0.weight"][peer], mean)
        mine = data.train.index[data.train.offsets[peer] : data.train.offsets[peer + 1]]
        x, y = data.x[mine].numpy(), data.y[mine].numpy()
        for other in heard:
            z = x @ before[other].numpy().T + bias[other].numpy()
            loss = np.mean(np.log(np.exp(z).sum(1)) - z[np.arange(len(y)), y])
            assert float(state.scores[peer, other]) == pytest.approx(1 / loss, rel=1e-5)


def one_step(start: Tensor, bias: Tensor, x: Any, y: Any, lr: float) -> Any:
    """Softmax regression's weights after one gradient step on all samples, in NumPy."""
    z = x @ start.numpy().T + bias.numpy()
    p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    return start.numpy() - lr * (p - np.eye(CLASSES)[y]).T @ x / len(y)


@pytest.mark.parametrize("algorithm", [DAC(), DACVar()])
def test_one_local_training_phase_precedes_the_first_round(algorithm: DAC, small_simulation: Maker) -> None:
    run = small_simulation(algorithm, "full", sizes=SIZES, network=linear(), own_module=linear)
    start, data = run.blocks[0].node.initial(), run.federation
    for peer in range(6):
        mine = data.train.of(peer)
        x, y = data.x[mine].numpy(), data.y[mine].numpy()
        expected = one_step(start["0.weight"][peer], start["0.bias"][peer], x, y, 0.1)
        np.testing.assert_allclose(weights_now(run)[peer], expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("algorithm", "taus"),
    [
        (DAC(tau=7.0), [7.0, 7.0, 7.0]),
        (DACVar(tau=30.0), [1.0, 60 / (1 + np.exp(-0.2)) - 29, 60 / (1 + np.exp(-0.4)) - 29]),
    ],
)
def test_rounds_choose_with_tau_of_their_time(
    algorithm: DAC, taus: list[float], small_simulation: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = []

    def watched(scores: Tensor, possible: Tensor, tau: float) -> Tensor:
        used.append(tau)
        return probabilities(scores, possible, tau)

    monkeypatch.setattr("coterie.algorithms.dac.probabilities", watched)
    run = small_simulation(algorithm, "full", sizes=SIZES, training=STILL, network=linear())
    for _ in taus:
        run.step(evaluate=False)
    assert used == pytest.approx(taus)


def test_tau_of_the_variant() -> None:
    assert DACVar(tau=30).tau_in(0) == pytest.approx(1.0)
    assert DACVar(tau=30).tau_in(5) == pytest.approx(60 / (1 + np.exp(-1.0)) - 29)
    assert DACVar(tau=30).tau_in(300) == pytest.approx(31.0)


def test_dac_with_tau_zero_is_random_gossip_in_distribution(small_simulation: Maker) -> None:
    """All nodes are equally likely: over many rounds each is heard about equally often."""
    counts = []
    for algorithm in (DAC(peers=2, tau=0.0), RandomGossip(peers=2)):
        run = small_simulation(algorithm, "full", sizes=SIZES, training=STILL, network=linear())
        for _ in range(60):
            run.step(evaluate=False)
        counts.append(run.totals.link_messages)
    for count in counts:
        assert int(count.sum()) == 720
        assert float(((count - 24.0) ** 2 / 24).sum()) < 59.7  # chi-square, 30 links, p = 0.001


def test_an_isolated_node_keeps_its_model(small_simulation: Maker) -> None:
    run = small_simulation(
        DAC(), MessageLoss(make("full", peers=6, seed=2), 1.0, 0), sizes=SIZES, training=STILL
    )
    before = weights_now(run).clone()
    run.step()
    assert torch.equal(weights_now(run), before)
    assert not bool(run.blocks[0].state.sampled.any())


@pytest.mark.parametrize("settings", [{"peers": 0}, {"tau": -1.0}])
def test_impossible_settings_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        DAC(**settings)
