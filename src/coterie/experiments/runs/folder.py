"""A run as a folder: config, environment, append-only records, a checkpoint, the result.

    config.toml             the experiment with all its defaults filled in
    environment.json        versions, machine, and the executor that was chosen
    metrics.csv             a line for each round and peer
    rounds.csv              a line for each round: seconds, messages, bytes, and how many of these a hub sent
    links.csv               a line for each message: who sent how many bytes to whom, and did it arrive;
                            rounds of more than 100,000 messages are left out
    diagnostics.jsonl       what the algorithm recorded, a line for each round and quantity
    checkpoint.safetensors  the state after the last saved round
    result.json             written at the end

While a process writes to the folder, a locked file `.lock` in it keeps others out.

Rounds and peers count from 0. Lines of rounds after the checkpoint are dropped when a run is resumed, so
that an interrupted run leaves the same records as one that was not.
"""

from __future__ import annotations

import contextlib
import csv
import json
import os
import platform
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from coterie.errors import DamagedRunError, RunFolderError, RunInUseError
from coterie.experiments.runs.history import COLUMNS, History, Measurement, measurement_of
from coterie.experiments.setup.config import load_toml, resolve
from coterie.experiments.setup.schema import Experiment
from coterie.files import alone
from coterie.learning import cores
from coterie.simulation import POINTS, RoundRecord, write_atomically

_MEASURES = [f"{column}_{point}" for column in COLUMNS for point in POINTS]
_HEADERS = {
    "metrics.csv": ["round", "peer", "online", "train_loss", *_MEASURES],
    "rounds.csv": ["round", "seconds", "messages", "bytes", "hub_bytes"],
    "links.csv": ["round", "exchange", "sender", "receiver", "bytes", "delivered"],
}
_LOCK = ".lock"
MOST_LINKS = 100_000  # messages per round above which single messages are not recorded


