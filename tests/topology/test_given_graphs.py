"""Graphs that the user brings: files, pairs, adjacency arrays and networkx graphs."""

from __future__ import annotations

import networkx
import numpy as np
import pytest
import torch

from coterie.errors import TopologyError
from coterie.topology import make

SQUARE = {(0, 1), (1, 2), (2, 3), (3, 0)}
BOTH_WAYS = SQUARE | {(b, a) for a, b in SQUARE}


def links(topology):
    graph = topology.graph(0)
    return set(zip(graph.senders.tolist(), graph.receivers.tolist(), strict=True))


@pytest.mark.parametrize(
    "text",
    [
        "0 1\n1 2\n2 3\n3 0\n",
        "a,b\n0,1\n1,2\n2, 3\n3,0",
        "# made by hand\n\nsender receiver\n0\t1\n1 2  # second\n2 3\n3 0\n0 3\n0 1\n2 2\n",
        "\ufeff0,1\r\n1,2\r\n2,3\r\n3,0\r\n",
    ],
)
def test_edge_files(tmp_path, text):
    file = tmp_path / "links.csv"
    file.write_bytes(text.encode())
    topology = make(f"edges({file})", peers=5, seed=0)
    assert links(topology) == BOTH_WAYS
    assert topology.graph(0).in_degree[4] == 0  # not in the file: isolated
    assert not topology.directed


def test_directed_edge_file(tmp_path):
    file = tmp_path / "links.txt"
    file.write_text("0 1\n1 2\n2 3\n3 0\n")
    topology = make(f"edges({file},directed=true)", peers=4, seed=0)
    assert links(topology) == SQUARE
    assert topology.directed


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("3", "not an edge"),
        ("0 1 0.5", "not an edge"),
        ("0 x", "not an edge"),
        ("0 1.0", "not an edge"),
        ("-1 2", "not an edge"),
        ("from to", "not an edge"),
        ("0 4", "peer 4 does not exist; 4 peers have numbers 0 to 3"),
    ],
)
def test_bad_lines_are_named(tmp_path, line, said):
    file = tmp_path / "links.txt"
    file.write_text(f"# header\n0 1\n{line}\n")
    with pytest.raises(TopologyError, match=r"links\.txt, line 3") as error:
        make(f"edges({file})", peers=4, seed=0)
    assert said in str(error.value)


def test_a_half_numeric_first_line_is_not_a_header(tmp_path):
    file = tmp_path / "links.txt"
    file.write_text("0 b\n")
    with pytest.raises(TopologyError, match="line 1"):
        make(f"edges({file})", peers=4, seed=0)


def test_missing_edge_file(tmp_path):
    with pytest.raises(TopologyError, match="cannot be read"):
        make(f"edges({tmp_path}/absent.txt)", peers=4, seed=0)


def test_pairs_are_undirected():
    assert links(make([(0, 1), [1, 2], (2, 3), (3, 0)], peers=4, seed=0)) == BOTH_WAYS
    assert links(make([], peers=4, seed=0)) == set()


@pytest.mark.parametrize("convert", [np.asarray, torch.as_tensor, lambda rows: np.asarray(rows, dtype=float)])
def test_adjacency_is_receiver_by_sender(convert):
    rows = np.zeros((4, 4), dtype=np.int64)
    for sender, receiver in SQUARE:
        rows[receiver, sender] = 1
    topology = make(convert(rows), peers=4, seed=0)
    assert links(topology) == SQUARE
    assert topology.directed
    assert torch.equal(topology.graph(0).adjacency(), torch.as_tensor(rows).bool())
    assert not make(convert(rows + rows.T), peers=4, seed=0).directed


def test_networkx_graphs():
    assert links(make(networkx.Graph(sorted(SQUARE)), peers=4, seed=0)) == BOTH_WAYS
    directed = make(networkx.DiGraph(sorted(SQUARE)), peers=4, seed=0)
    assert links(directed) == SQUARE
    assert directed.directed
    assert links(make(networkx.cycle_graph(4), peers=9, seed=0)) == BOTH_WAYS


@pytest.mark.parametrize(
    ("topology", "said"),
    [
        ([(0, 4)], "node 4 does not exist"),
        ([(-1, 2)], "node -1 does not exist"),
        ([(0, 1, 2)], "not a pair"),
        ([(0, 1.5)], "not a pair"),
        ([3], "not a pair"),
        (np.ones((3, 3)), r"\(4, 4\), not \(3, 3\)"),
        (np.array([[0, 1], [1, 2], [2, 3]]), "list of pairs"),
        (np.array([["a"] * 4] * 4), "holds numbers"),
        (np.array([[None] * 4] * 4), "holds numbers"),
        (np.full((4, 4), np.nan), "has NaN"),
        (torch.full((4, 4), torch.nan), "has NaN"),
        (networkx.cycle_graph(5), "node 4 .* 0 to 3"),
        (networkx.Graph([("ann", "bob")]), "'ann'.*convert_node_labels_to_integers"),
        (7, "not int"),
    ],
)
def test_what_cannot_be_a_graph(topology, said):
    with pytest.raises(TopologyError, match=said):
        make(topology, peers=4, seed=0)
