"""The simulator: all nodes of an experiment in one process."""

from coterie.simulation.calibration import fastest_executor
from coterie.simulation.checkpoint import load_checkpoint, save_checkpoint
from coterie.simulation.engine import (
    POINTS,
    Evaluation,
    HostedNetwork,
    PeerModels,
    RoundRecord,
    Simulation,
    Totals,
)
from coterie.simulation.router import Router, Traffic

__all__ = [
    "POINTS",
    "Evaluation",
    "HostedNetwork",
    "PeerModels",
    "RoundRecord",
    "Router",
    "Simulation",
    "Totals",
    "Traffic",
    "fastest_executor",
    "load_checkpoint",
    "save_checkpoint",
]
