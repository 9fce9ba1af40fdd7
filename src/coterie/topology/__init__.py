"""Who can send to whom in each round, how received models are weighted, and what goes wrong.

Everything follows from (seed, round) alone, so simulated and real peers agree on the graph without
a coordinator.
"""

from coterie.topology.faults import Attendance, Churn, MessageLoss
from coterie.topology.graphs import Graph, GraphKind, Topology, both_ways, metropolis
from coterie.topology.making import make

__all__ = [
    "Attendance",
    "Churn",
    "Graph",
    "GraphKind",
    "MessageLoss",
    "Topology",
    "both_ways",
    "make",
    "metropolis",
]
