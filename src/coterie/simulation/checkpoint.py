"""Checkpoints of a simulation: its whole state.

Random streams have no state of their own (they follow from seed and round), so the algorithm's state, the
next round and the traffic so far are all that is needed to go on as if nothing had happened.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from coterie.checkpoints import fitting, read_checkpoint, write_checkpoint
from coterie.protocol.trees import named_tensors, rebuilt
from coterie.simulation.engine import Simulation, Totals

_FORMAT = "coterie-checkpoint-1"


def save_checkpoint(path: Path, simulation: Simulation, notes: dict[str, Any]) -> None:
    """Save everything that the remaining rounds depend on; `notes` must be JSON."""
    tensors = {
        name: tensor
        for number, block in enumerate(simulation.blocks)
        for name, tensor in named_tensors(block.state, _block(number))
    }
    tensors |= {
        f"{_node(number)}{name}": tensor
        for number, block in enumerate(simulation.blocks)
        for name, tensor in block.node.remembered().items()
    }
    tensors |= {f"totals/{name}": tensor for name, tensor in vars(simulation.totals).items()}
    head = {"format": _FORMAT, "round": str(simulation.round), "notes": json.dumps(notes)}
    write_checkpoint(path, tensors, head)


def load_checkpoint(path: Path, simulation: Simulation) -> dict[str, Any]:
    """Put a fresh simulation into the saved state; returns the notes."""
    tensors, head = read_checkpoint(path, _FORMAT)
    for number, block in enumerate(simulation.blocks):
        block.state = rebuilt(block.state, fitting(path, tensors), _block(number))
        own = _node(number)
        block.node.recall({n.removeprefix(own): t for n, t in tensors.items() if n.startswith(own)})
    simulation.totals = Totals(**{name: tensors[f"totals/{name}"] for name in vars(simulation.totals)})
    simulation.round = int(head["round"])
    notes: dict[str, Any] = json.loads(head["notes"])
    return notes


def _block(number: int) -> str:
    """Where the state of a block of rows is kept."""
    return f"state/{number}"


def _node(number: int) -> str:
    """Where what the nodes of a block remember is kept, such as their optimisers' memory."""
    return f"node/{number}/"
