"""Where a run's records are written, and what they say: the files of `RunRecords`, and `History` in memory.

    peers.csv           a line for each peer: its number, its name if it has one, how many samples it has, its
                        true cluster where there are any, and its training samples by class
    metrics.csv         a line for each round and peer
    distributions.csv   of more than 5,000 peers: a line for each round and column, with quantiles over all
    rounds.csv          a line for each round: seconds, messages, bytes, and how many of these a hub sent
    links.csv           a line for each message: who sent how many bytes to whom, and did it arrive;
                        rounds of more than 100,000 messages are left out
    diagnostics.jsonl   what the algorithm recorded, a line for each round and quantity

Of more than 5,000 peers, 1,000 evenly spaced ones have lines in peers.csv, metrics.csv and diagnostics.jsonl,
and there is no links.csv. What only the values of all peers tell is in the checkpoint (`History.whole`).

Rounds and peers count from 0. `runs.reading` reads them again.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from coterie.data import Federation
from coterie.errors import RunFolderError
from coterie.files import write_atomically
from coterie.metric import GLOBAL, VALIDATION
from coterie.protocol import Point
from coterie.simulation import POINTS, RoundRecord
from coterie.spreads import COLUMNS, MOST_LISTED, Spread, listed

MOST_LINKS = 100_000  # messages per round above which single messages are not recorded
WORK = ("gradient_steps", "samples_seen")
TRAINING = ("online", "train_loss", *WORK)
TRAFFIC = ("messages", "bytes", "hub_bytes")
PEERS = "peers.csv"
CLASS = "class "  # before the name of a class, or bin of numbers, in a column of peers.csv
MOST_CLASSES = 1000  # more are not listed
_PEER = ("peer", "name", "train", "validation", "test", "cluster")


@dataclass(frozen=True)
class Measurement:
    """All peers' personal models at both points of one round; of very many peers perhaps a sample."""

    round: int
    values: dict[tuple[str, str], Tensor]  # (column, point) -> (peers,), or of the sample
    training: dict[str, Tensor] = field(default_factory=dict)  # of `TRAINING`: likewise
    peers: int = 0  # how many there are, if only those of `spreads.listed` are here
    spreads: Mapping[str, Spread] = field(default_factory=dict)  # of all of them, by column of metrics.csv

    def get(self, column: str, point: str) -> Tensor | None:
        """(peers,) NaN for those whose value is not known."""
        found = self.values.get((column, point))
        return found if found is None or not self.peers else _scattered(found, self.peers)

    def trained(self, name: str) -> Tensor | None:
        """(peers,) one of `TRAINING`."""
        found = self.training.get(name)
        return found if found is None or not self.peers else _scattered(found, self.peers)

    def mean(self, column: str, point: str) -> float | None:
        """Over all peers whose value is known."""
        if spread := self.spreads.get(f"{column}_{point}"):
            return spread.mean
        values = self.values.get((column, point))
        return None if values is None or bool(values.isnan().all()) else float(values.nanmean())

    def sample(self) -> Measurement:
        """With the values of the listed peers only."""
        if self.peers:
            return self
        some, peers = those_listed(len(next(iter(self.values.values()))))
        values = {key: found[some] for key, found in self.values.items()}
        training = {name: found[some] for name, found in self.training.items()}
        return replace(self, values=values, training=training, peers=peers)


def _scattered(values: Tensor, peers: int) -> Tensor:
    everyone = torch.full((peers,), torch.nan)
    everyone[those_listed(peers)[0]] = values.float()
    return everyone


def those_listed(peers: int) -> tuple[Tensor, int]:
    """Who is listed, of very many peers, and of how many."""
    some = listed(peers)
    assert some is not None
    return torch.from_numpy(some), peers


