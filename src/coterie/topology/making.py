"""From what the user asked for to a topology."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import networkx
import numpy as np
from torch import Tensor

from coterie.catalogue import topologies
from coterie.topology.catalogue import GraphKind
from coterie.topology.given import given
from coterie.topology.schedule import Scheduled, Topology


def make(
    topology: str | GraphKind | networkx.Graph | Iterable[Any] | np.ndarray | Tensor, *, peers: int, seed: int
) -> Topology:
    """The topology that a name, spec, networkx graph, list of pairs or adjacency array describes.

    Names are those of the catalogue, such as `ring`, `grid(10,5)` or `random-regular(4,every=1)`. Pairs
    are undirected; an adjacency array is read as `A[receiver, sender]`. The first graph is drawn at
    once, so that an impossible request fails here and not in the middle of a run.
    """
    if isinstance(topology, str):
        spec: GraphKind = topologies.build(topology)
    else:
        spec = topology if isinstance(topology, GraphKind) else given(topology, peers)
    made = Scheduled(spec, peers, seed)
    made.graph(0)
    return made
