"""The personal model of a real peer, from its checkpoint, on data of the user's choice."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.func import functional_call

from coterie.data.own.one_peer import Labels, Samples, load_samples
from coterie.errors import ConfigError, DataError, RunFolderError
from coterie.experiments.real_peers.joining import experiment_of, node_of, prepare_for
from coterie.peer.exchange.journal import Journal
from coterie.peer.trust.settings import load_settings
from coterie.protocol import Params

_BATCH = 1024


@dataclass(frozen=True)
class PersonalModel:
    """What a peer has learned for itself so far."""

    name: str
    round: int  # finished rounds
    module: nn.Module
    params: Params  # without the axis of rows
    shape: tuple[int, ...]  # of a sample
    classes: int

    def probabilities(self, x: Samples) -> Tensor:
        """(samples, classes)"""
        self.module.eval()
        with torch.inference_mode():
            batches = torch.from_numpy(x).split(_BATCH)
            outputs = [functional_call(self.module, self.params, (batch,)) for batch in batches]
            return torch.cat(outputs).double().softmax(dim=1)


def personal_model(folder: Path) -> PersonalModel:
    """The model in the checkpoint of a peer's folder; the peer may be running meanwhile."""
    settings = load_settings(folder)
    if not (folder / "state" / "checkpoint.safetensors").is_file():
        raise RunFolderError(f"{settings.name} has not finished a round yet: there is no checkpoint")
    experiment = experiment_of(settings)
    prepared = prepare_for(experiment, settings)
    if settings.number == prepared.topology.hub:
        raise ConfigError(f"{settings.name} is the hub, which has no personal model")
    node, journal = node_of(experiment, prepared, settings.number), Journal(folder / "state")
    node.begin(-1, prepared.topology.graph(0), torch.ones(1, dtype=torch.bool))
    state = journal.read(prepared.algorithm.init(node))
    params = {name: value[0].cpu() for name, value in prepared.algorithm.personal(state).items()}
    federation = prepared.federation
    return PersonalModel(
        settings.name,
        journal.round,
        prepared.module.cpu(),
        params,
        tuple(federation.shape),
        federation.n_classes,
    )


def samples_for(model: PersonalModel, path: Path) -> tuple[Samples, Labels | None]:
    """A file's samples in the shape that the model takes, and their labels if there are any."""
    features = math.prod(model.shape)
    x, y = load_samples(path, features)
    if x.shape[1:] != model.shape and math.prod(x.shape[1:]) != features:
        raise DataError(
            f"{path}: its samples are {_shown(x.shape[1:])}, but the model of {model.name} takes "
            f"{_shown(model.shape)}, or {features} numbers in a row"
        )
    if y is not None and len(y) and int(y.max()) >= model.classes:
        raise DataError(
            f"{path}: the label {int(y.max())}, but the model knows the classes 0 to {model.classes - 1}"
        )
    return x.reshape(len(x), *model.shape), y


def _shown(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape))
