"""Where a run's records are written, and what they say: the files of `RunRecords`, and `History` in memory.

    peers.csv           a line for each peer: its number, its name if it has one, how many samples it has
    metrics.csv         a line for each round and peer
    rounds.csv          a line for each round: seconds, messages, bytes, and how many of these a hub sent
    links.csv           a line for each message: who sent how many bytes to whom, and did it arrive;
                        rounds of more than 100,000 messages are left out
    diagnostics.jsonl   what the algorithm recorded, a line for each round and quantity

Rounds and peers count from 0. Lines of rounds after the checkpoint are dropped when a run is resumed, so
that an interrupted run leaves the same records as one that was not.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import math
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from coterie.data import Federation
from coterie.errors import DamagedRunError, RunFolderError
from coterie.files import write_atomically
from coterie.metric import GLOBAL, VALIDATION, Metric
from coterie.protocol import Point
from coterie.simulation import POINTS, RoundRecord, Totals, Traffic

MOST_LINKS = 100_000  # messages per round above which single messages are not recorded
WORK = ("gradient_steps", "samples_seen")
PEERS = "peers.csv"
TRAINING = ("online", "train_loss", *WORK)
TRAFFIC = ("messages", "bytes", "hub_bytes")


@dataclass(frozen=True)
class Measurement:
    """All peers' personal models at both points of one round."""

    round: int
    values: dict[tuple[str, str], Tensor]  # (column, point) -> (peers,)
    training: dict[str, Tensor] = field(default_factory=dict)  # of `TRAINING`: (peers,) each

    def get(self, column: str, point: str) -> Tensor | None:
        return self.values.get((column, point))


@dataclass
class History:
    """Measurements in the order of rounds, the time of every round, and all local work so far."""

    measurements: list[Measurement] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    traffic: list[tuple[int, ...]] = field(default_factory=list)  # of `TRAFFIC`, in every round
    work: dict[str, Tensor] = field(default_factory=dict)  # of `WORK`: (peers,) NaN where it is not known

    def add(self, record: RoundRecord) -> None:
        self.seconds.append(record.seconds)
        self.traffic.append(_traffic_of(record))
        for name in WORK:
            done = getattr(record, name).double()
            self.work[name] = self.work.get(name, torch.zeros_like(done)) + done
        if record.evaluations:
            self.measurements.append(measurement_of(record))

    @property
    def rounds(self) -> list[int]:
        """The rounds that were measured, counted from 1 as users do."""
        return [m.round + 1 for m in self.measurements]

    @property
    def main(self) -> str:
        """The name of the main metric, whose column comes first."""
        return next(iter(self.measurements[0].values))[0] if self.measurements else ""

    def scores(self, metric: str, point: Point) -> Tensor:
        """(measured rounds, peers) a metric of the personal models over time."""
        return torch.stack([m.values[metric, point] for m in self.measurements])

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
    return Measurement(record.round, values, {name: getattr(record, name) for name in TRAINING})


def distribution(values: Tensor | None, metric: Metric) -> dict[str, Any] | None:
    """Mean, standard deviation and worst decile over peers: one mean hides who was hurt.

    The worst decile is the mean of the worst tenth of the peers, at least one.
    """
    if values is None:
        return None
    known = values[~values.isnan()].double()
    if not len(known):
        return None
    worst = known.sort(descending=not metric.higher_is_better).values
    return {
        "mean": float(known.mean()),
        "std": float(known.std(unbiased=False)),
        "worst_decile": float(worst[: max(1, math.ceil(len(known) / 10))].mean()),
        "per_peer": [None if math.isnan(value) else value for value in values.tolist()],
    }


