"""Checkpoints of a simulation: its whole state.

Random streams have no state of their own (they follow from seed and round), so the algorithm's state, the
next round and the traffic so far are all that is needed to go on as if nothing had happened.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from coterie.checkpoints import Elsewhere, read_checkpoint, write_checkpoint
from coterie.errors import DamagedRunError
from coterie.simulation.blocks import SavedRows, is_listed
from coterie.simulation.engine import Simulation, Totals

_FORMAT = "coterie-checkpoint-2"
_BESIDE = "beside/"


def save_checkpoint(
    path: Path, simulation: Simulation, notes: dict[str, Any], beside: Mapping[str, Tensor] | None = None
) -> None:
    """Save everything that the remaining rounds depend on; `notes` must be JSON.

    All blocks are in the same round, and their parts replace those of before at once. beside: what
    `saved_beside` shall find.
    """
    tensors: dict[str, Tensor | Elsewhere] = {}
    for number, (ids, kept) in enumerate(zip(simulation.hosted.ids, simulation.hosted.kept(), strict=True)):
        tensors |= {_place(number, name): tensor for name, tensor in kept.items()}
        tensors[f"ids/{number}"] = ids
    tensors |= {f"totals/{name}": tensor for name, tensor in vars(simulation.totals).items()}
    tensors |= {f"{_BESIDE}{name}": tensor for name, tensor in (beside or {}).items()}
    head = {"format": _FORMAT, "round": str(simulation.round), "notes": json.dumps(notes)}
    write_checkpoint(path, tensors, head)


def load_checkpoint(path: Path, simulation: Simulation) -> dict[str, Any]:
    """Put a fresh simulation into the saved state, however its nodes are cut; returns the notes."""
    tensors, head = read_checkpoint(path, _FORMAT)
    hosted = simulation.hosted
    saved = _saved_blocks(tensors, hosted.ids)
    try:
        hosted.restore([_rows_of(ids, saved) for ids in hosted.ids])
    except DamagedRunError as error:
        raise DamagedRunError(f"{path}: {error}") from None
    simulation.totals = Totals(**{name: tensors[f"totals/{name}"] for name in vars(simulation.totals)})
    simulation.round = int(head["round"])
    notes: dict[str, Any] = json.loads(head["notes"])
    return notes


def saved_beside(path: Path) -> dict[str, Tensor]:
    """What no round depends on, and whoever saved the checkpoint wanted to have with it."""
    tensors, _ = read_checkpoint(path, _FORMAT, _BESIDE)
    return {name.removeprefix(_BESIDE): tensor for name, tensor in tensors.items()}


def _place(number: int, name: str) -> str:
    """Where something that a block keeps is kept: `state/0/params/...`."""
    kind, slash, rest = name.partition("/")
    return f"{kind}/{number}{slash}{rest}"


def _saved_blocks(
    tensors: Mapping[str, Tensor], hosted: Sequence[Tensor]
) -> list[tuple[Tensor, dict[str, Tensor]]]:
    """The ids of each block that was saved, and what it kept."""
    found: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        kind, _, rest = name.partition("/")
        number, slash, inner = rest.partition("/")
        if kind in ("ids", "state", "node"):
            found.setdefault(int(number), {})[f"{kind}{slash}{inner}"] = tensor
    # Without ids: of a version that could only go on with the same blocks.
    return [(kept.pop("ids", hosted[min(n, len(hosted) - 1)]), kept) for n, kept in sorted(found.items())]


def _rows_of(ids: Tensor, saved: Sequence[tuple[Tensor, dict[str, Tensor]]]) -> list[SavedRows]:
    """What was saved of the rows with these ids."""
    parts = []
    for theirs, kept in saved:
        if torch.equal(ids, theirs):
            return [SavedRows(torch.arange(len(ids)), kept)]
        rows = torch.isin(ids, theirs).nonzero().flatten()
        if len(rows):
            order = torch.argsort(theirs)
            place = order[torch.searchsorted(theirs[order], ids[rows])]
            cut = {name: t if is_listed(name) else t[place] for name, t in kept.items()}
            parts.append(SavedRows(rows, cut))
    if sum(len(part.rows) for part in parts) != len(ids):
        raise DamagedRunError("the checkpoint does not fit this experiment: it has other peers")
    return parts
