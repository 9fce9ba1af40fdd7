"""What commands know of a peer's folder without PyTorch: its experiment, and files that say come and go."""

from __future__ import annotations

from pathlib import Path

from coterie.experiments.setup.config import resolve, with_absolute_paths
from coterie.experiments.setup.schema import Experiment
from coterie.peer.trust.settings import PeerSettings
from coterie.toml_tables import load_toml

LEAVE_FILE, LEFT_FILE = "leave", "left"
"""In the folder of a peer's state; the second holds the number of rounds that it took part in."""
INVITATION_FILE = "invitation.json"
"""In a peer's folder, if it came by an invitation."""


def experiment_of(settings: PeerSettings) -> Experiment:
    """The experiment that a peer's settings name."""
    path = Path(settings.experiment)
    return resolve(with_absolute_paths(load_toml(path), path.parent))
