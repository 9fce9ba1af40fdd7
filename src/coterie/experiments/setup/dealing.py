"""The same data for all runs of a comparison: a user's loader is called once per seed, not once per run."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

from coterie.data import Federation
from coterie.experiments.setup.prepare import Objects, call_user_data, deal
from coterie.experiments.setup.schema import Experiment
from coterie.user_code import is_file_reference

_DECIDES_DATA = {"task", "data", "data_dir", "partition", "peers", "seed", "splitting", "evaluation"}


class Dealer:
    """Gives experiments their data; what a user's function returned is kept: it may not return it again.

    Of the catalogue's data only the last are kept: the next run often needs them, and loading gives the same.
    """

    def __init__(self, given: Objects | None = None) -> None:
        """given: a user's own objects, which all runs have."""
        self._given = given or Objects()
        self._returned: dict[tuple[str, str | None, int, int], Any] = {}
        self._last: tuple[str, Federation, str] | None = None

    def __call__(self, experiment: Experiment) -> tuple[Experiment, Objects]:
        """The experiment, whose partition is `own` if the data belonged to peers before, and its data."""
        text = deciding(experiment)
        if self._last is None or self._last[0] != text:
            federation, dealt = deal(experiment, self._asked(experiment))
            self._last = text, federation, dealt.partition
        _, federation, partition = self._last
        return experiment.model_copy(update={"partition": partition}), replace(self._given, dealt=federation)

    def _asked(self, experiment: Experiment) -> Objects:
        return (
            replace(self._given, data=self._own_data(experiment)) if self._given.data is None else self._given
        )

    def _own_data(self, experiment: Experiment) -> Any:
        if not is_file_reference(experiment.data):
            return None
        key = experiment.data, experiment.data_dir, experiment.peers, experiment.seed
        if key not in self._returned:
            self._returned[key] = call_user_data(*key)
        return self._returned[key]


def deciding(experiment: Experiment) -> str:
    """What decides everyone's data, as text: equal for experiments that have the same."""
    return experiment.model_dump_json(include=_DECIDES_DATA)


def data_digest(experiment: Experiment, federation: Federation) -> str | None:
    """Of everyone's samples, where a user's function returned them; other data follow from text and files."""
    if not is_file_reference(experiment.data):
        return None
    digest = hashlib.sha256()
    parts = (federation.train, federation.validation, federation.test)
    inputs = federation.x if isinstance(federation.x, dict) else {"": federation.x}
    others = (federation.y, *(value for part in parts for value in (part.index, part.offsets)))
    for name, tensor in (*inputs.items(), *(("", other) for other in others)):
        digest.update(f"{name}{(tensor.dtype, tuple(tensor.shape))}".encode())
        digest.update(tensor.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
