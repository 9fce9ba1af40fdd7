"""A run as a folder: config, environment, append-only records, a checkpoint, the result.

    config.toml             the experiment with all its defaults filled in
    environment.json        versions, machine, the executor that was chosen, digests of the files that decide
    *.csv, *.jsonl          what happened in each round: see `runs.records`
    checkpoint.safetensors  the state after the last saved round
    shares.npz              whom each peer weighed how much at the end, if the algorithm learns that
    result.json             written at the end

While a process writes to the folder, a locked file `.lock` in it keeps others out.
"""

from __future__ import annotations

import contextlib
import io
import json
import platform
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.errors import OtherRunError, RunFolderError, RunInUseError
from coterie.experiments.runs.reading import KeptRecords
from coterie.experiments.runs.records import PEERS
from coterie.experiments.setup.config import overruled, own_work, reads_files, resolve
from coterie.experiments.setup.contents import contents, data_contents
from coterie.experiments.setup.digest import what_matters
from coterie.experiments.setup.schema import OWN_OBJECT, Experiment
from coterie.files import alone, write_atomically
from coterie.learning import cores
from coterie.sharing import shares_of
from coterie.toml_tables import load_toml, validate

_LOCK = ".lock"
SHARES = "shares.npz"
MOST_PEERS_IN_SHARES = 1000  # a matrix of more is larger than all other records, and shows nothing


class RunFolder:
    """Writes and reads one run's folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.records = KeptRecords(path)
        self._claim = contextlib.ExitStack()
        self._made: list[Path] = []  # by `create`: the folder itself, and those around it

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def checkpoint(self) -> Path:
        return self.path / "checkpoint.safetensors"

    @property
    def holds_run(self) -> bool:
        """Whether a run was started here, which can be resumed."""
        return (self.path / "config.toml").exists()

    @classmethod
    def create(
        cls,
        path: Path,
        experiment: Experiment,
        executor: str,
        data: str | None = None,
        measured: Mapping[str, Any] | None = None,
    ) -> RunFolder:
        """Make a new folder and claim it; one that already holds something is never touched.

        data: a digest of everyone's samples, where only they can tell whether others have the same.
        measured: what is measured and where, for those who look on.
        """
        made = _make(path)
        folder = cls(path).claim()
        folder._made = made
        try:
            _refuse_used(path)  # somebody may have been faster, and finished
            files = {"files": contents(experiment), "data_files": data_contents(experiment)}
            environment = {**_environment(executor), **files, "data": data, "measured": dict(measured or {})}
            write_atomically(path / "environment.json", json.dumps(environment, indent=2).encode())
            write_atomically(path / "config.toml", _config(experiment).encode())
        except BaseException:
            folder.close()
            raise
        return folder

    def claim(self) -> RunFolder:
        """Keep other processes from writing here, until `close`."""
        try:
            self._claim.enter_context(alone(self.path / _LOCK, wait=False))
        except BlockingIOError:
            raise RunInUseError(
                f"{self.path} is in use by another process; wait until its run has ended"
            ) from None
        return self

    def experiment(self) -> Experiment:
        return resolve(self.stored_experiment().model_dump(exclude_none=True))

    def stored_experiment(self) -> Experiment:
        """As it was run, also where what its names stand for is no longer there."""
        if not (self.path / "config.toml").is_file():
            raise RunFolderError(f"{self.path} is not a run folder: it has no config.toml")
        return validate(Experiment, load_toml(self.path / "config.toml"), str(self.path / "config.toml"))

    def executor(self) -> str:
        name = self._json("environment.json").get("executor")
        if name not in ("stacked", "looped"):
            raise RunFolderError(f"{self.path / 'environment.json'} does not say which executor was used")
        return str(name)

    def result(self) -> dict[str, Any] | None:
        return self._json("result.json") if (self.path / "result.json").is_file() else None

    def stopped(self) -> str | None:
        """Why the run here ended before its last round; None if it did not."""
        reason = (self.result() or {}).get("stopped")
        return None if reason is None else str(reason)

    def close(self) -> None:
        self.records.close()
        self._claim.close()

    def withdraw(self) -> None:
        """Remove what `create` made, unless a round was recorded since: there is nothing to go on with."""
        if not self.records.begun:
            for name in ("config.toml", "environment.json", PEERS):
                (self.path / name).unlink(missing_ok=True)
            self.close()
            with contextlib.suppress(OSError):  # somebody else put something there
                for folder in self._made:
                    folder.rmdir()

    def keep_shares(self, collaboration: Tensor) -> None:
        """Write down whom each peer weighed how much: sparse, as shares of each row."""
        shares = shares_of(collaboration.double()).float().cpu()
        receivers, senders = shares.nonzero().T
        content = io.BytesIO()
        columns = {
            "receivers": receivers.int(),
            "senders": senders.int(),
            "shares": shares[receivers, senders],
        }
        np.savez_compressed(content, **{name: column.numpy() for name, column in columns.items()})
        write_atomically(self.path / SHARES, content.getvalue())

    def finish(self, result: dict[str, Any]) -> None:
        write_atomically(self.path / "result.json", json.dumps(result, indent=2).encode())

    def require_same(self, experiment: Experiment) -> None:
        """Refuse another experiment than the one whose run is here; where there is none, all is well.

        A default must have changed, the folder's name was used for something else, or a file that decides the
        results was edited since. Data files count by what is in them, wherever their folder is now.
        """
        if not self.holds_run:
            return
        before = self.experiment()
        stored, wanted = what_matters(before), what_matters(experiment)
        if stored["partition"] == OWN_OBJECT:  # known only once the data were there, not to who asks
            wanted["partition"] = OWN_OBJECT
        different = [key for key in wanted if stored.get(key) != wanted[key]]
        if different:
            raise OtherRunError(
                f"{self.path} holds another experiment (different: {', '.join(different)}), perhaps made by "
                "another version; delete it, or choose another folder"
            )
        if not self.digests("data_files"):  # a version did not write down what was in them
            self._require_same_data_folder(before, experiment)
        self.require_same_files(experiment)

    def _require_same_data_folder(self, before: Experiment, now: Experiment) -> None:
        old, new = before.data_dir, now.data_dir
        moved = old and new and Path(old).is_dir() and Path(old).resolve() != Path(new).resolve()
        if moved and reads_files(now.data):
            raise OtherRunError(
                f"{self.path} was run with the data files in {old}, not with those in {new}; choose another "
                "folder for these, or delete it"
            )

    def require_same_files(self, experiment: Experiment) -> None:
        """Refuse to mix what a file gave before and after it was edited: a user's, or a data set's."""
        changed = [Path(path).name for path in _changed(self.digests("files"), contents(experiment))]
        data = data_contents(experiment)
        if data:  # else they are not here, which says nothing of what they are
            names = _changed(self.digests("data_files"), data)
            changed += [f"{name} in {experiment.data_dir}" for name in names]
        if changed:
            raise OtherRunError(
                f"{', '.join(dict.fromkeys(changed))} changed since the run in {self.path} began, and its "
                "results are those of before; start it again in another folder, or undo the change"
            )

    def digests(self, kind: str) -> dict[str, str] | None:
        """Of the user's `files`, or of the `data_files`, when the run began; None: a version did not say."""
        written = (self.path / "environment.json").is_file()
        found = self._json("environment.json").get(kind) if written else None
        return found if isinstance(found, dict) else None

    def require_same_data(self, experiment: Experiment, data: str | None) -> None:
        """Refuse to go on with other samples than those that the run began with."""
        before = self._json("environment.json").get("data")
        if before is not None and before != data:
            raise OtherRunError(
                f"{experiment.data} returned other data than when the run in {self.path} began; let it "
                "return the same for the same `peers` and `seed`, or start again in another folder"
            )

    def _json(self, name: str) -> dict[str, Any]:
        try:
            value = json.loads((self.path / name).read_text())
        except (OSError, ValueError) as error:
            raise RunFolderError(f"{self.path / name} cannot be read: {error}") from None
        if not isinstance(value, dict):
            raise RunFolderError(f"{self.path / name} cannot be read: it holds no table of names and values")
        return value


