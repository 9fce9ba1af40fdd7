"""Graph and the catalogue of topologies: what each graph is by definition."""

from __future__ import annotations

import pickle

import networkx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.catalogue import topologies
from coterie.errors import ConfigError, TopologyError
from coterie.topology import Graph, make

NAMES = [
    "ring",
    "grid",
    "torus",
    "full",
    "star",
    "random-regular(4)",
    "random-regular(4,every=2)",
    "erdos-renyi(0.2)",
    "small-world(4,0.3)",
    "directed(3)",
    "exponential",
    "exponential(one)",
    "fading(5)",
]
UNDIRECTED = [name for name in NAMES if not name.startswith(("directed", "exponential"))]


def links(graph: Graph) -> set[tuple[int, int]]:
    return set(zip(graph.senders.tolist(), graph.receivers.tolist(), strict=True))


@settings(deadline=None)
@given(st.integers(1, 12), st.data())
def test_graph_is_the_set_of_its_links(nodes, data):
    node = st.integers(0, nodes - 1)
    pairs = data.draw(st.lists(st.tuples(node, node), max_size=60))
    table = torch.tensor(pairs, dtype=torch.long).reshape(-1, 2)
    graph = Graph.from_links(nodes, table[:, 0], table[:, 1])
    expected = {(s, r) for s, r in pairs if s != r}

    assert links(graph) == expected
    order = list(zip(graph.receivers.tolist(), graph.senders.tolist(), strict=True))
    assert order == sorted({(r, s) for s, r in expected})
    assert graph.symmetric == (expected == {(r, s) for s, r in expected})
    for i in range(nodes):
        assert graph.in_neighbours(i).tolist() == sorted(s for s, r in expected if r == i)
        assert graph.out_neighbours(i).tolist() == sorted(r for s, r in expected if s == i)
        assert graph.in_degree[i] == len(graph.in_neighbours(i))
        assert graph.out_degree[i] == len(graph.out_neighbours(i))
    adjacency = graph.adjacency()
    assert adjacency.sum() == len(expected)
    assert all(adjacency[r, s] for s, r in expected)


@pytest.mark.parametrize("wrong", [-1, 3])
def test_links_of_nodes_that_do_not_exist(wrong):
    with pytest.raises(TopologyError, match=f"node {wrong} does not exist.*0 to 2"):
        Graph.from_links(3, torch.tensor([0]), torch.tensor([wrong]))


@pytest.mark.parametrize("name", NAMES)
def test_every_topology_keeps_its_promises(name):
    topology = make(name, peers=20, seed=7)
    again = make(name, peers=20, seed=7)
    graphs = [topology.graph(t) for t in range(4)]
    assert topology.directed == (name not in UNDIRECTED)
    for t in reversed(range(4)):  # the order of asking does not matter
        assert links(again.graph(t)) == links(graphs[t])
    for graph in graphs:
        assert graph.nodes == topology.nodes
        assert graph.symmetric or topology.directed
    changed = any(links(graph) != links(graphs[0]) for graph in graphs)
    assert changed == topology.time_varying
    assert topology.online(0).all()
    assert topology.delivers(0, 0, graphs[0].senders, graphs[0].receivers).all()
    assert links(pickle.loads(pickle.dumps(topology)).graph(1)) == links(graphs[1])


@pytest.mark.parametrize(
    "name", ["random-regular(4)", "erdos-renyi(0.2)", "small-world(4,0.3)", "directed(3)"]
)
def test_another_seed_is_another_graph(name):
    assert links(make(name, peers=20, seed=1).graph(0)) != links(make(name, peers=20, seed=2).graph(0))


def test_every_name_is_tested_and_summarised():
    assert {name.partition("(")[0] for name in NAMES} | {"edges"} == set(topologies)
    assert all(topologies.summary(name) for name in topologies)


@settings(deadline=None)
@given(st.integers(1, 30))
def test_ring_star_and_full(peers):
    ring = links(make("ring", peers=peers, seed=0).graph(0))
    assert ring == {(i, (i + d) % peers) for i in range(peers) for d in (1, -1) if peers > 1}
    full = links(make("full", peers=peers, seed=0).graph(0))
    assert full == {(i, j) for i in range(peers) for j in range(peers) if i != j}
    star = make("star", peers=peers, seed=0)
    assert (star.nodes, star.hub) == (peers + 1, peers)
    spokes = {(i, peers) for i in range(peers)}
    assert links(star.graph(3)) == spokes | {(peers, i) for i in range(peers)}


