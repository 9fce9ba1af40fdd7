"""Mixing over the graphs: the invariants that the algorithms rely on."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.errors import TopologyError
from coterie.topology import Graph, make, metropolis


@st.composite
def graphs(draw, symmetric=None):
    nodes = draw(st.integers(1, 12))
    node = st.integers(0, nodes - 1)
    table = torch.tensor(draw(st.lists(st.tuples(node, node), max_size=50)), dtype=torch.long).reshape(-1, 2)
    senders, receivers = table[:, 0], table[:, 1]
    if symmetric:
        senders, receivers = torch.cat((senders, receivers)), torch.cat((receivers, senders))
    return Graph.from_links(nodes, senders, receivers)


def ones(n):
    return torch.ones(n)


def with_self(graph):
    """(nodes, nodes) who reaches whom, `A[receiver, sender]`, everyone oneself."""
    return (graph.adjacency() | torch.eye(graph.nodes, dtype=torch.bool)).double()


def uniform_matrix(graph):
    """The plain average over oneself and the in-neighbours."""
    return with_self(graph) / with_self(graph).sum(dim=1, keepdim=True)


def push_sum_matrix(graph):
    """A sender is shared out evenly, one share stays at home."""
    return with_self(graph) / with_self(graph).sum(dim=0, keepdim=True)


def metropolis_matrix(graph):
    """What a receiver does not take from others it keeps of its own."""
    dense = torch.zeros(graph.nodes, graph.nodes)
    dense[graph.receivers, graph.senders] = metropolis(graph, graph.senders, graph.receivers)
    return dense + torch.diag(1.0 - dense.sum(dim=1))


@settings(deadline=None)
@given(graphs(symmetric=True))
def test_metropolis_is_symmetric_and_doubly_stochastic(graph):
    weights = metropolis_matrix(graph)
    torch.testing.assert_close(weights, weights.T)
    torch.testing.assert_close(weights.sum(dim=0), ones(graph.nodes))
    torch.testing.assert_close(weights.sum(dim=1), ones(graph.nodes))
    assert (weights.diagonal() > 0).all()


@settings(deadline=None)
@given(graphs(symmetric=True))
def test_equal_models_are_a_fixed_point(graph):
    models = torch.tensor([1.5, -2.0, 0.25]).expand(graph.nodes, 3)
    torch.testing.assert_close(metropolis_matrix(graph) @ models, models)


@settings(deadline=None)
@given(graphs(symmetric=True))
def test_metropolis_preserves_the_mean(graph):
    models = torch.arange(graph.nodes * 2.0).reshape(graph.nodes, 2)
    torch.testing.assert_close((metropolis_matrix(graph) @ models).mean(dim=0), models.mean(dim=0))


@settings(deadline=None)
@given(graphs(symmetric=True), st.data())
def test_weights_of_the_messages_that_arrived(graph, data):
    arrived = torch.tensor(
        data.draw(st.lists(st.booleans(), min_size=len(graph.senders), max_size=len(graph.senders)))
    )
    arrived = arrived.bool()
    every = metropolis(graph, graph.senders, graph.receivers)
    some = metropolis(graph, graph.senders[arrived], graph.receivers[arrived])
    assert torch.equal(some, every[arrived])
    assert some.dtype == torch.float32


@pytest.mark.parametrize(("name", "expected", "digits"), [("ring", 0.9947, 4), ("grid(10,5)", 0.977, 3)])
def test_second_eigenvalue_of_the_blend_dfl_graphs(name, expected, digits):
    """ALGORITHMS.md 2.7; for the ring also (1 + 2 cos(2 pi / 50)) / 3."""
    weights = uniform_matrix(make(name, peers=50, seed=0).graph(0)).numpy()
    sizes = np.sort(np.abs(np.linalg.eigvals(weights)))
    assert sizes[-1] == pytest.approx(1.0)
    assert round(sizes[-2], digits) == expected
    if name == "ring":
        assert sizes[-2] == pytest.approx((1 + 2 * np.cos(2 * np.pi / 50)) / 3)


def test_uniform_weights_on_the_grid_are_not_fair():
    """Stationary weights run from 0.68 to 1.14 of a fair share: ALGORITHMS.md 2.7."""
    grid = make("grid(10,5)", peers=50, seed=0).graph(0)
    share = 50 * torch.linalg.matrix_power(uniform_matrix(grid), 2000)[0]
    # A reversible chain: stationary weight proportional to degree + 1.
    torch.testing.assert_close(
        share, 50 * (grid.in_degree + 1) / (grid.in_degree + 1).sum().double(), rtol=1e-4, atol=0
    )
    assert round(share.min().item(), 2) == 0.68
    assert round(share.max().item(), 2) == 1.14


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 100))
def test_push_sum_without_learning_finds_the_mean(seed):
    """u and mu are mixed by column-stochastic matrices; z = u / mu goes to the mean of the start."""
    peers = 20
    topology = make("directed(3)", peers=peers, seed=seed)
    start = torch.randn(peers, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.double)
    u, mu = start, torch.ones(peers, 1, dtype=torch.double)
    for t in range(60):
        weights = push_sum_matrix(topology.graph(t))
        u, mu = weights @ u, weights @ mu
        assert (mu > 0).all()
    assert mu.sum().item() == pytest.approx(peers, rel=1e-5)
    torch.testing.assert_close(u / mu, start.mean(dim=0).expand(peers, 2), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["exponential", "exponential(one)", "random-regular(4)", "ring"])
def test_push_sum_mass_stays_one_on_regular_graphs(name):
    topology = make(name, peers=20, seed=0)
    mu = torch.ones(20, dtype=torch.double)
    for t in range(10):
        mu = push_sum_matrix(topology.graph(t)) @ mu
    torch.testing.assert_close(mu, torch.ones(20, dtype=torch.double))


def test_metropolis_refuses_directed_graphs():
    graph = make("directed(2)", peers=9, seed=0).graph(0)
    with pytest.raises(TopologyError, match=r"undirected.*uniform"):
        metropolis(graph, graph.senders, graph.receivers)
