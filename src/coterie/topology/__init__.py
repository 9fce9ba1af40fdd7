"""Who can send to whom in each round, how received models are weighted, and what goes wrong.

Everything follows from (seed, round) alone, so simulated and real peers agree on the graph without
a coordinator.
"""

from coterie.topology.catalogue import GraphKind
from coterie.topology.faults import Churn, Loss
from coterie.topology.graph import Graph
from coterie.topology.making import make
from coterie.topology.mixing import matrix, metropolis, mixing_schemes, push_sum, uniform
from coterie.topology.schedule import Topology

__all__ = [
    "Churn",
    "Graph",
    "GraphKind",
    "Loss",
    "Topology",
    "make",
    "matrix",
    "metropolis",
    "mixing_schemes",
    "push_sum",
    "uniform",
]
