"""The simulator: all nodes of an experiment in one process."""

from coterie.simulation.blocks import HostedNetwork, Hosting
from coterie.simulation.calibration import fastest_executor
from coterie.simulation.checkpoint import load_checkpoint, save_checkpoint, saved_beside
from coterie.simulation.engine import Router, Simulation, Totals
from coterie.simulation.memory import Need, need_of
from coterie.simulation.round_records import POINTS, Evaluation, PeerModels, RoundRecord, Traffic

__all__ = [
    "POINTS",
    "Evaluation",
    "HostedNetwork",
    "Hosting",
    "Need",
    "PeerModels",
    "RoundRecord",
    "Router",
    "Simulation",
    "Totals",
    "Traffic",
    "fastest_executor",
    "load_checkpoint",
    "need_of",
    "save_checkpoint",
    "saved_beside",
]
