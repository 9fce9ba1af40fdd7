"""The data that a real peer alone has: read at the start, and again before a round if files have changed."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from coterie.data import Federation, from_peers
from coterie.data.federation import at
from coterie.data.own.code import call_for_data
from coterie.data.own.files import columns_in
from coterie.data.own.one_peer import OwnData, checked, load_own
from coterie.data.own.setting_aside import digests
from coterie.data.targets import Targets, targets_of
from coterie.errors import ConfigError, DataError
from coterie.experiments.setup.lying import with_false_labels
from coterie.experiments.setup.schema import Experiment
from coterie.inputs import Inputs, named
from coterie.learning import LearningNode
from coterie.peer.trust.settings import PeerSettings
from coterie.user_code import (
    data_file_parts,
    files_behind,
    files_named_in,
    is_file_reference,
    split_reference,
)

_log = logging.getLogger("coterie.peer")
_QUIET = 1.0  # seconds without a change before a file is read again: somebody may still be writing it
_PARTS = ("train", "validation", "test")

Seen = tuple[tuple[str, int, int, int], ...]  # path, time of change, size and inode of each file


def load_peer_data(reference: str, targets: Targets = "classes") -> OwnData:
    """What `data = "..."` in a `peer.toml` names: a file .npz, .csv or .parquet, or file.py:function."""
    if not is_file_reference(reference):
        return load_own(data_file_parts(reference)[0], targets, columns_in(reference))
    file, name = split_reference(reference)
    return checked(call_for_data(reference, {}), f"{name} in {file}", targets)


@dataclass
class OwnRows:
    """What one peer's `data` names, as it is now."""

    experiment: Experiment
    settings: PeerSettings
    _read: Seen = ()  # the files as they were when they were last read
    _changed: Seen = field(default=(), init=False)  # as they were when they were last looked at
    _since: float = field(default=0.0, init=False)  # when they were first seen so

    def federation(self) -> Federation:
        """The data of this peer as those of one of all peers, of which the others have none."""
        experiment, targets = self.experiment, targets_of(self.experiment.task)
        if experiment.classes is None and targets in ("classes", "tokens") and experiment.task != "binary":
            raise ConfigError(
                "peers with data of their own must agree on the number of classes: set classes = ... in the "
                "experiment's file"
            )
        self._read = self._look()  # before: a change meanwhile is seen later
        own = from_peers(
            [load_peer_data(self.settings.data, targets)],
            validation=experiment.splitting.validation,
            seed=experiment.seed,
            n_classes=2 if experiment.task == "binary" else experiment.classes,
            task=experiment.task,
        )
        place = min(self.settings.number, experiment.peers - 1)  # a hub's only show what samples look like
        return own.spread(place, experiment.peers)

    def renew(self, node: LearningNode) -> dict[str, int]:
        """Give the node the samples of today; how many are new or gone, empty if nothing has changed."""
        if bool(node.is_hub[0]) or not self._have_changed():
            return {}
        try:
            whole = with_false_labels(self.experiment, self.federation())
            fresh = _as_before(whole.of_nodes(node.ids, node.hub).to(node.federation.device), node.federation)
        except DataError as error:
            _log.warning("the changed data are not used: %s", error)
            return {}
        news = _news(node.federation, fresh)
        if not news:
            return {}
        node.renew(fresh)
        said = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in news.items())
        _log.warning("the data have changed: samples %s", said)
        return news

    def _have_changed(self) -> bool:
        """Whether the files are others than those that were read, and have been so for a moment."""
        now = self._look()
        if now == self._read:
            return False
        if now != self._changed:
            self._changed, self._since = now, time.monotonic()
        return time.monotonic() - self._since >= _QUIET

    def _look(self) -> Seen:
        found = []
        for path in self._files():
            try:
                status = path.stat()
            except OSError:  # replaced just now, or gone: reading it will say so
                continue
            found.append((str(path), status.st_mtime_ns, status.st_size, status.st_ino))
        return tuple(found)

    def _files(self) -> list[Path]:
        """The data file; of a function, the data files whose names stand in its code."""
        if not is_file_reference(self.settings.data):
            return [Path(data_file_parts(self.settings.data)[0])]
        code = files_behind(Path(split_reference(self.settings.data)[0]))
        return sorted({data for file in code for data in files_named_in(file)})


def sizes_of(federation: Federation) -> dict[str, int]:
    """How many samples the one peer of a federation has in each part."""
    return {part: int(getattr(federation, part).sizes[0]) for part in _PARTS}


def _as_before(fresh: Federation, old: Federation) -> Federation:
    """In the types of numbers that the model was built for; refuses samples that it was not built for."""
    if fresh.shape != old.shape or fresh.y.shape[1:] != old.y.shape[1:]:
        raise DataError(
            f"their samples have shape {fresh.shape}, and the model was built for {old.shape}; restart the "
            "peer if that is meant"
        )
    types = {name: part.dtype for name, part in named(old.x).items()}
    for name, part in named(fresh.x).items():
        if part.is_floating_point() and not types[name].is_floating_point:
            raise DataError("they hold real numbers, and the model was built for whole ones")
    if isinstance(fresh.x, dict):
        x: Inputs = {name: part.to(types[name]) for name, part in fresh.x.items()}
        return replace(fresh, x=x)
    return replace(fresh, x=fresh.x.to(next(iter(types.values()))))


def _news(old: Federation, fresh: Federation) -> dict[str, int]:
    """How many samples came to each part, and how many are gone; equal ones count each."""
    before, after = _counted(old), _counted(fresh)
    news = {f"new_{part}": (after[part] - before[part]).total() for part in _PARTS}
    every = [sum(counts.values(), Counter[bytes]()) for counts in (before, after)]
    news["gone"] = (every[0] - every[1]).total()
    return {name: count for name, count in news.items() if count}


def _counted(federation: Federation) -> Mapping[str, Counter[bytes]]:
    return {
        part: Counter(digests(at(federation.x, getattr(federation, part).index)))  # type: ignore[arg-type]
        for part in _PARTS
    }
