"""One peer's personal model of a run: what it says of new samples, and files that others can load."""

from __future__ import annotations

import copy
import inspect
import json
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from coterie.catalogue import adapters
from coterie.checkpoints import write_checkpoint
from coterie.data.federation import at
from coterie.data.own.several import joined, samples
from coterie.errors import ConfigError, DataError, RunFolderError
from coterie.experiments.setup.prepare import task_of
from coterie.experiments.setup.schema import dealt_out
from coterie.files import write_atomically
from coterie.inputs import MASK, Inputs, answer, arguments, count, shapes_of

if TYPE_CHECKING:
    from coterie.experiments.runs.run import Run

WEIGHTS, DESCRIPTION = "model.safetensors", "model.json"
_FORMAT = "coterie-model-1"
_BATCH = 1024


def network_of(run: Run, peer: int | str) -> nn.Module:
    """The peer's network with its weights, ready to be used; changing it changes nothing else."""
    module = copy.deepcopy(run.models_like(peer).module)
    module.load_state_dict(run.model(peer))
    return module.eval()


def predict(run: Run, peer: int | str, x: Any) -> Tensor:
    """What the peer's model says of samples: probabilities of classes or labels, or numbers."""
    module = network_of(run, peer)
    samples = _samples(x, module)
    try:
        outputs = _outputs(module, samples)
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        reason = str(error).partition("\n")[0]
        raise ConfigError(
            f"the model of peer {peer} cannot take samples of shape {shapes_of(samples)}: {reason}"
        ) from None
    return task_of(run.experiment).predictions(outputs.double())


def _outputs(module: nn.Module, x: Inputs) -> Tensor:
    """Whole numbers in one tensor are given as real ones, as in training, to networks that take no others."""
    try:
        with torch.inference_mode():
            batches = (at(x, slice(first, first + _BATCH)) for first in range(0, count(x), _BATCH))
            called = (arguments(batch) for batch in batches)
            return torch.cat([answer(module(*given, **by_name)) for given, by_name in called])
    except (RuntimeError, ValueError):
        if not isinstance(x, Tensor) or x.is_floating_point():
            raise
        return _outputs(module, x.float())


def _samples(x: Any, module: nn.Module) -> Inputs:
    """What was passed, as the network takes it: with a mask of ones where it wants one and none is there."""
    several = isinstance(x, tuple) and any(getattr(part, "ndim", 0) for part in x)
    try:
        found = joined({"x": samples(x, "x", len(x[0]) if several else -1)})
    except DataError as error:
        raise ConfigError(str(error)) from None
    if not count(found):
        raise ConfigError("there are no samples to predict: pass an array whose first axis counts samples")
    if isinstance(found, Tensor):
        found = found.long() if found.dtype == torch.uint8 else found
        if MASK in inspect.signature(module.forward).parameters:
            return {"0": found, MASK: torch.ones(found.shape[:2], dtype=torch.int64)}
    return found


def save(run: Run, peer: int | str, path: str | Path) -> Path:
    """Write the peer's weights and what they belong to in a new folder, and return it."""
    folder, weights = Path(path), run.model(peer)
    _make_new(folder)
    if run.experiment.adapter:
        alike = run.models_like(peer)
        adapters.build(run.experiment.adapter).save(alike.module, weights, folder)
    else:
        write_checkpoint(folder / WEIGHTS, weights, {"format": "pt"})  # as libraries call it
    write_atomically(
        folder / DESCRIPTION, json.dumps(_description(run, run.number_of(peer)), indent=2).encode() + b"\n"
    )
    return folder


def _make_new(folder: Path) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RunFolderError(f"{folder} exists already; choose another folder for the model")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunFolderError(f"cannot make the folder {folder}: {error.strerror}") from None


def _description(run: Run, peer: int) -> dict[str, Any]:
    e = run.experiment
    known = run.history.measurements
    return {
        "format": _FORMAT,
        "coterie": version("coterie"),
        "peer": peer,
        "name": run.names[peer] if run.names else None,
        "model": _model_name(run, peer),
        "algorithm": e.algorithm,
        "data": e.data,
        "seed": e.seed,
        "rounds": len(run.history.seconds),
        "score": float(run.personal_scores[peer]) if known else None,
    }


def _model_name(run: Run, peer: int) -> str:
    others = dealt_out(run.experiment.models, run.peers)
    return next((name for name, peers in others.items() if peer in peers), run.experiment.model)
