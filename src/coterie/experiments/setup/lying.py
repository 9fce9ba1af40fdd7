"""Peers that lie, and the guard against them: what an experiment says, put around its algorithm and data."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from coterie.algorithms.robust.attacks import Lying
from coterie.algorithms.robust.guards import Watched
from coterie.algorithms.robust.received import Around
from coterie.catalogue import attacks, guards
from coterie.data import Federation
from coterie.data.federation import Maker, Stretch
from coterie.errors import ConfigError
from coterie.experiments.setup.groups import is_sealed
from coterie.experiments.setup.schema import Experiment, dealt_out
from coterie.protocol import Algorithm
from coterie.registry import parse_call

_FALSE_LABELS = "label-flip"


def guarded(experiment: Experiment, algorithm: Algorithm[Any]) -> Algorithm[Any]:
    """The algorithm with the experiment's guard around it, and around both the lies that reach it."""
    lies = _liars(experiment)
    if (experiment.robust or lies.keys() - {_FALSE_LABELS}) and is_sealed(algorithm):
        raise ConfigError(
            f"robust and faults.byzantine look at single models, and {experiment.algorithm!r} as set sends "
            "them sealed; use another algorithm, or settings.sealed = false where there is that setting"
        )
    if experiment.robust:
        algorithm = Around(algorithm, Watched(guards.build(experiment.robust)))
    for lie, liars in lies.items():
        if lie != _FALSE_LABELS:
            algorithm = Around(algorithm, Lying(attacks.build(lie), tuple(liars)))
    return algorithm


def _liars(experiment: Experiment) -> dict[str, list[int]]:
    lies = experiment.faults.byzantine
    for lie in lies:
        attacks[parse_call(lie, "attack")[0]]  # an unknown name gets a sentence
    return dealt_out(lies, experiment.peers, "faults.byzantine")


def with_false_labels(experiment: Experiment, federation: Federation) -> Federation:
    """The data, with the training labels of some peers turned round."""
    liars = _liars(experiment).get(_FALSE_LABELS)
    if not liars:
        return federation
    if experiment.task != "classification":
        raise ConfigError(f"faults.byzantine: {_FALSE_LABELS} needs classes to turn round")
    if federation.made is not None:
        assert isinstance(federation.test, Stretch)
        until, classes = federation.test.first[liars], federation.n_classes
        maker = FalseLabels(federation.made.maker, torch.tensor(liars), until, classes)
        return dataclasses.replace(federation, made=dataclasses.replace(federation.made, maker=maker))
    theirs = _samples(federation, liars)
    honest = _samples(federation, sorted(set(range(federation.peers)) - set(liars)))
    if bool(torch.isin(theirs, honest).any()):
        raise ConfigError(f"faults.byzantine: {_FALSE_LABELS} needs peers that share no training samples")
    return dataclasses.replace(federation, y=flip_labels(federation.y, theirs, federation.n_classes))


@dataclass(frozen=True)
class FalseLabels:
    """Makes samples of which those that some peers learn from have false labels."""

    maker: Maker
    liars: Tensor  # (liars,) ids, ascending
    until: Tensor  # (liars,) from which of its samples on each tells the truth: those of its test data
    classes: int

    def make(self, peers: Tensor, first: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
        x, y = self.maker.make(peers, first, count)
        place = torch.searchsorted(self.liars, peers).clamp(max=len(self.liars) - 1)
        lies = (self.liars[place] == peers) & (first < self.until[place])
        return x, flip_labels(y, lies.repeat_interleave(count), self.classes)

    def inputs(self, peers: Tensor, first: Tensor, count: Tensor) -> Tensor:
        return self.maker.inputs(peers, first, count)


def flip_labels(y: Tensor, samples: Tensor, classes: int) -> Tensor:
    """Class c becomes classes - 1 - c, of these samples: a list, or a mask."""
    flipped = y.clone()
    flipped[samples] = classes - 1 - y[samples]
    return flipped


def _samples(federation: Federation, peers: list[int]) -> Tensor:
    parts = [part.of(peer) for peer in peers for part in (federation.train, federation.validation)]
    return torch.cat(parts) if parts else torch.empty(0, dtype=torch.long)
