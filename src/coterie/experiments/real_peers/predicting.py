"""The personal model of a real peer, from its checkpoint, on data of the user's choice."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from coterie.data.federation import at
from coterie.data.own.one_peer import Labels, load_samples
from coterie.data.own.several import joined
from coterie.data.targets import PADDING
from coterie.errors import ConfigError, DataError, RunFolderError
from coterie.experiments.real_peers.folder import experiment_of
from coterie.experiments.real_peers.joining import node_of, prepare_for
from coterie.experiments.real_peers.own_rows import OwnRows
from coterie.inputs import MASK, Inputs, answer, arguments, count, each, named, shapes_of
from coterie.learning.tasks import MeanMetric, Task, WholeMetric
from coterie.peer.exchange.journal import Journal
from coterie.peer.trust.settings import SHARE, load_settings
from coterie.protocol import Params
from coterie.protocol.trees import mean_per_row

_BATCH = 1024


@dataclass(frozen=True)
class PersonalModel:
    """What a peer has learned for itself so far."""

    name: str
    round: int  # finished rounds
    module: nn.Module
    params: Params  # without the axis of rows
    like: Inputs  # no samples, but with the shapes and types of those that it was trained on
    classes: int
    task: Task

    def outputs(self, x: Inputs) -> Tensor:
        """(samples, outputs), of whose meaning the task knows."""
        self.module.eval()
        with torch.inference_mode():
            batches = (at(x, slice(first, first + _BATCH)) for first in range(0, count(x), _BATCH))
            outputs = [functional_call(self.module, self.params, *arguments(batch)) for batch in batches]
            return torch.cat([answer(output) for output in outputs]).double()

    def score(self, outputs: Tensor, y: Labels) -> float:
        """The task's main metric."""
        metric, targets = self.task.metrics[0], torch.from_numpy(y)
        if isinstance(metric, WholeMetric):
            return metric.of_all(y, self.task.predictions(outputs).numpy())
        assert isinstance(metric, MeanMetric)
        values = metric.of_samples(self.task, outputs[None], targets[None])
        counted = self.task.counted(targets[None], torch.ones(1, len(y)))
        mean = mean_per_row(values.double(), counted.double())
        return float(mean if metric.finish is None else metric.finish(mean))


def personal_model(folder: Path) -> PersonalModel:
    """The model in the checkpoint of a peer's folder; the peer may be running meanwhile."""
    settings = load_settings(folder)
    if not (folder / "state" / "checkpoint.safetensors").is_file():
        raise RunFolderError(f"{settings.name} has not finished a round yet: there is no checkpoint")
    experiment = experiment_of(settings)
    prepared = prepare_for(experiment, None if settings.data == SHARE else OwnRows(experiment, settings))
    if settings.number == prepared.topology.hub:
        raise ConfigError(f"{settings.name} is the hub, which has no personal model")
    node, journal = (
        node_of(experiment, prepared, settings.number),
        Journal(folder / "state", afresh=prepared.algorithm.facts.per_sample),
    )
    node.begin(-1, prepared.topology.graph(0), torch.ones(1, dtype=torch.bool))
    state = journal.read(prepared.algorithm.init(node))
    node.recall(journal.remembered())
    reported = node.best_or(prepared.algorithm.personal(state))
    params = {name: value[0].cpu() for name, value in reported.items()}
    federation = prepared.federation
    return PersonalModel(
        settings.name,
        journal.round,
        prepared.module.cpu(),
        params,
        each(Tensor.cpu, at(federation.x, slice(0))),
        federation.n_classes,
        prepared.task,
    )


def predicted(model: PersonalModel, outputs: Tensor) -> dict[str, list[Any]]:
    """By column: the class and its probability, labels, numbers, or the token at each position."""
    task, said = model.task, model.task.predictions(outputs)
    if task.targets == "tokens":
        return {"tokens": [" ".join(map(str, row)) for row in task.decided(outputs).tolist()]}
    if task.targets == "classes" and said.shape[1] == 1:
        return {"class": task.decided(outputs).int().tolist(), "probability_of_1": _texts(said[:, 0])}
    if task.targets == "classes":
        best = said.max(dim=1)
        return {"class": best.indices.tolist(), "probability": _texts(best.values)}
    name = "probability" if task.targets == "labels" else "prediction"
    places = range(said.shape[1])
    return {name if len(places) == 1 else f"{name}_{k}": _texts(said[:, k]) for k in places}


def _texts(values: Tensor) -> list[str]:
    return [f"{value:.6f}" for value in values.tolist()]


def samples_for(model: PersonalModel, path: Path) -> tuple[Inputs, Labels | None]:
    """A file's samples in the shapes and types that the model takes, and their labels if there are any."""
    single = isinstance(model.like, Tensor)
    x, y = load_samples(path, math.prod(shapes_of(model.like)) if single else 0, model.task.targets)  # type: ignore[arg-type]
    whole = model.task.targets in ("classes", "tokens")
    if whole and y is not None and len(y) and int(y.max()) >= model.classes:
        raise DataError(
            f"{path}: the label {int(y.max())}, but the model knows the classes 0 to {model.classes - 1}"
        )
    found, wanted = named(joined({str(path): x})), named(model.like)
    if MASK in wanted and MASK not in found and "0" in found:
        found = {**found, MASK: torch.ones(found["0"].shape[:2], dtype=torch.int64)}
    if found.keys() != wanted.keys():
        raise DataError(
            f"{path}: it has the inputs {', '.join(found)}, but the model of {model.name} takes "
            f"{', '.join(wanted)}; an .npz file holds them as x.{next(iter(wanted))} and so on"
        )
    taken = {name: _as_taken(found[name], wanted[name], model, path) for name in wanted}
    if y is not None and model.task.targets == "tokens" and MASK in wanted:  # as long as what is predicted
        y = np.pad(y, ((0, 0), (0, wanted[MASK].shape[1] - y.shape[1])), constant_values=PADDING)
    return (taken["0"] if single else taken), y


def _as_taken(x: Tensor, like: Tensor, model: PersonalModel, path: Path) -> Tensor:
    """x (n, ...) with the shape and type of `like`; sequences that are shorter are padded."""
    shape, wanted = x.shape[1:], like.shape[1:]
    if MASK in named(model.like) and len(shape) == len(wanted) and shape and shape[0] < wanted[0]:
        x = torch.cat((x, x.new_zeros(len(x), wanted[0] - shape[0], *shape[1:])), dim=1)
    elif shape != wanted and math.prod(shape) != math.prod(wanted):
        raise DataError(
            f"{path}: its samples are {_shown(shape)}, but the model of {model.name} takes "
            f"{_shown(wanted)}, or {math.prod(wanted)} numbers in a row"
        )
    if not like.is_floating_point() and x.is_floating_point():
        raise DataError(f"{path}: its samples are real numbers, but the model takes whole ones")
    return x.reshape(len(x), *wanted).to(like.dtype)


def _shown(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape))