def test_grid_of_the_blend_dfl_paper():
    for name in ("grid", "grid(10,5)", "grid(rows=5,cols=10)"):
        degree = make(name, peers=50, seed=0).graph(0).in_degree
        assert degree.bincount().tolist() == [0, 0, 4, 2 * 8 + 2 * 3, 8 * 3]  # corners, edges, interior


def test_torus_and_line():
    assert (make("torus", peers=12, seed=0).graph(0).in_degree == 4).all()
    line = make("grid(1,7)", peers=7, seed=0).graph(0)
    assert line.in_degree.tolist() == [1, 2, 2, 2, 2, 2, 1]


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 40), st.data())
def test_random_regular_has_degree_exactly_k(peers, data):
    k = data.draw(st.integers(1, peers - 1).filter(lambda k: peers * k % 2 == 0))
    topology = make(f"random-regular({k},every=1)", peers=peers, seed=data.draw(st.integers(0, 5)))
    for t in range(2):
        assert (topology.graph(t).in_degree == k).all()


def test_random_regular_does_not_favour_any_pair():
    """Each of the 28 pairs of 8 peers is an edge with probability k/(n-1) = 3/7."""
    rounds = 2000
    topology = make("random-regular(3,every=1)", peers=8, seed=0)
    frequency = sum(topology.graph(t).adjacency().double() for t in range(rounds)) / rounds
    sigma = (3 / 7 * 4 / 7 / rounds) ** 0.5
    off_diagonal = frequency[~torch.eye(8, dtype=torch.bool)]
    assert ((off_diagonal - 3 / 7).abs() < 5 * sigma).all()


def test_redrawn_every_so_many_rounds():
    topology = make("random-regular(4,every=3)", peers=20, seed=0)
    graphs = [links(topology.graph(t)) for t in range(7)]
    assert graphs[0] == graphs[1] == graphs[2] != graphs[3]
    assert graphs[3] == graphs[4] == graphs[5] != graphs[6]


@pytest.mark.parametrize(("p", "peers"), [(0.0, 9), (1.0, 9), (0.03, 400), (0.6, 100)])
def test_erdos_renyi_links_each_pair_with_probability_p(p, peers):
    graph = make(f"erdos-renyi({p})", peers=peers, seed=1).graph(0)
    pairs = peers * (peers - 1) / 2
    sigma = (pairs * p * (1 - p)) ** 0.5
    assert abs(len(graph.senders) / 2 - pairs * p) <= 5 * sigma


def test_erdos_renyi_does_not_favour_any_pair():
    rounds, p = 2000, 0.3
    topology = make("erdos-renyi(0.3,every=1)", peers=7, seed=0)
    frequency = sum(topology.graph(t).adjacency().double() for t in range(rounds)) / rounds
    off_diagonal = frequency[~torch.eye(7, dtype=torch.bool)]
    assert ((off_diagonal - p).abs() < 5 * (p * (1 - p) / rounds) ** 0.5).all()


def test_small_world_without_rewiring_is_the_ring_of_k_neighbours():
    ring = make("small-world(4,0)", peers=15, seed=0).graph(0)
    assert links(ring) == {(i, (i + d) % 15) for i in range(15) for d in (-2, -1, 1, 2)}


