"""Coterie: personalised learning among peers without a server.

    import coterie
    run = coterie.simulate(algorithm="d-psgd", data="digits", partition="dirichlet(0.3)", topology="ring")
    run.personal_accuracy

Names are imported when they are first used: PyTorch takes a second or two to load.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coterie.catalogue import partitions, sources, topologies
    from coterie.data import Federation, Source, from_arrays, from_peers, load, split
    from coterie.errors import CoterieError
    from coterie.experiments.runs.observing import Observer
    from coterie.experiments.runs.run import Run
    from coterie.experiments.runs.tracking import track
    from coterie.experiments.setup.schema import Experiment
    from coterie.learning.tasks import Task
    from coterie.metric import Metric
    from coterie.protocol import (
        Algorithm,
        Exchange,
        Facts,
        Inbox,
        Links,
        ModelAlgorithm,
        ModelState,
        Node,
        Params,
        Round,
        average,
        pull,
    )
    from coterie.results.comparison import compare
    from coterie.results.opening import open
    from coterie.results.reading import read
    from coterie.results.simulating import simulate
    from coterie.results.sweeping import sweep
    from coterie.topology import Graph, Topology
    from coterie.training import Training

_HOME = {
    "Algorithm": "protocol",
    "CoterieError": "errors",
    "Exchange": "protocol",
    "Experiment": "experiments.setup.schema",
    "Facts": "protocol",
    "Federation": "data",
    "Graph": "topology",
    "Inbox": "protocol",
    "Links": "protocol",
    "Metric": "metric",
    "ModelAlgorithm": "protocol",
    "ModelState": "protocol",
    "Node": "protocol",
    "Observer": "experiments.runs.observing",
    "Params": "protocol",
    "Round": "protocol",
    "Run": "experiments.runs.run",
    "Source": "data",
    "Task": "learning.tasks",
    "Topology": "topology",
    "Training": "training",
    "average": "protocol",
    "compare": "results.comparison",
    "from_arrays": "data",
    "from_peers": "data",
    "load": "data",
    "open": "results.opening",
    "partitions": "catalogue",
    "pull": "protocol",
    "read": "results.reading",
    "simulate": "results.simulating",
    "sources": "catalogue",
    "split": "data",
    "sweep": "results.sweeping",
    "topologies": "catalogue",
    "track": "experiments.runs.tracking",
}

__all__ = [
    "Algorithm",
    "CoterieError",
    "Exchange",
    "Experiment",
    "Facts",
    "Federation",
    "Graph",
    "Inbox",
    "Links",
    "Metric",
    "ModelAlgorithm",
    "ModelState",
    "Node",
    "Observer",
    "Params",
    "Round",
    "Run",
    "Source",
    "Task",
    "Topology",
    "Training",
    "average",
    "compare",
    "from_arrays",
    "from_peers",
    "load",
    "open",
    "partitions",
    "pull",
    "read",
    "simulate",
    "sources",
    "split",
    "sweep",
    "topologies",
    "track",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'coterie' has no attribute {name!r}")
    return getattr(import_module(f"coterie.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    """Also the names that nobody has used so far."""
    return sorted({*globals(), *__all__})
