"""What members may change together while they learn: rounds, learning rate, deadline.

Each writes it into its own files, which a running peer reads again. What a quorum wants is in force, and
stays so after a restart, until the files say something else.
"""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path

from coterie.errors import CoterieError
from coterie.experiments.real_peers.folder import experiment_of
from coterie.experiments.setup.digest import experiment_digest
from coterie.experiments.setup.schema import Experiment
from coterie.files import write_atomically
from coterie.peer.network.messages import Terms
from coterie.peer.trust.settings import SETTINGS_FILE, PeerSettings, settings_from
from coterie.toml_tables import load_toml

_log = logging.getLogger("coterie.peer")
TERMS_FILE = "terms.json"


class AgreedTerms:
    """state: the folder of a peer's state, beside which its `peer.toml` is. digest: of the experiment."""

    def __init__(self, state: Path, settings: PeerSettings, experiment: Experiment, digest: str) -> None:
        self._file, self._folder, self._digest = state / TERMS_FILE, state.parent, digest
        self._settings, self._experiment = settings, experiment
        self._wanted = self._by_files(settings, experiment)
        self._stamp = self._stamps()
        self.now = self._kept() or self._wanted

    def wanted(self) -> Terms:
        """By the files as they are; what cannot be read, or is another experiment, changes nothing."""
        stamp = self._stamps()
        if stamp == self._stamp:
            return self._wanted
        self._stamp = stamp
        try:
            table = load_toml(self._folder / SETTINGS_FILE)
            settings = settings_from(table, self._folder)
            experiment = experiment_of(settings)
            if experiment_digest(experiment) == self._digest:
                self._wanted = self._by_files(settings, experiment)
            else:
                _log.warning(
                    "%s is another experiment now: only rounds and training.lr can change in a running one",
                    settings.experiment,
                )
        except CoterieError as error:
            _log.warning("%s", error)
        return self._wanted

    def in_force(self, experiment: Experiment) -> Experiment:
        """The experiment as it is now."""
        training = replace(experiment.training, lr=self.now.lr)
        return experiment.model_copy(update={"rounds": self.now.rounds, "training": training})

    def evaluates(self, round: int) -> bool:
        return self._experiment.model_copy(update={"rounds": self.now.rounds}).evaluates(round)

    def adopt(self, terms: Terms) -> None:
        self.now = terms
        kept = {"files": self._wanted.model_dump(), "in force": terms.model_dump()}
        write_atomically(self._file, json.dumps(kept).encode())

    def _kept(self) -> Terms | None:
        """What was adopted before, unless the files have changed since."""
        try:
            kept = json.loads(self._file.read_bytes()[:10_000])
            same = Terms.model_validate(kept["files"]) == self._wanted
            return Terms.model_validate(kept["in force"]) if same else None
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            _log.warning("%s cannot be read, and is left out of account", self._file)
            return None

    def _by_files(self, settings: PeerSettings, experiment: Experiment) -> Terms:
        return Terms(rounds=experiment.rounds, lr=experiment.training.lr, deadline=settings.deadline)

    def _stamps(self) -> tuple[object, ...]:
        stamps: list[object] = []
        for path in (self._folder / SETTINGS_FILE, Path(self._settings.experiment)):
            try:
                facts = path.stat()
                stamps.append((facts.st_mtime_ns, facts.st_size, facts.st_ino))
            except OSError:
                stamps.append(None)
        return tuple(stamps)
