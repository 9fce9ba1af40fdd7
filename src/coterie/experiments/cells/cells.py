"""Cells: the runs that a sweep or a paper's table is made of, each in a folder of its own.

A cell's folder is named after a fingerprint of its experiment. So a finished cell is found again whoever asks
for it, a changed experiment is another cell, and two tables that need the same run share it.

    <folder>/<cell>/                a run folder (see `run_folder`), and
    <folder>/<cell>/facts.json      what the records lack: clusters, majority-class floor, collaboration
    <folder>/<cell>.broken.json     why the last attempt failed, until one succeeds
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coterie.errors import CoterieError, RunFolderError
from coterie.experiments.setup.schema import OWN_OBJECT, Experiment
from coterie.files import alone

FACTS = "facts.json"
MOST_PEERS_IN_SHARES = 500  # a denser matrix of who learned from whom would be larger than all other records
_DO_NOT_CHANGE_RESULTS: dict[str, Any] = {
    "data_dir": True,  # see `require_same`
    "preset": True,  # its values are in settings and training
    "execution": {"executor", "workers", "device", "checkpoint_seconds"},
}


@dataclass(frozen=True)
class Cell:
    """One run, and what distinguishes it from others for its reader: `{"algorithm": "local", "seed": 0}`."""

    experiment: Experiment
    labels: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of its folder."""
        e = self.experiment
        words = re.sub(r"[^A-Za-z0-9.]+", "-", f"{e.algorithm}-{Path(e.data).name}").strip("-.")
        return f"{words}-s{e.seed}-{fingerprint(e)}"

    def describe(self) -> str:
        return ", ".join(
            f"{value}" if key != "seed" else f"seed {value}" for key, value in self.labels.items()
        )


def fingerprint(experiment: Experiment) -> str:
    """Equal for experiments that give equal results; a new key with its default changes nothing."""
    table = _without_defaults(what_matters(experiment), what_matters(Experiment()))
    return hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()[:10]


def what_matters(experiment: Experiment) -> dict[str, Any]:
    """All that decides an experiment's results."""
    return experiment.model_dump(mode="json", exclude=_DO_NOT_CHANGE_RESULTS)


