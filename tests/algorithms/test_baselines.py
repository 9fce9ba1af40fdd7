"""Local, gossip FedAvg, D-PSGD, DFedAvgM, Random, Oracle, FedAvg and FedProx against their equations.

The model is softmax regression, whose gradient X^T (P - Y) / n is written out in NumPy; a batch holds all
of a peer's samples, so that one epoch is one exact gradient step.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from coterie.algorithms.d_psgd import DPSGD
from coterie.algorithms.dac import DAC, DACVar
from coterie.algorithms.dfedavgm import DFedAvgM
from coterie.algorithms.fedavg import FedAvg
from coterie.algorithms.fedprox import FedProx
from coterie.algorithms.gossip_fedavg import GossipFedAvg
from coterie.algorithms.local import Local
from coterie.algorithms.random_gossip import Oracle, RandomGossip
from coterie.data import Federation, from_peers
from coterie.errors import ConfigError
from coterie.learning import Executor, Workers
from coterie.protocol import Algorithm, Params
from coterie.simulation import RoundRecord, Simulation
from coterie.topology import Topology, make
from coterie.training import Training

Array = NDArray[np.float64]
Theta = tuple[Array, Array]  # weights (classes, features) and biases (classes,)
SIZES, FEATURES, CLASSES, LR = (4, 9, 6, 1, 7, 5), 3, 3, 0.5
PEERS = len(SIZES)
CLUSTERS = torch.tensor([0, 1, 0, 1, 0, 1])
STEP = Training(epochs=1, batch_size=100, lr=LR, clip=0.0)
BATCHES = Training(epochs=2, batch_size=3, lr=0.1, momentum=0.0, weight_decay=0.01)


def federation(validation: int = 0) -> Federation:
    rng = np.random.default_rng(12)
    peers = []
    for size in SIZES:
        parts = {}
        for part, n in (("train", size), ("test", 4), ("validation", validation)):
            y = rng.integers(0, CLASSES, n)
            if n:
                parts[part] = (rng.normal(size=(n, FEATURES)) + y[:, None], y)
        peers.append(parts)
    made = from_peers(peers, n_classes=CLASSES)
    return dataclasses.replace(made, x=made.x.double(), clusters=CLUSTERS)


def linear(seed: int = 0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(FEATURES, CLASSES)).double()


Maker = Callable[..., Simulation]


@pytest.fixture(scope="module")
def simulation() -> Iterator[Maker]:
    with Workers(1) as workers:

        def build(
            algorithm: Algorithm[Any],
            topology: str | Topology = "ring",
            training: Training = STEP,
            *,
            data: Federation | None = None,
            independent: bool = False,
        ) -> Simulation:
            module = linear()
            return Simulation(
                algorithm=algorithm,
                federation=data or federation(),
                module=module,
                topology=topology if isinstance(topology, Topology) else make(topology, peers=PEERS, seed=3),
                training=training,
                executor=Executor("stacked", module, workers),
                seed=1,
                rounds=20,
                own_module=linear if independent else None,
            )

        yield build


# The equations in NumPy


def gradient(theta: Theta, x: Array, y: NDArray[np.int64]) -> Theta:
    logits = x @ theta[0].T + theta[1]
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    error = (p - np.eye(CLASSES)[y]) / len(y)
    return error.T @ x, error.sum(0)


def samples(peer: int) -> tuple[Array, NDArray[np.int64]]:
    data = federation()
    index = data.train.of(peer)
    return data.x[index].numpy(), data.y[index].numpy()


def descended(theta: Theta, peer: int, lr: float = LR) -> Theta:
    g = gradient(theta, *samples(peer))
    return theta[0] - lr * g[0], theta[1] - lr * g[1]


def theta_of(params: Params, row: int) -> Theta:
    return params["0.weight"][row].numpy(), params["0.bias"][row].numpy()


def initial(peer: int) -> Theta:
    """Every peer starts from weights of its own."""
    tree = dict(linear(peer).named_parameters())
    return tree["0.weight"].detach().numpy(), tree["0.bias"].detach().numpy()


def mean(thetas: list[Theta], weights: list[float]) -> Theta:
    total = sum(weights)
    return (
        sum(w * t[0] for w, t in zip(weights, thetas, strict=True)) / total,
        sum(w * t[1] for w, t in zip(weights, thetas, strict=True)) / total,
    )


def assert_theta(params: Params, row: int, expected: Theta) -> None:
    found = theta_of(params, row)
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-7, atol=1e-7)
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-7, atol=1e-7)


def same_bits(a: Params, b: Params) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def after(simulation: Simulation, rounds: int) -> Params:
    for _ in range(rounds):
        simulation.step()
    return simulation.personal()


def carried(record: RoundRecord) -> list[tuple[int, int]]:
    """(sender, receiver) of every message with a payload."""
    return [
        (int(s), int(r))
        for traffic in record.traffic
        for s, r, size in zip(traffic.senders, traffic.receivers, traffic.bytes, strict=True)
        if size
    ]


# One round by hand


def test_local_is_gradient_descent_and_silence(simulation: Maker) -> None:
    s = simulation(Local(), "full", independent=True)
    record = s.step()
    for peer in range(PEERS):
        assert_theta(s.personal(), peer, descended(initial(peer), peer))
    assert record.traffic == []
    assert int(s.totals.messages_sent.sum()) == 0
    both = record.evaluations
    assert torch.equal(*(both[p].metrics["accuracy"] for p in ("after_local", "after_mixing")))


@pytest.mark.parametrize("mixing", ["uniform", "metropolis"])
def test_d_psgd_steps_then_mixes(simulation: Maker, mixing: Any) -> None:
    s = simulation(DPSGD(mixing=mixing), "erdos-renyi(0.5)", independent=True)
    a = s.topology.graph(0).adjacency().numpy()
    degree = a.sum(1)
    assert len(set(degree)) > 1, "the two schemes must differ here"
    s.step()
    stepped = [descended(initial(peer), peer) for peer in range(PEERS)]
    for i in range(PEERS):
        weights = [0.0] * PEERS
        for j in np.flatnonzero(a[i]):
            weights[j] = 1 / (1 + (degree[i] if mixing == "uniform" else max(degree[i], degree[j])))
        weights[i] = 1 - sum(weights)
        assert_theta(s.personal(), i, mean(stepped, weights))


def test_gossip_fedavg_weighs_by_samples(simulation: Maker) -> None:
    s = simulation(GossipFedAvg(), "ring", independent=True)
    s.step()
    stepped = [descended(initial(peer), peer) for peer in range(PEERS)]
    for i in range(PEERS):
        group = [(i - 1) % PEERS, i, (i + 1) % PEERS]
        expected = mean([stepped[j] for j in group], [SIZES[j] for j in group])
        assert_theta(s.personal(), i, expected)


def test_two_points_of_a_round_are_before_and_after_mixing(simulation: Maker) -> None:
    """Checked on the loss of softmax regression by hand."""
    s = simulation(DPSGD(), "ring", independent=True)
    record = s.step()
    data = federation()
    stepped = [descended(initial(peer), peer) for peer in range(PEERS)]
    for i in range(PEERS):
        mixed = mean([stepped[j] for j in ((i - 1) % PEERS, i, (i + 1) % PEERS)], [1, 1, 1])
        x, y = data.x[data.test.of(i)].numpy(), data.y[data.test.of(i)].numpy()
        for point, (w, b) in (("after_local", stepped[i]), ("after_mixing", mixed)):
            logits = x @ w.T + b
            loss = (np.log(np.exp(logits).sum(1)) - logits[np.arange(len(y)), y]).mean()
            assert float(record.evaluations[point].loss[i]) == pytest.approx(loss, rel=1e-5)
            accuracy = (logits.argmax(1) == y).mean()
            assert float(record.evaluations[point].metrics["accuracy"][i]) == pytest.approx(accuracy)


@pytest.mark.parametrize("algorithm", [RandomGossip(peers=2), Oracle(peers=2)], ids=["random", "oracle"])
def test_random_and_oracle_pull_average_then_train(simulation: Maker, algorithm: RandomGossip) -> None:
    s = simulation(algorithm, "full", independent=True)
    start = [descended(initial(peer), peer) for peer in range(PEERS)]  # one local phase comes first
    for peer in range(PEERS):
        assert_theta(s.personal(), peer, start[peer])
    messages = carried(s.step())
    for i in range(PEERS):
        group = [i, *(sender for sender, receiver in messages if receiver == i)]
        assert len(group) == len(set(group)) == 3
        mixed = mean([start[j] for j in group], [SIZES[j] for j in group])
        assert_theta(s.personal(), i, descended(mixed, i))


def test_fedavg_averages_what_the_clients_trained_from_its_model(simulation: Maker) -> None:
    s = simulation(FedAvg(), "star")
    w = initial(0)
    for _ in range(2):
        s.step()
        w = mean([descended(w, i) for i in range(PEERS)], list(SIZES))
    for peer in range(PEERS):
        assert_theta(s.personal(), peer, w)


def test_fedprox_pulls_towards_the_received_model(simulation: Maker) -> None:
    """Two local steps; the first starts at w, where the pull is zero."""
    mu, w = 0.8, initial(0)
    s = simulation(FedProx(mu=mu), "star", dataclasses.replace(STEP, epochs=2))
    s.step()
    trained = []
    for i in range(PEERS):
        one = descended(w, i)
        g = gradient(one, *samples(i))
        trained.append(tuple(one[k] - LR * (g[k] + mu * (one[k] - w[k])) for k in range(2)))
    expected = mean(trained, list(SIZES))  # type: ignore[arg-type]
    for peer in range(PEERS):
        assert_theta(s.personal(), peer, expected)


def test_fedavg_with_half_of_the_clients(simulation: Maker) -> None:
    """Only they hear from the hub, train and answer; the others are not even asked."""
    s = simulation(FedAvg(participation=0.5), "star")
    w, seen = initial(0), set()
    for number in range(6):
        before = {name: value.clone() for name, value in s.blocks[0].state.params.items()}
        record = s.step(evaluate=False)
        clients = sorted(r for sender, r in carried(record) if sender == PEERS)
        assert len(clients) == 3
        assert sorted(sender for sender, r in carried(record) if r == PEERS) == clients
        seen |= set(clients)
        after_round = s.blocks[0].state.params
        for peer in set(range(PEERS)) - set(clients):
            assert same_bits(
                {k: v[peer] for k, v in before.items()}, {k: v[peer] for k, v in after_round.items()}
            )
            assert bool(record.train_loss[peer].isnan()), number
        w = mean([descended(w, i) for i in clients], [SIZES[i] for i in clients])
        assert_theta(after_round, PEERS, w)
    assert seen == set(range(PEERS))


@pytest.mark.parametrize("share", [0.0, -0.5, 1.5, float("nan")])
def test_impossible_participation_is_refused(share: float) -> None:
    with pytest.raises(ConfigError, match="participation"):
        FedAvg(participation=share)


def test_heavy_ball(simulation: Maker) -> None:
    """y^{k+1} = y^k - lr g(y^k) + m (y^k - y^{k-1}), y^{-1} = y^0, starting afresh in every round."""
    m, s = 0.7, simulation(DFedAvgM(momentum=0.7), "ring", dataclasses.replace(STEP, epochs=4))
    models = [initial(0)] * PEERS
    for _ in range(2):
        s.step()
        stepped = []
        for i in range(PEERS):
            previous = now = models[i]
            for _ in range(4):
                g = gradient(now, *samples(i))
                following = tuple(now[k] - LR * g[k] + m * (now[k] - previous[k]) for k in range(2))
                previous, now = now, following  # type: ignore[assignment]
            stepped.append(now)
        models = [
            mean([stepped[j] for j in ((i - 1) % PEERS, i, (i + 1) % PEERS)], [1, 1, 1]) for i in range(PEERS)
        ]
    for i in range(PEERS):
        assert_theta(s.personal(), i, models[i])


# Limiting cases


@pytest.mark.parametrize("topology", ["ring", "erdos-renyi(0.5)"])
def test_dfedavgm_without_momentum_is_d_psgd_bit_for_bit(simulation: Maker, topology: str) -> None:
    for mixing in ("uniform", "metropolis"):
        ours = simulation(DFedAvgM(mixing=mixing, momentum=0.0), topology, BATCHES)  # type: ignore[arg-type]
        theirs = simulation(DPSGD(mixing=mixing), topology, BATCHES)  # type: ignore[arg-type]
        assert same_bits(after(ours, 3), after(theirs, 3))


def test_fedprox_without_pull_is_fedavg_bit_for_bit(simulation: Maker) -> None:
    ours = simulation(FedProx(mu=0.0, participation=0.5), "star", BATCHES)
    assert same_bits(after(ours, 3), after(simulation(FedAvg(participation=0.5), "star", BATCHES), 3))


def test_d_psgd_without_links_is_local_bit_for_bit(simulation: Maker) -> None:
    alone = make([], peers=PEERS, seed=0)
    ours = after(simulation(DPSGD(), alone, BATCHES), 3)
    assert same_bits(ours, after(simulation(Local(), alone, BATCHES), 3))


MIXING: list[tuple[Algorithm[Any], str]] = [
    (DPSGD(), "erdos-renyi(0.5)"),
    (DPSGD(mixing="metropolis"), "erdos-renyi(0.5)"),
    (DFedAvgM(), "directed(2)"),
    (GossipFedAvg(), "erdos-renyi(0.5)"),
    (RandomGossip(), "full"),
    (Oracle(), "full"),
    (FedAvg(participation=0.5), "star"),
    (FedProx(mu=3.0), "star"),
]
NO_LEARNING = Training(lr=0.0)


@pytest.mark.parametrize(("algorithm", "topology"), MIXING, ids=lambda v: type(v).__name__)
def test_equal_models_are_a_fixed_point(simulation: Maker, algorithm: Algorithm[Any], topology: str) -> None:
    s = simulation(algorithm, topology, NO_LEARNING)
    after(s, 3)
    for peer in range(PEERS):
        assert_theta(s.personal(), peer, initial(0))


def test_metropolis_keeps_the_mean_over_peers_and_uniform_does_not(simulation: Maker) -> None:
    def mean_model(params: Params) -> Tensor:
        return torch.cat([value.mean(0).flatten() for value in params.values()])

    drift = {}
    for mixing in ("metropolis", "uniform"):
        s = simulation(DPSGD(mixing=mixing), "erdos-renyi(0.5)", NO_LEARNING, independent=True)  # type: ignore[arg-type]
        start = mean_model(s.personal())
        end = after(s, 8)
        drift[mixing] = float((mean_model(end) - start).abs().max())
        spread = float(end["0.weight"].std(0).max())
        assert spread < 0.1 * float(s.algorithm.init(s.blocks[0].node).params["0.weight"].std(0).max())
    assert drift["metropolis"] < 1e-6
    assert drift["uniform"] > 1e-3


def test_oracle_never_hears_from_another_cluster(simulation: Maker) -> None:
    s = simulation(Oracle(peers=3), "full")
    after(s, 5)
    senders, receivers = s.totals.links % PEERS, s.totals.links // PEERS
    assert torch.equal(CLUSTERS[senders], CLUSTERS[receivers])
    # Clusters of three: both others in every round.
    assert torch.bincount(receivers, s.totals.link_messages.double(), PEERS).tolist() == [10.0] * PEERS


def test_oracle_on_a_star_leaves_the_hub_out(simulation: Maker) -> None:
    s = simulation(Oracle(peers=3), "star")
    after(s, 2)
    assert int(s.totals.bytes_sent.sum()) == 0


@pytest.mark.parametrize(("topology", "m"), [("full", 2), ("ring", 1)])
def test_random_draws_distinct_peers_uniformly(simulation: Maker, topology: str, m: int) -> None:
    rounds = 150
    s = simulation(RandomGossip(peers=m), topology, Training(lr=0.0, steps=0))
    reach = s.topology.graph(0).adjacency()
    for _ in range(rounds):
        messages = carried(s.step(evaluate=False))
        assert len(messages) == len(set(messages)) == PEERS * m
    counts = torch.zeros(PEERS, PEERS)
    counts[s.totals.links // PEERS, s.totals.links % PEERS] = s.totals.link_messages.float()
    assert not counts[~reach].any(), "only from those that can reach it"
    degree = int(reach.sum(1)[0])
    expected = rounds * m / degree
    # m of `degree` without replacement: a count has the variance of m/degree (1 - m/degree) Bernoulli draws.
    chi = (((counts[reach] - expected) ** 2).sum() / (expected * (1 - m / degree))).item()
    freedom = PEERS * (degree - 1)
    scaled = chi * (degree - 1) / degree
    assert abs(scaled - freedom) < 4 * np.sqrt(2 * freedom)


def test_random_takes_everyone_when_there_are_too_few(simulation: Maker) -> None:
    s = simulation(RandomGossip(peers=5), "ring")
    messages = carried(s.step())
    assert sorted(messages) == sorted(
        (j % PEERS, i) for i in range(PEERS) for j in ((i - 1) % PEERS, (i + 1) % PEERS)
    )


@pytest.mark.parametrize(
    "wrong",
    [lambda: RandomGossip(peers=0), lambda: Oracle(peers=-1), lambda: FedProx(mu=-0.1)],
    ids=["random-gossip", "oracle", "fedprox"],
)
def test_impossible_settings_are_refused(wrong: Callable[[], Any]) -> None:
    with pytest.raises(ConfigError, match="must be"):
        wrong()


@pytest.mark.parametrize(
    "algorithm",
    [RandomGossip(peers=1), Local(best=True), DAC(peers=1), DACVar(peers=1)],
    ids=["random-gossip", "local", "dac", "dac-var"],
)
def test_the_model_with_the_lowest_validation_loss_is_kept(
    simulation: Maker, algorithm: Algorithm[Any]
) -> None:
    """A learning rate that overshoots makes later models worse, for each peer at another time."""
    data = federation(validation=6)
    s = simulation(algorithm, "full", Training(lr=3.0, batch_size=2, clip=0.0), data=data)
    node = s.blocks[0].node

    def entropy(params: Params) -> Tensor:
        return node.evaluate(params, "validation").loss

    best, losses = entropy(s.blocks[0].state.params), [entropy(s.blocks[0].state.params)]
    kept = {name: value.clone() for name, value in s.blocks[0].state.params.items()}
    for _ in range(8):
        s.step()
        current = s.blocks[0].state.params
        losses.append(entropy(current))
        for peer in range(PEERS):
            if losses[-1][peer] < best[peer]:
                best[peer] = losses[-1][peer]
                for name in kept:
                    kept[name][peer] = current[name][peer]
        assert same_bits(kept, s.personal())
    assert not bool((torch.stack(losses).argmin(0) == 8).all()), "the last model must not be everyone's best"


@pytest.mark.parametrize("algorithm", [RandomGossip(), Local(best=True), Local()], ids=["random", "best", ""])
def test_without_validation_data_the_latest_model_is_kept(
    simulation: Maker, algorithm: Algorithm[Any]
) -> None:
    s = simulation(algorithm, "full", BATCHES)
    s.step()
    assert same_bits(s.personal(), {n: v[:PEERS] for n, v in s.blocks[0].state.params.items()})