_HEADERS = {  # that of metrics.csv goes on with what is measured, and WORK
    "metrics.csv": ["round", "peer", "online", "train_loss"],
    "rounds.csv": ["round", "seconds", *TRAFFIC],
    "links.csv": ["round", "exchange", "sender", "receiver", "bytes", "delivered"],
}
_DIAGNOSTICS = "diagnostics.jsonl"


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
        """Write down who takes part, before the first round."""
        parts = (federation.train, federation.validation, federation.test)
        sizes = [part.sizes.tolist() for part in parts]
        names = federation.names or [""] * federation.peers
        text = io.StringIO()
        lines = csv.writer(text, lineterminator="\n")
        lines.writerow(["peer", "name", "train", "validation", "test"])
        lines.writerows(zip(range(federation.peers), names, *sizes, strict=True))
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
        traffic = _traffic_of(record)
        if self._measured is None:
            self._measured = self._columns() or columns_of(record)
        self._write("metrics.csv", _metric_lines(record, self._measured))
        self._write("rounds.csv", [[record.round, f"{record.seconds:.4f}", *traffic]])
        if messages_in(record) <= MOST_LINKS:
            self._write("links.csv", _link_lines(record))
        for name, values in record.diagnostics.items():
            entry = {"round": record.round, "name": name, "values": values.tolist()}
            self._write(_DIAGNOSTICS, [[json.dumps(entry)]])

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

    def cut(self, round: int, peers: int) -> History:
        """Drop the records from `round` on, and return what the others say, which must be complete."""
        kept = {name: self._lines_before(round, name) for name in _HEADERS}
        history = self._history(kept, round, peers)
        self._cut_diagnostics(round)
        for leftover in self.folder.glob(".*.tmp"):  # of a write that was killed
            leftover.unlink(missing_ok=True)
        for name, lines in kept.items():
            if (self.folder / name).exists():
                self._rewrite(name, lines)
        return history

    def read(self, peers: int) -> History:
        """What the records say of the rounds that are complete. Nothing is changed."""
        kept = {name: self._lines_before(None, name) for name in ("metrics.csv", "rounds.csv")}
        rounds = len(kept["rounds.csv"])  # written after the peers' lines
        kept["metrics.csv"] = [line for line in kept["metrics.csv"] if int(line["round"]) < rounds]
        return self._history(kept, rounds, peers)

    def totals(self, nodes: int) -> Totals | None:
        """The traffic since the first round; None if not all messages are listed."""
        totals, lines = Totals.zero(nodes), self._lines_before(None, "links.csv")
        if len(lines) < sum(int(line["messages"]) for line in self._lines_before(None, "rounds.csv")):
            return None
        if lines:
            names = ("sender", "receiver", "bytes", "delivered")
            columns = (torch.tensor([int(line[name]) for line in lines]) for name in names)
            senders, receivers, sizes, delivered = columns
            totals.add(Traffic(senders, receivers, sizes, delivered.bool()))
        return totals

    def _history(self, kept: dict[str, list[dict[str, str]]], rounds: int, peers: int) -> History:
        history = History()
        try:
            history.seconds = [float(line["seconds"]) for line in kept["rounds.csv"]]
            history.traffic = [tuple(int(line[name]) for name in TRAFFIC) for line in kept["rounds.csv"]]
            measured = [(int(line["round"]), int(line["peer"])) for line in kept["metrics.csv"]]
            if measured != [(round, peer) for round in range(rounds) for peer in range(peers)]:
                raise ValueError(f"it lacks lines of the {rounds} rounds that the checkpoint has")
            for number in range(rounds):
                lines = kept["metrics.csv"][number * peers : (number + 1) * peers]
                found = _measurement(number, lines)
                if found.values:
                    history.measurements.append(found)
            for name in WORK:  # NaN: records of a version that did not count it
                done = [float(line.get(name) or "nan") for line in kept["metrics.csv"]]
                history.work[name] = torch.tensor(done, dtype=torch.double).view(rounds, peers).sum(0)
        except (ValueError, KeyError) as error:
            raise self._damaged("metrics.csv", error) from None
        if len(history.seconds) != rounds:
            raise self._damaged("rounds.csv", f"it has {len(history.seconds)} of {rounds} rounds")
        return history

    def _damaged(self, name: str, what: object) -> DamagedRunError:
        return DamagedRunError(
            f"{self.folder / name} is damaged, so that the run cannot go on: {what}; nothing was changed"
        )

    def _file(self, name: str) -> Any:
        if name not in self._files:
            path = self.folder / name
            new = not path.exists() or path.stat().st_size == 0
            try:
                self._files[name] = open(path, "a", newline="", encoding="utf-8")  # noqa: SIM115
            except OSError as error:
                raise RunFolderError(f"cannot write {path}: {error.strerror}") from None
            if new and name in _HEADERS:
                self._files[name].write(",".join(self._header(name)) + "\n")
        return self._files[name]

    def _header(self, name: str) -> list[str]:
        more = [*(self._measured or self._columns()), *WORK] if name == "metrics.csv" else []
        return [*_HEADERS[name], *more]

    def _columns(self) -> list[str]:
        """The columns of metrics.csv that are measured, if there is one."""
        path = self.folder / "metrics.csv"
        if not path.is_file():
            return []
        with open(path, encoding="utf-8", errors="replace") as file:
            return [name for name in file.readline().strip().split(",") if _split(name) is not None]

    def _write(self, name: str, lines: Iterable[Iterable[object]]) -> None:
        file = self._file(name)
        try:
            file.writelines(",".join(map(str, line)) + "\n" for line in lines)
            file.flush()
        except OSError as error:
            raise RunFolderError(
                f"cannot write {self.folder / name}: {error.strerror}; what was written before is intact"
            ) from None

    def _lines_before(self, round: int | None, name: str) -> list[dict[str, str]]:
        """Whole lines of the rounds before this one, or of all; a crash may have cut the last one short."""
        path = self.folder / name
        if not path.exists():
            return []
        try:
            with open(path, newline="", encoding="utf-8") as file:
                return [
                    line
                    for line in csv.DictReader(file)
                    if None not in line.values()
                    and line["round"].isdigit()
                    and (round is None or int(line["round"]) < round)
                ]
        except (ValueError, KeyError, csv.Error) as error:
            raise self._damaged(name, error) from None

    def _rewrite(self, name: str, kept: list[dict[str, str]]) -> None:
        header = self._header(name)
        lines = [",".join(header), *(",".join(line.get(key, "") for key in header) for line in kept)]
        write_atomically(self.folder / name, ("\n".join(lines) + "\n").encode())

    def _cut_diagnostics(self, round: int) -> None:
        path = self.folder / _DIAGNOSTICS
        if not path.exists():
            return
        kept = []
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            with contextlib.suppress(ValueError):  # a line cut short by a crash
                if json.loads(line)["round"] < round:
                    kept.append(line + "\n")
        write_atomically(path, "".join(kept).encode())


