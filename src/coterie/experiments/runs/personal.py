"""One peer's personal model of a run: what it says of new samples, and files that others can load."""

from __future__ import annotations

import copy
import json
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from coterie.checkpoints import write_checkpoint
from coterie.errors import ConfigError, RunFolderError
from coterie.experiments.setup.schema import dealt_out
from coterie.files import write_atomically

if TYPE_CHECKING:
    from coterie.experiments.runs.running import Run

WEIGHTS, DESCRIPTION = "model.safetensors", "model.json"
_FORMAT = "coterie-model-1"
_BATCH = 1024


def network_of(run: Run, peer: int) -> nn.Module:
    """The peer's network with its weights, ready to be used; changing it changes nothing else."""
    module = copy.deepcopy(run.models_like(peer).module)
    module.load_state_dict(run.model(peer))
    return module.eval()


def predict(run: Run, peer: int, x: Any) -> Tensor:
    """(samples, classes): the probabilities that the peer's model gives to each class."""
    module, samples = network_of(run, peer), _samples(x)
    try:
        with torch.inference_mode():
            outputs = [module(batch) for batch in samples.split(_BATCH)]
    except (RuntimeError, ValueError, IndexError) as error:
        reason = str(error).partition("\n")[0]
        raise ConfigError(
            f"the model of peer {peer} cannot take samples of shape {tuple(samples.shape[1:])}: {reason}"
        ) from None
    return torch.cat(outputs).double().softmax(dim=1)


def _samples(x: Any) -> Tensor:
    """What was passed as a tensor with at least one sample; float64, which NumPy prefers, becomes float32."""
    try:
        samples = x.detach().cpu() if isinstance(x, Tensor) else torch.from_numpy(np.array(x))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"samples must be numbers in one array: {error}") from None
    if samples.ndim == 0 or not len(samples):
        raise ConfigError("there are no samples to predict: pass an array whose first axis counts samples")
    return samples.float() if samples.dtype == torch.float64 else samples


def save(run: Run, peer: int, path: str | Path) -> Path:
    """Write the peer's weights and what they belong to in a new folder, and return it."""
    folder, weights = Path(path), run.model(peer)
    _make_new(folder)
    write_checkpoint(folder / WEIGHTS, weights, {"format": "pt"})  # as libraries call it
    write_atomically(folder / DESCRIPTION, json.dumps(_description(run, peer), indent=2).encode() + b"\n")
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
