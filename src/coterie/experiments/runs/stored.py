"""A run as its folder has it, finished or interrupted. Nothing is changed there, and nothing is trained.

Records are read at once. The models, and the weights that an algorithm learned, are in the checkpoint, which
only data and network explain: they are read when somebody asks for them.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from coterie.catalogue import algorithms
from coterie.errors import ConfigError, RunFolderError
from coterie.experiments.runs.folder import RunFolder
from coterie.experiments.runs.run import Run
from coterie.experiments.runs.running import at_checkpoint
from coterie.experiments.setup.prepare import Objects, task_of
from coterie.metric import Metric
from coterie.protocol import Facts
from coterie.simulation import PeerModels, Totals
from coterie.user_code import is_file_reference


class StoredRun(Run):
    """What a run left behind.

    objects: those that it was given in Python, which a folder cannot hold; only models need them.
    facts: what is known of a run without a checkpoint, such as one of a sweep: clusters and shares.
    """

    def __init__(
        self, folder: RunFolder, objects: Objects | None = None, facts: Mapping[str, Any] | None = None
    ) -> None:
        self._folder, self._objects, self._known = folder, objects or Objects(), facts or {}
        self._result = folder.result()
        self.experiment = folder.stored_experiment()
        self.history = folder.records.read(self.experiment.peers)
        self.executor = folder.executor()
        self.run_dir = folder.path
        self.stopped = folder.stopped()
        self.names = folder.records.names()
        self.point = self._facts.measured
        self.metric = task_of(self.experiment).metrics[0] if self._result is None else Metric.of(self._result)

    @property
    def finished(self) -> bool:
        return self._result is not None

    @property
    def _facts(self) -> Facts:
        name, given = self.experiment.algorithm, self._objects.algorithm
        if given is None and name not in algorithms and not is_file_reference(name):
            raise ConfigError(
                f"{self._folder.path} was run with an algorithm of your own, {name}; pass it again: "
                f"coterie.open(..., algorithm={name}(...))"
            )
        return (algorithms[name] if given is None else given).facts  # type: ignore[union-attr]

    @functools.cached_property
    def totals(self) -> Totals:  # type: ignore[override]
        listed = self._folder.records.totals(self.experiment.peers + self._facts.hub)
        return listed or self._at_checkpoint.totals

    @property
    def trained(self) -> list[PeerModels]:  # type: ignore[override]
        return self._at_checkpoint.trained

    @functools.cached_property
    def clusters(self) -> Tensor | None:  # type: ignore[override]
        if "clusters" not in self._known:
            return self._at_checkpoint.clusters
        known = self._known["clusters"]
        return None if known is None else torch.tensor(known)

    @property
    def collaboration(self) -> Tensor | None:  # type: ignore[override]
        return self._at_checkpoint.collaboration

    @property
    def shares(self) -> Tensor:
        known = self._known.get("shares")
        return super().shares if known is None else torch.tensor(known, dtype=torch.double)

    @property
    def own_cluster_share(self) -> float | None:
        return (self._result or {}).get("own_cluster_share")

    @functools.cached_property
    def _at_checkpoint(self) -> Run:
        if not self._folder.checkpoint.is_file():
            raise RunFolderError(
                f"{self._folder.path} has no checkpoint, so that there are no models: the runs of a sweep "
                "leave none, and an interrupted run may not have come to its first"
            )
        return at_checkpoint(self._folder, objects=self._objects)

    def result(self) -> dict[str, Any]:
        """As the folder has it; of an interrupted run, what its records say so far."""
        return super().result() if self._result is None else dict(self._result)