class RunFolder:
    """Writes and reads one run's folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._files: dict[str, Any] = {}
        self._claim = contextlib.ExitStack()
        self._made: list[Path] = []  # by `create`: the folder itself, and those around it

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def checkpoint(self) -> Path:
        return self.path / "checkpoint.safetensors"

    @classmethod
    def create(cls, path: Path, experiment: Experiment, executor: str) -> RunFolder:
        """Make a new folder and claim it; one that already holds something is never touched."""
        made = _make(path)
        folder = cls(path).claim()
        folder._made = made
        try:
            _refuse_used(path)  # somebody may have been faster, and finished
            environment = json.dumps(_environment(executor), indent=2)
            write_atomically(path / "environment.json", environment.encode())
            write_atomically(path / "config.toml", experiment.to_toml().encode())
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
        except OSError as error:
            raise RunFolderError(f"cannot write in {self.path}: {error.strerror}") from None
        return self

    def experiment(self) -> Experiment:
        if not (self.path / "config.toml").is_file():
            raise RunFolderError(f"{self.path} is not a run folder: it has no config.toml")
        return resolve(load_toml(self.path / "config.toml"))

    def executor(self) -> str:
        environment = self._json("environment.json")
        name = environment.get("executor") if isinstance(environment, dict) else None
        if name not in ("stacked", "looped"):
            raise RunFolderError(f"{self.path / 'environment.json'} does not say which executor was used")
        return str(name)

    def result(self) -> dict[str, Any] | None:
        return self._json("result.json") if (self.path / "result.json").is_file() else None

    def append(self, record: RoundRecord) -> None:
        """Add one round to the records."""
        messages = messages_in(record)
        volume = sum(int(traffic.bytes.sum()) for traffic in record.traffic)
        self._write("metrics.csv", _metric_lines(record))
        by_hub = sum(int(one.bytes[one.senders >= len(record.online)].sum()) for one in record.traffic)
        self._write("rounds.csv", [[record.round, f"{record.seconds:.4f}", messages, volume, by_hub]])
        if messages <= MOST_LINKS:
            self._write("links.csv", _link_lines(record))
        for name, values in record.diagnostics.items():
            entry = {"round": record.round, "name": name, "values": values.tolist()}
            self._write("diagnostics.jsonl", [[json.dumps(entry)]])

    def flush(self) -> None:
        """Make sure that the records so far are on the disk."""
        for name, file in self._files.items():
            try:
                file.flush()
                os.fsync(file.fileno())
            except OSError as error:
                raise RunFolderError(f"cannot write {self.path / name}: {error.strerror}") from None

    def close(self) -> None:
        for file in self._files.values():
            with contextlib.suppress(OSError):  # what could not be written was reported when it was tried
                file.close()
        self._files.clear()
        self._claim.close()

    def withdraw(self) -> None:
        """Remove what `create` made, unless a round was recorded since: there is nothing to go on with."""
        if not (self.path / "rounds.csv").exists():
            for name in ("config.toml", "environment.json"):
                (self.path / name).unlink(missing_ok=True)
            self.close()
            with contextlib.suppress(OSError):  # somebody else put something there
                for folder in self._made:
                    folder.rmdir()

    def finish(self, result: dict[str, Any]) -> None:
        write_atomically(self.path / "result.json", json.dumps(result, indent=2).encode())

    def cut(self, round: int, peers: int) -> History:
        """Drop the records from `round` on, and return what the others say, which must be complete."""
        kept = {name: self._lines_before(round, name) for name in _HEADERS}
        history = self._history(kept, round, peers)
        history.collaboration = self._rewrite_diagnostics(round)
        for leftover in self.path.glob(".*.tmp"):  # of a write that was killed
            leftover.unlink(missing_ok=True)
        for name, lines in kept.items():
            if (self.path / name).exists():
                self._rewrite_csv(name, lines)
        return history

    def _history(self, kept: dict[str, list[dict[str, str]]], rounds: int, peers: int) -> History:
        history = History()
        try:
            history.seconds = [float(line["seconds"]) for line in kept["rounds.csv"]]
            measured = [(int(line["round"]), int(line["peer"])) for line in kept["metrics.csv"]]
            if measured != [(round, peer) for round in range(rounds) for peer in range(peers)]:
                raise ValueError(f"it lacks lines of the {rounds} rounds that the checkpoint has")
            for number in range(rounds):
                lines = kept["metrics.csv"][number * peers : (number + 1) * peers]
                found = _measurement(number, lines)
                if found.values:
                    history.measurements.append(found)
        except (ValueError, KeyError) as error:
            raise self._damaged("metrics.csv", error) from None
        if len(history.seconds) != rounds:
            raise self._damaged("rounds.csv", f"it has {len(history.seconds)} of {rounds} rounds")
        return history

    def _damaged(self, name: str, what: object) -> DamagedRunError:
        return DamagedRunError(
            f"{self.path / name} is damaged, so that the run cannot go on: {what}; nothing was changed"
        )

    def _json(self, name: str) -> dict[str, Any]:
        try:
            value: dict[str, Any] = json.loads((self.path / name).read_text())
        except (OSError, ValueError) as error:
            raise RunFolderError(f"{self.path / name} cannot be read: {error}") from None
        return value

    def _file(self, name: str) -> Any:
        if name not in self._files:
            path = self.path / name
            new = not path.exists() or path.stat().st_size == 0
            try:
                self._files[name] = open(path, "a", newline="", encoding="utf-8")  # noqa: SIM115
            except OSError as error:
                raise RunFolderError(f"cannot write {path}: {error.strerror}") from None
            if new and name in _HEADERS:
                self._files[name].write(",".join(_HEADERS[name]) + "\n")
        return self._files[name]

    def _write(self, name: str, lines: Iterable[Iterable[object]]) -> None:
        file = self._file(name)
        try:
            file.writelines(",".join(map(str, line)) + "\n" for line in lines)
            file.flush()
        except OSError as error:
            raise RunFolderError(
                f"cannot write {self.path / name}: {error.strerror}; what was written before is intact"
            ) from None

    def _lines_before(self, round: int, name: str) -> list[dict[str, str]]:
        """Whole lines of the rounds before this one; the last line may have been cut short by a crash."""
        path = self.path / name
        if not path.exists():
            return []
        try:
            with open(path, newline="", encoding="utf-8") as file:
                return [
                    line
                    for line in csv.DictReader(file)
                    if None not in line.values() and line["round"].isdigit() and int(line["round"]) < round
                ]
        except (ValueError, KeyError, csv.Error) as error:
            raise self._damaged(name, error) from None

    def _rewrite_csv(self, name: str, kept: list[dict[str, str]]) -> None:
        lines = [",".join(_HEADERS[name]), *(",".join(line[key] for key in _HEADERS[name]) for line in kept)]
        write_atomically(self.path / name, ("\n".join(lines) + "\n").encode())

    def _rewrite_diagnostics(self, round: int) -> torch.Tensor | None:
        """Returns the last collaboration weights that are kept."""
        path = self.path / "diagnostics.jsonl"
        if not path.exists():
            return None
        kept, weights = [], None
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                entry = json.loads(line)
            except ValueError:  # a line cut short by a crash
                continue
            if entry["round"] < round:
                kept.append(line + "\n")
                weights = entry["values"] if entry["name"] == "collaboration" else weights
        write_atomically(path, "".join(kept).encode())
        return None if weights is None else torch.tensor(weights)


def messages_in(record: RoundRecord) -> int:
    return sum(len(traffic.senders) for traffic in record.traffic)


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


def _metric_lines(record: RoundRecord) -> Iterable[list[object]]:
    measured = measurement_of(record)
    columns = [measured.get(column, point) for column in COLUMNS for point in POINTS]
    values = [[""] * len(record.online) if column is None else _texts(column) for column in columns]
    losses, online = _texts(record.train_loss), record.online.int().tolist()
    for peer in range(len(online)):
        yield [record.round, peer, online[peer], losses[peer], *(value[peer] for value in values)]


def _texts(values: torch.Tensor) -> list[str]:
    return ["" if value != value else repr(value) for value in values.tolist()]  # NaN: not measured


def _link_lines(record: RoundRecord) -> Iterable[tuple[object, ...]]:
    for slot, traffic in enumerate(record.traffic):
        columns = (traffic.senders, traffic.receivers, traffic.bytes, traffic.delivered.int())
        for line in zip(*(column.tolist() for column in columns), strict=True):
            yield (record.round, slot, *line)


def _measurement(round: int, lines: list[dict[str, str]]) -> Measurement:
    values = {}
    for column in COLUMNS:
        for point in POINTS:
            texts = [line[f"{column}_{point}"] for line in lines]
            if any(texts):
                values[column, point] = torch.tensor(
                    [float(text) if text else float("nan") for text in texts]
                )
    return Measurement(round, values)


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
