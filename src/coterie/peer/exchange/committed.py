"""How far a peer's checkpoint is, read from its head alone. Needs no PyTorch."""

from __future__ import annotations

import json
from pathlib import Path

from coterie.checkpoints import read_head

FORMAT = "coterie-peer-1"


def committed_rounds(checkpoint: Path) -> int:
    """Finished rounds in a checkpoint of `Journal`; 0 if there is no such file."""
    if not checkpoint.exists():
        return 0
    return int(json.loads(read_head(checkpoint, FORMAT)["notes"])["round"])