def _without_defaults(table: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    kept = {}
    for key, value in table.items():
        default = defaults.get(key)
        if isinstance(value, dict) and isinstance(default, dict):
            value = _without_defaults(value, default)
            default = {}
        if value != default:
            kept[key] = value
    return kept


def require_same(experiment: Experiment, folder: Path) -> None:
    """Refuse a folder whose experiment is another one in spite of its name.

    A default must have changed, the folder's name was used for something else, or the data files of another
    folder are asked for. A folder of data that is no longer there may have been moved: its name says nothing.
    """
    from coterie.experiments.runs.folder import RunFolder

    if not (folder / "config.toml").exists():
        return
    before = RunFolder(folder).experiment()
    stored, wanted = what_matters(before), what_matters(experiment)
    if stored["partition"] == OWN_OBJECT:  # known only once the data were there, not to who asks
        wanted["partition"] = OWN_OBJECT
    different = [key for key in wanted if stored.get(key) != wanted[key]]
    if different:
        raise RunFolderError(
            f"{folder} holds another experiment (different: {', '.join(different)}), perhaps made by "
            "another version; delete it, or choose another folder"
        )
    old, new = before.data_dir, experiment.data_dir
    moved = old and new and Path(old).is_dir() and Path(old).resolve() != Path(new).resolve()
    if moved and _reads_files(experiment.data):
        raise RunFolderError(
            f"{folder} was run with the data files in {old}, not with those in {new}; choose another folder "
            "for these, or delete it"
        )


def _reads_files(data: str) -> bool:
    from coterie.catalogue import sources
    from coterie.experiments.setup.config import is_file_reference

    return not is_file_reference(data) and bool(sources.build(data).needs_files)


def is_finished(folder: Path) -> bool:
    return (folder / "result.json").is_file() and (folder / FACTS).is_file()


def breakage(folder: Path) -> str | None:
    """Why the last attempt at the cell of this folder failed; None if it did not."""
    try:
        return str(json.loads(_breakage_file(folder).read_text(encoding="utf-8"))["error"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError) as error:
        return f"{_breakage_file(folder)} cannot be read: {error}"


def play(cell: Cell, where: Path, observer: Any = None) -> str | None:
    """Run a cell, or go on with it, or leave it if it is finished; the message if it breaks."""
    folder = where / cell.name
    try:
        where.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunFolderError(f"cannot make the folder {where}: {error.strerror}") from None
    with _claimed(folder):
        try:
            require_same(cell.experiment, folder)
            if not is_finished(folder):
                _play(cell.experiment, folder, observer)
        except Exception as error:  # whatever it is, the other cells must go on
            message = str(error) if isinstance(error, CoterieError) else f"{type(error).__name__}: {error}"
            note_breakage(folder, message)
            return message
        _breakage_file(folder).unlink(missing_ok=True)
    return None


def note_breakage(folder: Path, message: str) -> None:
    from coterie.simulation import write_atomically

    write_atomically(_breakage_file(folder), json.dumps({"error": message}, indent=2).encode())


def _breakage_file(folder: Path) -> Path:
    return folder.with_name(folder.name + ".broken.json")


def _play(experiment: Experiment, folder: Path, observer: Any) -> None:
    from coterie.experiments.runs.folder import RunFolder
    from coterie.experiments.runs.running import resume, run
    from coterie.experiments.setup.prepare import Objects
    from coterie.simulation import write_atomically

    # Cells run beside each other, so each has one thread.
    execution = experiment.execution.model_copy(update={"workers": 1})
    federation, partition = _dealt(_data_of(experiment))
    experiment = experiment.model_copy(update={"execution": execution, "partition": partition})
    objects = Objects(dealt=federation)
    if (folder / "config.toml").exists():
        done = resume(folder, objects=objects, observer=observer)
    else:
        if folder.exists():  # killed before it had started: nothing is lost
            shutil.rmtree(folder)
        done = run(experiment, objects=objects, run_dir=folder, observer=observer)
    write_atomically(folder / FACTS, json.dumps(_facts(done, federation)).encode())
    RunFolder(folder).checkpoint.unlink(missing_ok=True)  # models of many cells would fill the disk


def _data_of(experiment: Experiment) -> str:
    """The part of an experiment that decides the data, as text; the rest is left at its defaults."""
    kept = {"data", "data_dir", "partition", "peers", "seed", "splitting", "evaluation"}
    return experiment.model_dump_json(include=kept)


@functools.lru_cache(maxsize=1)
def _dealt(data: str) -> tuple[Any, str]:
    """The federation and its partition: the next cell often needs the data that this one has loaded."""
    from coterie.experiments.setup.prepare import Objects, deal

    federation, experiment = deal(Experiment.model_validate_json(data), Objects())
    return federation, experiment.partition


def _facts(run: Any, federation: Any) -> dict[str, Any]:
    own, common = _majority_floors(federation)
    shares = None
    if run.peers <= MOST_PEERS_IN_SHARES and bool(run.shares.any()):
        shares = [[round(value, 6) for value in row] for row in run.shares.tolist()]
    return {
        "clusters": None if run.clusters is None else run.clusters.tolist(),
        "majority_floor": own,
        "majority_floor_global": common,
        "shares": shares,
    }


def _majority_floors(federation: Any) -> tuple[list[float | None], float | None]:
    """How often each peer's most frequent training class is right on its own test data, and on the common."""
    favourite = federation.label_histogram("train").argmax(1)
    test = federation.label_histogram("test").double()
    right = test.gather(1, favourite[:, None])[:, 0] / test.sum(1)
    own = [None if value != value else value for value in right.tolist()]
    if federation.common_test is None:
        return own, None
    labels = federation.y[federation.common_test]
    return own, float((labels[None, :] == favourite[:, None]).double().mean())


@contextlib.contextmanager
def _claimed(folder: Path) -> Iterator[None]:
    """Only one process works on a cell; another that wants the same one waits, and then finds it finished."""
    locks = folder.parent / ".locks"
    locks.mkdir(exist_ok=True)
    with alone(locks / folder.name, wait=True):
        yield
