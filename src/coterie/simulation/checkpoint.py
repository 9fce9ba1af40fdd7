"""Checkpoints: the whole state of a simulation in one safetensors file, replaced atomically.

Random streams have no state of their own (they follow from seed and round), so the algorithm's state, the
next round and the traffic so far are all that is needed to go on as if nothing had happened.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from coterie.errors import DamagedRunError
from coterie.files import write_atomically
from coterie.protocol.trees import named_tensors, rebuilt
from coterie.simulation.engine import Simulation, Totals

_FORMAT = "coterie-checkpoint-1"


def save_checkpoint(path: Path, simulation: Simulation, notes: dict[str, Any]) -> None:
    """Save everything that the remaining rounds depend on; `notes` must be JSON."""
    tensors = {
        f"state/{number}/{name}": tensor
        for number, block in enumerate(simulation.blocks)
        for name, tensor in named_tensors(block.state)
    }
    tensors |= {f"totals/{name}": tensor for name, tensor in vars(simulation.totals).items()}
    metadata = {"format": _FORMAT, "round": str(simulation.round), "notes": json.dumps(notes)}
    content = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    write_atomically(path, save(content, metadata))


def load_checkpoint(path: Path, simulation: Simulation) -> dict[str, Any]:
    """Put a fresh simulation into the saved state; returns the notes."""
    tensors, metadata = _read(path)
    for number, block in enumerate(simulation.blocks):

        def saved(name: str, fresh: Tensor, number: int = number) -> Tensor:
            tensor = tensors.get(f"state/{number}/{name}")
            if tensor is None or tensor.shape != fresh.shape or tensor.dtype != fresh.dtype:
                raise DamagedRunError(
                    f"{path} does not fit this experiment: {name!r} is missing or has another shape"
                )
            return tensor.to(fresh.device)

        block.state = rebuilt(block.state, saved)
    simulation.totals = Totals(**{name: tensors[f"totals/{name}"] for name in vars(simulation.totals)})
    simulation.round = int(metadata["round"])
    notes: dict[str, Any] = json.loads(metadata["notes"])
    return notes


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    try:
        with safe_open(str(path), framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise DamagedRunError(f"{path} is not a readable checkpoint: {error}") from None
    if metadata.get("format") != _FORMAT:
        raise DamagedRunError(f"{path} is not a checkpoint of this version of Coterie")
    return tensors, metadata
