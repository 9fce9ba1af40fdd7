"""Mixing weights: the invariants that the algorithms rely on."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.errors import ConfigError, TopologyError
from coterie.topology import Graph, make, matrix, metropolis, mixing_schemes, push_sum, uniform


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


@settings(deadline=None)
@given(graphs())
def test_uniform_rows_sum_to_one(graph):
    weights = matrix(graph, "uniform")
    torch.testing.assert_close(weights.sum(dim=1), ones(graph.nodes))
    adjacency_with_self = graph.adjacency() | torch.eye(graph.nodes, dtype=torch.bool)
    # The plain average over oneself and the in-neighbours.
    torch.testing.assert_close(weights, adjacency_with_self / adjacency_with_self.sum(dim=1, keepdim=True))


@settings(deadline=None)
@given(graphs(symmetric=True))
def test_metropolis_is_symmetric_and_doubly_stochastic(graph):
    weights = matrix(graph, "metropolis")
    torch.testing.assert_close(weights, weights.T)
    torch.testing.assert_close(weights.sum(dim=0), ones(graph.nodes))
    torch.testing.assert_close(weights.sum(dim=1), ones(graph.nodes))
    assert (weights.diagonal() > 0).all()


@settings(deadline=None)
@given(graphs())
def test_push_sum_columns_sum_to_one(graph):
    weights = matrix(graph, "push-sum")
    torch.testing.assert_close(weights.sum(dim=0), ones(graph.nodes))
    torch.testing.assert_close(weights.diagonal(), 1 / (graph.out_degree + 1))
    assert (weights.diagonal() > 0).all()


@settings(deadline=None)
@given(graphs(symmetric=True), st.sampled_from(["uniform", "metropolis"]))
def test_equal_models_are_a_fixed_point(graph, scheme):
    models = torch.tensor([1.5, -2.0, 0.25]).expand(graph.nodes, 3)
    torch.testing.assert_close(matrix(graph, scheme) @ models, models)


@settings(deadline=None)
@given(graphs(symmetric=True))
def test_metropolis_preserves_the_mean(graph):
    models = torch.arange(graph.nodes * 2.0).reshape(graph.nodes, 2)
    torch.testing.assert_close((matrix(graph, "metropolis") @ models).mean(dim=0), models.mean(dim=0))


@settings(deadline=None)
@given(graphs(symmetric=True), st.data())
def test_weights_of_the_messages_that_arrived(graph, data):
    arrived = torch.tensor(
        data.draw(st.lists(st.booleans(), min_size=len(graph.senders), max_size=len(graph.senders)))
    )
    arrived = arrived.bool()
    for scheme in (uniform, metropolis, push_sum):
        every = scheme(graph, graph.senders, graph.receivers)
        some = scheme(graph, graph.senders[arrived], graph.receivers[arrived])
        assert torch.equal(some, every[arrived])
        assert some.dtype == torch.float32


@pytest.mark.parametrize(("name", "expected", "digits"), [("ring", 0.9947, 4), ("grid(10,5)", 0.977, 3)])
def test_second_eigenvalue_of_the_blend_dfl_graphs(name, expected, digits):
    """ALGORITHMS.md 2.7; for the ring also (1 + 2 cos(2 pi / 50)) / 3."""
    weights = matrix(make(name, peers=50, seed=0).graph(0), "uniform").double().numpy()
    sizes = np.sort(np.abs(np.linalg.eigvals(weights)))
    assert sizes[-1] == pytest.approx(1.0)
    assert round(sizes[-2], digits) == expected
    if name == "ring":
        assert sizes[-2] == pytest.approx((1 + 2 * np.cos(2 * np.pi / 50)) / 3)


def test_uniform_weights_on_the_grid_are_not_fair():
    """Stationary weights run from 0.68 to 1.14 of a fair share: ALGORITHMS.md 2.7."""
    grid = make("grid(10,5)", peers=50, seed=0).graph(0)
    share = 50 * torch.linalg.matrix_power(matrix(grid, "uniform").double(), 2000)[0]
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
        weights = matrix(topology.graph(t), "push-sum").double()
        u, mu = weights @ u, weights @ mu
        assert (mu > 0).all()
    assert mu.sum().item() == pytest.approx(peers, rel=1e-5)
    torch.testing.assert_close(u / mu, start.mean(dim=0).expand(peers, 2), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["exponential", "exponential(one)", "random-regular(4)", "ring"])
def test_push_sum_mass_stays_one_on_regular_graphs(name):
    topology = make(name, peers=20, seed=0)
    mu = torch.ones(20)
    for t in range(10):
        mu = matrix(topology.graph(t), push_sum) @ mu
    torch.testing.assert_close(mu, torch.ones(20))


def test_metropolis_refuses_directed_graphs():
    graph = make("directed(2)", peers=9, seed=0).graph(0)
    with pytest.raises(TopologyError, match=r"undirected.*push-sum"):
        matrix(graph, "metropolis")


def test_schemes_by_name():
    assert set(mixing_schemes) == {"uniform", "metropolis", "push-sum"}
    assert mixing_schemes["push-sum"] is push_sum
    with pytest.raises(ConfigError, match="did you mean metropolis"):
        mixing_schemes["metropolys"]
