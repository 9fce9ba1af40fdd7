"""Graphs that change from round to round: directed, exponential, fading; churn and loss."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.errors import TopologyError
from coterie.topology import Churn, MessageLoss, make
from coterie.topology.random_graphs import Fading


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 60), st.data())
def test_directed_out_degree_is_exactly_k(peers, data):
    k = data.draw(st.integers(1, peers - 1))
    topology = make(f"directed({k})", peers=peers, seed=data.draw(st.integers(0, 9)))
    for t in range(3):
        assert (topology.graph(t).out_degree == k).all()


def test_directed_is_uniform_over_the_others():
    rounds, peers, k = 1000, 9, 3
    topology = make(f"directed({k})", peers=peers, seed=0)
    frequency = sum(topology.graph(t).adjacency().double() for t in range(rounds)) / rounds
    p = k / (peers - 1)
    off_diagonal = frequency[~torch.eye(peers, dtype=torch.bool)]
    assert ((off_diagonal - p).abs() < 5 * (p * (1 - p) / rounds) ** 0.5).all()


def test_directed_rounds_and_peers_draw_independently():
    """Unlike code that seeds by round + peer: (round 3, peer 5) and (round 4, peer 4) differ."""
    topology = make("directed(10)", peers=100, seed=0)
    draws = []
    for t in range(8):
        peer = 8 - t
        others = topology.graph(t).out_neighbours(peer)
        # Equal draws would be equal as ids, as hops from the peer, or as places among the others.
        places = others - (others > peer).long()
        draws.append(
            (set(others.tolist()), set((others - peer).remainder(100).tolist()), set(places.tolist()))
        )
    for one, other in itertools.combinations(draws, 2):
        assert all(a != b for a, b in zip(one, other, strict=True))


@settings(deadline=None)
@given(st.integers(1, 70))
def test_exponential_is_regular(peers):
    graph = make("exponential", peers=peers, seed=0).graph(0)
    powers = [2**j for j in range(10) if 2**j < peers]
    assert graph.out_neighbours(0).tolist() == powers
    assert (graph.in_degree == len(powers)).all()
    assert (graph.out_degree == len(powers)).all()
    one = make("exponential(one)", peers=peers, seed=0)
    for t in range(4):
        expected = [powers[t % len(powers)]] if powers else []
        assert one.graph(t).out_neighbours(0).tolist() == expected
        assert (one.graph(t).in_degree == len(expected)).all()


def test_one_peer_exponential_averages_exactly_in_log_n_rounds():
    """Known for n a power of two (Ying et al. 2021): the product of the log2(n) matrices is 1/n."""
    topology = make("exponential(one)", peers=16, seed=0)
    product = torch.eye(16)
    for t in range(4):
        half = (torch.eye(16) + topology.graph(t).adjacency()) / 2  # one share is sent, one stays at home
        product = half @ product
    torch.testing.assert_close(product, torch.full((16, 16), 1 / 16))


@pytest.mark.parametrize(("peers", "theta"), [(10, 0.588), (20, 1.335), (40, 2.054)])
def test_fading_reaches_k_peers_on_average(peers, theta):
    assert Fading(5).threshold(peers) == pytest.approx(theta, abs=5e-4)
    topology, rounds = make("fading(5)", peers=peers, seed=0), 400
    mean = sum(topology.graph(t).in_degree.double().mean().item() for t in range(rounds)) / rounds
    p = 5 / (peers - 1)
    # rounds * peers * (peers-1) / 2 independent links, each of which counts for two peers.
    sigma = 2 / peers * math.sqrt(peers * (peers - 1) / 2 * p * (1 - p) / rounds)
    assert abs(mean - 5) < 5 * sigma


def test_fading_may_isolate_a_peer():
    topology = make("fading(1)", peers=10, seed=0)
    assert any((topology.graph(t).in_degree == 0).any() for t in range(20))
    assert len(make("fading(5)", peers=1, seed=0).graph(0).senders) == 0
    assert len(make("fading(0)", peers=9, seed=0).graph(0).senders) == 0


def test_churn_rate_and_purity():
    rate, rounds, peers = 0.3, 200, 50
    churn = Churn(make("ring", peers=peers, seed=0), rate, seed=1)
    offline = sum((~churn.online(t)).sum().item() for t in range(rounds))
    draws = rounds * peers
    assert abs(offline - rate * draws) < 5 * math.sqrt(draws * rate * (1 - rate))
    again = Churn(make("full", peers=2 * peers, seed=9), rate, seed=1)
    assert torch.equal(again.online(7)[:peers], churn.online(7))  # (seed, round, node) and nothing else
    assert not torch.equal(churn.online(7), churn.online(8))
    assert not torch.equal(churn.online(7), Churn(churn.topology, rate, seed=2).online(7))


def test_the_hub_never_churns():
    churn = Churn(make("star", peers=5, seed=0), 1.0, seed=0)
    for t in range(20):
        assert churn.online(t).tolist() == [False] * 5 + [True]


def test_nothing_is_delivered_to_or_from_the_absent():
    churn = Churn(make("full", peers=12, seed=0), 0.5, seed=0)
    graph, present = churn.graph(3), churn.online(3)
    arrived = churn.delivers(3, 0, graph.senders, graph.receivers)
    assert torch.equal(arrived, present[graph.senders] & present[graph.receivers])


def test_loss_rate_and_purity():
    rate = 0.2
    loss = MessageLoss(make("full", peers=100, seed=0), rate, seed=1)
    graph = loss.graph(0)
    arrived = loss.delivers(4, 2, graph.senders, graph.receivers)
    n = len(arrived)
    assert abs((~arrived).sum().item() - rate * n) < 5 * math.sqrt(n * rate * (1 - rate))
    some = torch.randperm(n, generator=torch.Generator().manual_seed(0))[:500]
    assert torch.equal(loss.delivers(4, 2, graph.senders[some], graph.receivers[some]), arrived[some])
    for t, slot in ((4, 1), (5, 2), (2, 4)):
        assert not torch.equal(loss.delivers(t, slot, graph.senders, graph.receivers), arrived)
    # A link and its reverse are lost independently: 2 * 0.2 * 0.8 of them differ.
    back = loss.delivers(4, 2, graph.receivers, graph.senders)
    assert (back != arrived).double().mean().item() == pytest.approx(0.32, abs=0.03)
    nobody = torch.empty(0, dtype=torch.long)
    assert loss.delivers(4, 2, nobody, nobody).shape == (0,)


@pytest.mark.parametrize(("rate", "all_arrive"), [(0.0, True), (1.0, False)])
def test_extreme_rates(rate, all_arrive):
    ring = make("ring", peers=30, seed=0)
    graph = ring.graph(0)
    arrived = MessageLoss(ring, rate, seed=0).delivers(0, 0, graph.senders, graph.receivers)
    assert arrived.tolist() == [all_arrive] * len(arrived)
    assert Churn(ring, rate, seed=0).online(0).tolist() == [all_arrive] * 30


def test_wrappers_compose_in_any_order():
    inner = make("star", peers=9, seed=0)
    one, other = (
        Churn(MessageLoss(inner, 0.3, seed=1), 0.4, seed=2),
        MessageLoss(Churn(inner, 0.4, seed=2), 0.3, seed=1),
    )
    senders, receivers = inner.graph(0).senders, inner.graph(0).receivers
    for t in range(5):
        assert torch.equal(one.online(t), other.online(t))
        assert torch.equal(one.delivers(t, 1, senders, receivers), other.delivers(t, 1, senders, receivers))
    assert (one.nodes, one.hub, one.directed, one.time_varying) == (10, 9, False, False)
    assert one.graph(2) is inner.graph(2)


@pytest.mark.parametrize("wrapper", [Churn, MessageLoss])
@pytest.mark.parametrize("rate", [-0.1, 1.1, math.nan])
def test_rates_are_probabilities(wrapper, rate):
    with pytest.raises(TopologyError, match=f"{wrapper.name} rate .* from 0 to 1"):
        wrapper(make("ring", peers=3, seed=0), rate, seed=0)