@settings(deadline=None)
@given(st.integers(3, 30), st.data())
def test_small_world_keeps_the_number_of_edges_and_one_end_of_each(peers, data):
    k = 2 * data.draw(st.integers(1, (peers - 1) // 2))
    p, seed = data.draw(st.sampled_from([0.1, 0.5, 1.0])), data.draw(st.integers(0, 99))
    graph = make(f"small-world({k},{p})", peers=peers, seed=seed).graph(0)
    assert int(graph.in_degree.sum()) == peers * k
    assert graph.symmetric
    assert (graph.in_degree >= k // 2).all()  # the edges whose first end a node is


def test_small_world_rewires_the_share_of_edges_that_was_asked_for():
    peers, k, p = 2000, 6, 0.3
    graph = make(f"small-world({k},{p})", peers=peers, seed=0).graph(0)
    ring = links(make(f"small-world({k},0)", peers=peers, seed=0).graph(0))
    moved = len(links(graph) - ring) / 2
    edges = peers * k / 2
    assert abs(moved - p * edges) <= 5 * (edges * p * (1 - p)) ** 0.5


@pytest.mark.parametrize("p", [0.1, 0.5, 1.0])
def test_small_worlds_are_as_clustered_as_those_of_networkx(p):
    """Both clustering and the spread of degrees, within 5 standard errors of the difference of two means."""
    graphs, peers, k = 40, 60, 6
    ours = [make(f"small-world({k},{p})", peers=peers, seed=seed).graph(0) for seed in range(graphs)]
    found = [networkx.Graph(links(graph)) for graph in ours]
    known = [networkx.watts_strogatz_graph(peers, k, p, seed=seed) for seed in range(graphs)]
    for measure in (networkx.average_clustering, lambda graph: np.var([n for _, n in graph.degree])):
        a, b = ([measure(graph) for graph in some] for some in (found, known))
        error = ((np.var(a) + np.var(b)) / graphs) ** 0.5
        assert abs(np.mean(a) - np.mean(b)) <= 5 * error


def test_small_world_does_not_favour_any_distance():
    """All edges of a large ring rewired: each of ten equal stretches of the ring gets a tenth of them."""
    peers = 20_000
    graph = make("small-world(2,1)", peers=peers, seed=0).graph(0)
    distance = (graph.receivers - graph.senders)[graph.receivers > graph.senders]  # of each edge once
    around = torch.minimum(distance, peers - distance)  # 1 to peers / 2, one way or the other
    counts = torch.bincount((around - 1) // (peers // 20), minlength=10)
    assert len(counts) == 10
    assert ((counts - peers / 10).abs() <= 5 * (peers * 0.1 * 0.9) ** 0.5).all()


@pytest.mark.parametrize(
    ("name", "peers", "said"),
    [
        ("random-regular(3)", 5, ["odd", "k=2 or k=4", "6"]),
        ("random-regular(5)", 5, ["from 1 to 4", "6 peers"]),
        ("random-regular(0)", 5, ["from 1 to 4"]),
        ("random-regular(2,every=-1)", 5, ["every=-1", "each n rounds"]),
        ("random-regular(2)", 1, ["3 peers"]),
        ("erdos-renyi(1.5)", 5, ["0 to 1", "1.5"]),
        ("erdos-renyi(nan)", 5, ["0 to 1"]),
        ("small-world(3,0.1)", 9, ["even", "2 or 4"]),
        ("small-world(10,0.1)", 9, ["from 1 to 8"]),
        ("small-world(4,-0.1)", 9, ["0 to 1"]),
        ("directed(7)", 7, ["from 1 to 6"]),
        ("fading(9)", 9, ["0 to 8"]),
        ("exponential(two)", 9, ["exponential(one)"]),
        ("grid", 17, ["prime", "16 peers (4x4)", "18 peers (6x3)", "grid(1,17)"]),
        ("torus", 3, ["prime", "4 peers (2x2)", "torus(1,3)"]),
        ("grid(4,5)", 24, ["24", "grid(6,4)"]),
        ("grid(4)", 24, ["24", "grid(6,4)"]),
        ("full", 10_000, ["50,000,000", "random-regular(k)"]),
        ("erdos-renyi(0.9)", 10_000, ["50,000,000"]),
        ("ring", 0, ["at least 1 peer"]),
    ],
)
def test_impossible_requests_say_what_is_possible(name, peers, said):
    with pytest.raises(TopologyError) as error:
        make(name, peers=peers, seed=0)
    assert all(part in str(error.value) for part in said), str(error.value)


def test_unknown_names_are_configuration_errors():
    with pytest.raises(ConfigError, match="did you mean ring"):
        make("rign", peers=5, seed=0)


def test_a_hundred_thousand_peers():
    for name in ("random-regular(4)", "directed(4)"):
        assert (make(name, peers=100_000, seed=0).graph(0).out_degree == 4).all()