@dataclass
class History:
    """Measurements in the order of rounds, the time of every round, and all local work so far.

    Of very many peers only the last measurement has everyone's values. keeps_all: all of them have.
    """

    measurements: list[Measurement] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    traffic: list[tuple[int, ...]] = field(default_factory=list)  # of `TRAFFIC`, in every round
    work: dict[str, Tensor] = field(default_factory=dict)  # of `WORK`: (peers,) NaN where it is not known
    keeps_all: bool = False

    def add(self, record: RoundRecord) -> None:
        self.seconds.append(record.seconds)
        self.traffic.append(traffic_of(record))
        for name in WORK:
            done = getattr(record, name).double()
            self.work[name] = self.work.get(name, torch.zeros_like(done)) + done
        if record.evaluations:
            if self.measurements and len(record.online) > MOST_LISTED and not self.keeps_all:
                self.measurements[-1] = self.measurements[-1].sample()
            self.measurements.append(measurement_of(record))

    def copy(self) -> History:
        """What is known now, whatever is added later."""
        return replace(
            self,
            measurements=list(self.measurements),
            seconds=list(self.seconds),
            traffic=list(self.traffic),
            work=dict(self.work),
        )

    def whole(self) -> dict[str, Tensor]:
        """What the records do not say of very many peers; a checkpoint holds it."""
        found = {f"work/{name}": done for name, done in self.work.items()}
        if max(map(len, found.values()), default=0) <= MOST_LISTED:
            return {}
        for one in self.measurements:
            if not one.peers:
                values = {f"{column}/{point}": values for (column, point), values in one.values.items()}
                values |= {f"training/{name}": values for name, values in one.training.items()}
                found |= {f"{one.round}/{name}": values for name, values in values.items()}
        return found

    def recall(self, whole: Mapping[str, Tensor]) -> None:
        """Put back what a checkpoint held."""
        places = {one.round: place for place, one in enumerate(self.measurements)}
        found: dict[int, dict[tuple[str, str], Tensor]] = {}
        for name, tensor in whole.items():
            first, _, rest = name.partition("/")
            if first == "work":
                self.work[rest] = tensor
            elif int(first) in places:
                column, _, point = rest.rpartition("/")
                found.setdefault(int(first), {})[column, point] = tensor
        for round, values in found.items():
            training = {name: values.pop(("training", name)) for name in TRAINING}
            one = self.measurements[places[round]]
            self.measurements[places[round]] = replace(one, values=values, training=training, peers=0)

    @property
    def rounds(self) -> list[int]:
        """The rounds that were measured, counted from 1 as users do."""
        return [m.round + 1 for m in self.measurements]

    @property
    def main(self) -> str:
        """The name of the main metric, whose column comes first."""
        return next(iter(self.measurements[0].values))[0] if self.measurements else ""

    def scores(self, metric: str, point: Point) -> Tensor:
        """(measured rounds, peers) a metric of the personal models over time; NaN for who is not listed."""
        found = [m.get(metric, point) for m in self.measurements]
        return torch.stack([values for values in found if values is not None])

    def last(self, column: str, point: str) -> Tensor | None:
        """The last round in which it was measured."""
        for measurement in reversed(self.measurements):
            values = measurement.get(column, point)
            if values is not None:
                return values
        return None


def measurement_of(record: RoundRecord) -> Measurement:
    values: dict[tuple[str, str], Tensor] = {}
    for point, evaluation in record.evaluations.items():
        values |= {(name, point): found for name, found in evaluation.metrics.items()}
        values["loss", point] = evaluation.loss
        values |= {(f"{GLOBAL}{name}", point): found for name, found in evaluation.on_common.items()}
        values |= {(f"{VALIDATION}{name}", point): found for name, found in evaluation.validation.items()}
    training = {name: getattr(record, name) for name in TRAINING}
    return Measurement(record.round, values, training, spreads=_spreads(record, values))


