"""From what the user asks for to a topology: a name, an edge file, pairs, an array or a networkx graph."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from coterie.catalogue import topologies
from coterie.errors import TopologyError
from coterie.topology.graphs import GraphKind, LinkEnds, Scheduled, Topology, both_ways

if TYPE_CHECKING:
    import networkx as nx


def make(
    topology: str | GraphKind | nx.Graph | Iterable[Any] | np.ndarray | Tensor, *, peers: int, seed: int
) -> Topology:
    """The topology that a name, spec, networkx graph, list of pairs or adjacency array describes.

    Names are those of the catalogue, such as `ring`, `grid(10,5)` or `random-regular(4,every=1)`. Pairs
    are undirected; an adjacency array is read as `A[receiver, sender]`. The first graph is drawn at
    once, so that an impossible request fails here and not in the middle of a run.
    """
    named = topologies.build(topology) if isinstance(topology, str) else topology
    made = Scheduled(named if isinstance(named, GraphKind) else given(named, peers), peers, seed)
    made.graph(0)
    return made


@dataclass(frozen=True)
class Edges(GraphKind):
    """A text or CSV file with `sender receiver` or `a,b` per line; undirected unless directed=true.

    Empty lines, comments after # and one header line are skipped. Peers that do not occur are isolated.
    """

    file: str
    directed: bool = False

    def is_directed(self) -> bool:
        return self.directed

    def check(self, peers: int) -> None:
        _read(self.file, peers)

    def links(self, peers: int, seed: int, phase: int) -> LinkEnds:
        pairs = torch.tensor(_read(self.file, peers), dtype=torch.long).reshape(-1, 2)
        senders, receivers = pairs.unbind(dim=1)
        return (senders, receivers) if self.directed else both_ways(senders, receivers)


@dataclass(frozen=True, eq=False)
class Given(GraphKind):
    """Links that were passed in from Python."""

    senders: Tensor
    receivers: Tensor
    one_way: bool

    def is_directed(self) -> bool:
        return self.one_way

    def links(self, peers: int, seed: int, phase: int) -> LinkEnds:
        return self.senders, self.receivers


def given(topology: Any, peers: int) -> GraphKind:
    """The spec for whatever kind of graph was passed in from Python."""
    networkx = sys.modules.get("networkx")  # whoever has a graph of it has imported it, which takes a while
    if networkx is not None and isinstance(topology, networkx.Graph):
        return _from_networkx(topology, peers)
    if isinstance(topology, np.ndarray | Tensor):
        return _from_adjacency(topology, peers)
    if isinstance(topology, Iterable):
        return Given(*both_ways(*_columns(topology)), one_way=False)
    raise TopologyError(
        f"a topology is a name such as ring, a networkx graph, a list of pairs or an adjacency array, "
        f"not {type(topology).__name__}"
    )


def _from_networkx(graph: Any, peers: int) -> Given:
    strangers = [n for n in graph if not isinstance(n, int | np.integer) or not 0 <= n < peers]
    if strangers:
        raise TopologyError(
            f"node {strangers[0]!r} of the given graph is not one of the {peers} peers, whose numbers are "
            f"0 to {peers - 1}; networkx.convert_node_labels_to_integers renumbers nodes"
        )
    senders, receivers = _columns(graph.edges())
    if graph.is_directed():
        return Given(senders, receivers, one_way=True)
    return Given(*both_ways(senders, receivers), one_way=False)


def _from_adjacency(array: Any, peers: int) -> Given:
    try:
        weights = torch.as_tensor(array)
    except (TypeError, ValueError) as error:
        raise TopologyError(f"an adjacency array holds numbers, 0 for no link: {error}") from None
    if bool(weights.isnan().any()):
        raise TopologyError("the adjacency array has NaN; write 0 where there is no link")
    linked = weights != 0
    if linked.shape != (peers, peers):
        raise TopologyError(
            f"an adjacency array for {peers} peers has shape ({peers}, {peers}), not {tuple(linked.shape)}; "
            f"edges are passed as a list of pairs, not as an array"
        )
    receivers, senders = linked.nonzero(as_tuple=True)
    return Given(senders, receivers, one_way=not torch.equal(linked, linked.T))


def _columns(pairs: Iterable[Any]) -> LinkEnds:
    listed = [tuple(pair) if isinstance(pair, tuple | list) else pair for pair in pairs]
    for pair in listed:
        whole = isinstance(pair, tuple) and len(pair) == 2
        if not whole or not all(isinstance(node, int | np.integer) for node in pair):
            raise TopologyError(f"{pair!r} is not a pair of peers' numbers such as (0, 3)")
    table = torch.tensor(listed, dtype=torch.long).reshape(-1, 2)
    return table[:, 0], table[:, 1]


def _read(file: str, peers: int) -> list[tuple[int, int]]:
    try:
        lines = Path(file).expanduser().read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise TopologyError(f"edges({file}): the file cannot be read: {error}") from None
    pairs: list[tuple[int, int]] = []
    header_allowed = True
    for number, line in enumerate(lines, start=1):
        fields = [field for field in re.split(r"[\s,]+", line.partition("#")[0]) if field]
        if not fields:
            continue
        if header_allowed and not any(map(_numeric, fields)):
            header_allowed = False
            continue
        header_allowed = False
        pairs.append(_pair(fields, f"{file}, line {number}: {line.strip()!r}", peers))
    return pairs


def _pair(fields: list[str], where: str, peers: int) -> tuple[int, int]:
    if len(fields) != 2 or not all(field.isdecimal() for field in fields):
        raise TopologyError(f"{where} is not an edge; write two peers' numbers, such as 0 3 or 0,3")
    a, b = map(int, fields)
    if max(a, b) >= peers:
        raise TopologyError(
            f"{where}: peer {max(a, b)} does not exist; {peers} peers have numbers 0 to {peers - 1}"
        )
    return a, b


def _numeric(field: str) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return True