def messages_in(record: RoundRecord) -> int:
    return sum(len(traffic.senders) for traffic in record.traffic)


def _traffic_of(record: RoundRecord) -> tuple[int, ...]:
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


def _split(name: str) -> tuple[str, str] | None:
    """The column and the point in accuracy_after_local; None for what is not measured."""
    point = next((point for point in POINTS if name.endswith(f"_{point}")), None)
    return None if point is None else (name.removesuffix(f"_{point}"), point)


def _metric_lines(record: RoundRecord, names: list[str]) -> Iterable[list[object]]:
    measured = {f"{column}_{point}": v for (column, point), v in measurement_of(record).values.items()}
    columns = [measured.get(name) for name in names]
    values = [[""] * len(record.online) if column is None else _texts(column) for column in columns]
    losses, online = _texts(record.train_loss), record.online.int().tolist()
    work = [getattr(record, name).tolist() for name in WORK]
    for peer in range(len(online)):
        more = (column[peer] for column in (*values, *work))
        yield [record.round, peer, online[peer], losses[peer], *more]


def _texts(values: Tensor) -> list[str]:
    return ["" if value != value else repr(value) for value in values.tolist()]  # NaN: not measured


def _link_lines(record: RoundRecord) -> Iterable[tuple[object, ...]]:
    for slot, traffic in enumerate(record.traffic):
        columns = (traffic.senders, traffic.receivers, traffic.bytes, traffic.delivered.int())
        for line in zip(*(column.tolist() for column in columns), strict=True):
            yield (record.round, slot, *line)


def _measurement(round: int, lines: list[dict[str, str]]) -> Measurement:
    values = {}
    for name in lines[0] if lines else ():
        place, texts = _split(name), [line[name] for line in lines]
        if place is not None and any(texts):
            values[place] = _numbers(texts)
    training = {name: _numbers(line.get(name, "") for line in lines) for name in TRAINING}
    return Measurement(round, values, training)


def _numbers(texts: Iterable[str]) -> Tensor:
    """NaN: not measured."""
    return torch.tensor([float(text) if text else math.nan for text in texts])