def _spreads(record: RoundRecord, values: Mapping[tuple[str, str], Tensor]) -> dict[str, Spread]:
    """Of all columns of metrics.csv, if not everyone has a line there."""
    if len(record.online) <= MOST_LISTED:
        return {}
    named = {f"{column}_{point}": found for (column, point), found in values.items()}
    everyone = {name: getattr(record, name) for name in TRAINING} | named
    found = {name: Spread.of(values) for name, values in everyone.items()}
    return {name: spread for name, spread in found.items() if spread is not None}


HEADERS = {  # that of metrics.csv goes on with what is measured, and WORK
    "metrics.csv": ["round", "peer", "online", "train_loss"],
    "rounds.csv": ["round", "seconds", *TRAFFIC],
    "links.csv": ["round", "exchange", "sender", "receiver", "bytes", "delivered"],
    "distributions.csv": ["round", "column", *COLUMNS],
}
DIAGNOSTICS = "diagnostics.jsonl"


class RunRecords:
    """Appends rounds to the records in a run's folder, and reads them when the run is resumed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: dict[str, Any] = {}
        self._measured: list[str] | None = None

    @property
    def begun(self) -> bool:
        """Whether a round was recorded."""
        return (self.folder / "rounds.csv").exists()

    def list_peers(self, federation: Federation) -> None:
        """Write down who takes part, before the first round; of very many without names, those listed."""
        some = None if federation.names else listed(federation.peers)
        numbers = range(federation.peers) if some is None else some.tolist()
        if some is not None:
            federation = federation.take(torch.from_numpy(some))
        parts = (federation.train, federation.validation, federation.test)
        sizes = [part.sizes.tolist() for part in parts]
        names = federation.names or [""] * federation.peers
        clusters = [""] * federation.peers if federation.clusters is None else federation.clusters.tolist()
        classes = federation.group_names if 1 < federation.groups.count <= MOST_CLASSES else ()
        counts = federation.label_histogram("train").T.tolist() if classes else []
        text = io.StringIO()
        lines = csv.writer(text, lineterminator="\n")
        lines.writerow([*_PEER, *(f"{CLASS}{name}" for name in classes)])
        lines.writerows(zip(numbers, names, *sizes, clusters, *counts, strict=True))
        write_atomically(self.folder / PEERS, text.getvalue().encode())

    def names(self) -> tuple[str, ...]:
        """The peers' names; empty if they have none, or if a version ran that did not write them."""
        try:
            with open(self.folder / PEERS, newline="", encoding="utf-8") as file:
                found = tuple(line["name"] for line in csv.DictReader(file))
        except (OSError, ValueError, KeyError, csv.Error):
            return ()
        return found if all(found) else ()

    def append(self, record: RoundRecord) -> None:
        """Add one round to the records."""
        traffic, found = traffic_of(record), measurement_of(record)
        some = slice(None) if len(record.online) <= MOST_LISTED else those_listed(len(record.online))[0]
        if self._measured is None:
            self._measured = self._columns() or columns_of(record)
        self._write("metrics.csv", _metric_lines(record, found, self._measured, some))
        if found.spreads:
            lines = ([record.round, name, *spread.line()] for name, spread in found.spreads.items())
            self._write("distributions.csv", lines)
        self._write("rounds.csv", [[record.round, f"{record.seconds:.4f}", *traffic]])
        if lists_messages(record):
            self._write("links.csv", _link_lines(record))
        for name, values in record.diagnostics.items():
            entry = {"round": record.round, "name": name, "values": values[some].tolist()}
            self._write(DIAGNOSTICS, [[json.dumps(entry)]])

    def flush(self) -> None:
        """Make sure that the records so far are on the disk."""
        for name, file in self._files.items():
            try:
                file.flush()
                os.fsync(file.fileno())
            except OSError as error:
                raise RunFolderError(f"cannot write {self.folder / name}: {error.strerror}") from None

    def close(self) -> None:
        for file in self._files.values():
            with contextlib.suppress(OSError):  # what could not be written was reported when it was tried
                file.close()
        self._files.clear()

    def _file(self, name: str) -> Any:
        if name not in self._files:
            path = self.folder / name
            new = not path.exists() or path.stat().st_size == 0
            try:
                self._files[name] = open(path, "a", newline="", encoding="utf-8")  # noqa: SIM115
            except OSError as error:
                raise RunFolderError(f"cannot write {path}: {error.strerror}") from None
            if new and name in HEADERS:
                self._files[name].write(",".join(self.header(name)) + "\n")
        return self._files[name]

    def header(self, name: str) -> list[str]:
        more = [*(self._measured or self._columns()), *WORK] if name == "metrics.csv" else []
        return [*HEADERS[name], *more]

    def _columns(self) -> list[str]:
        """The columns of metrics.csv that are measured, if there is one."""
        path = self.folder / "metrics.csv"
        if not path.is_file():
            return []
        with open(path, encoding="utf-8", errors="replace") as file:
            return [name for name in file.readline().strip().split(",") if place_of(name) is not None]

    def _write(self, name: str, lines: Iterable[Iterable[object]]) -> None:
        file = self._file(name)
        try:
            file.writelines(",".join(map(str, line)) + "\n" for line in lines)
            file.flush()
        except OSError as error:
            raise RunFolderError(
                f"cannot write {self.folder / name}: {error.strerror}; what was written before is intact"
            ) from None