def _changed(before: dict[str, str] | None, now: dict[str, str]) -> list[str]:
    """The paths whose content is another, or which are there only before or only now."""
    if before is None:
        return []
    return [path for path in {**now, **before} if before.get(path) != now.get(path)]


def _make(path: Path) -> list[Path]:
    """The folders that had to be made, the innermost first."""
    try:
        _refuse_used(path)
        missing = [folder for folder in (path, *path.parents) if not folder.exists()]
        path.mkdir(parents=True, exist_ok=True)
        return missing
    except OSError as error:
        raise RunFolderError(f"cannot make the folder {path}: {error.strerror}") from None


def _refuse_used(path: Path) -> None:
    if path.exists() and (not path.is_dir() or any(inside.name != _LOCK for inside in path.iterdir())):
        raise RunFolderError(
            f"{path} exists already; choose another folder, or continue that run with --resume {path}"
        )


def _config(experiment: Experiment) -> str:
    """The experiment, and a comment where more than one of its keys seem to say how long a round trains."""
    names = own_work(experiment)
    if not names:
        return experiment.to_toml()
    listed = f"{', '.join(names)} of {experiment.algorithm}"
    comment = f"# How long a round trains is also up to {listed}; metrics.csv counts the steps."
    if overruled(experiment):
        whatever = f"whatever {listed} says"
        comment = f'# training.work is "equal": the local steps of a round are those of Local, {whatever}.'
    return f"{comment}\n{experiment.to_toml()}"


def _environment(executor: str) -> dict[str, Any]:
    return {
        "executor": executor,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "coterie": version("coterie"),
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "platform": platform.platform(),
        "cores": cores(),
    }