def messages_in(record: RoundRecord) -> int:
    return sum(len(traffic.senders) for traffic in record.traffic)


def lists_messages(record: RoundRecord) -> bool:
    """Whether single messages of this round are recorded."""
    return messages_in(record) <= MOST_LINKS and len(record.online) <= MOST_LISTED


def traffic_of(record: RoundRecord) -> tuple[int, ...]:
    """Of `TRAFFIC`: messages, their bytes, and how many of these a hub sent."""
    volume = sum(int(traffic.bytes.sum()) for traffic in record.traffic)
    by_hub = sum(int(one.bytes[one.senders >= len(record.online)].sum()) for one in record.traffic)
    return messages_in(record), volume, by_hub


def columns_of(record: RoundRecord) -> list[str]:
    """The columns of what can be measured in a run, from a round that is."""
    first = record.evaluations.get(POINTS[0])
    names, validated = ([], []) if first is None else (list(first.metrics), list(first.validation))
    columns = [*names, "loss", *(f"{GLOBAL}{name}" for name in names)]
    columns += [f"{VALIDATION}{name}" for name in validated]
    return [f"{column}_{point}" for column in columns for point in POINTS]


def place_of(name: str) -> tuple[str, str] | None:
    """The column and the point in accuracy_after_local; None for what is not measured."""
    point = next((point for point in POINTS if name.endswith(f"_{point}")), None)
    return None if point is None else (name.removesuffix(f"_{point}"), point)


def _metric_lines(
    record: RoundRecord, found: Measurement, names: list[str], some: Any
) -> Iterable[list[object]]:
    """some: the peers that are listed."""
    measured = {f"{column}_{point}": values[some] for (column, point), values in found.values.items()}
    peers = torch.arange(len(record.online))[some].tolist()
    columns = [measured.get(name) for name in names]
    values = [[""] * len(peers) if column is None else _texts(column) for column in columns]
    losses, online = _texts(record.train_loss[some]), record.online[some].int().tolist()
    work = [getattr(record, name)[some].tolist() for name in WORK]
    for place, peer in enumerate(peers):
        more = (column[place] for column in (*values, *work))
        yield [record.round, peer, online[place], losses[place], *more]


def _texts(values: Tensor) -> list[str]:
    return ["" if value != value else repr(value) for value in values.tolist()]  # NaN: not measured


def _link_lines(record: RoundRecord) -> Iterable[tuple[object, ...]]:
    for slot, traffic in enumerate(record.traffic):
        columns = (traffic.senders, traffic.receivers, traffic.bytes, traffic.delivered.int())
        for line in zip(*(column.tolist() for column in columns), strict=True):
            yield (record.round, slot, *line)
