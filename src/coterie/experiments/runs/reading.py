"""What a run's records say, when it is resumed or opened.

Lines of rounds after the checkpoint are dropped when a run is resumed, so that an interrupted run leaves the
same records as one that was not.
"""

from __future__ import annotations

import contextlib
import csv
import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from coterie.errors import DamagedRunError
from coterie.experiments.runs.records import (
    DIAGNOSTICS,
    HEADERS,
    TRAFFIC,
    TRAINING,
    WORK,
    History,
    Measurement,
    RunRecords,
    place_of,
)
from coterie.files import write_atomically
from coterie.simulation import Totals, Traffic
from coterie.spreads import Spread, listed

Line = dict[str, str]
_READ = ("metrics.csv", "distributions.csv")


class KeptRecords(RunRecords):
    """Those of a folder that may hold some already."""

    def cut(self, round: int, peers: int) -> History:
        """Drop the records from `round` on, and return what the others say, which must be complete."""
        kept = {name: self._lines_before(round, name) for name in HEADERS}
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
        kept = {name: self._lines_before(None, name) for name in (*_READ, "rounds.csv")}
        rounds = len(kept["rounds.csv"])  # written after the peers' lines
        for name in _READ:
            kept[name] = [line for line in kept[name] if int(line["round"]) < rounds]
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
        try:
            history = history_of(kept, rounds, peers)
        except (ValueError, KeyError) as error:
            raise self._damaged("metrics.csv", error) from None
        if len(history.seconds) != rounds:
            raise self._damaged("rounds.csv", f"it has {len(history.seconds)} of {rounds} rounds")
        return history

    def _lines_before(self, round: int | None, name: str) -> list[dict[str, str]]:
        try:
            return lines_before(self.folder / name, round)
        except (ValueError, KeyError, csv.Error) as error:
            raise self._damaged(name, error) from None

    def _rewrite(self, name: str, kept: list[dict[str, str]]) -> None:
        header = self.header(name)
        lines = [",".join(header), *(",".join(line.get(key, "") for key in header) for line in kept)]
        write_atomically(self.folder / name, ("\n".join(lines) + "\n").encode())

    def _cut_diagnostics(self, round: int) -> None:
        path = self.folder / DIAGNOSTICS
        if not path.exists():
            return
        kept = []
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            with contextlib.suppress(ValueError):  # a line cut short by a crash
                if json.loads(line)["round"] < round:
                    kept.append(line + "\n")
        write_atomically(path, "".join(kept).encode())

    def _damaged(self, name: str, what: object) -> DamagedRunError:
        return DamagedRunError(
            f"{self.folder / name} is damaged, so that the run cannot go on: {what}; nothing was changed"
        )


def lines_before(path: Path, round: int | None) -> list[Line]:
    """Whole lines of the rounds before this one, or of all; a crash may have cut the last one short."""
    if not path.exists():
        return []
    with open(path, newline="", encoding="utf-8") as file:
        return [
            line
            for line in csv.DictReader(file)
            if None not in line.values()
            and line["round"].isdigit()
            and (round is None or int(line["round"]) < round)
        ]


def history_of(kept: Mapping[str, list[Line]], rounds: int, peers: int) -> History:
    """From the lines of each file; ValueError if they are not those of all rounds."""
    history = History()
    history.seconds = [float(line["seconds"]) for line in kept["rounds.csv"]]
    history.traffic = [tuple(int(line[name]) for name in TRAFFIC) for line in kept["rounds.csv"]]
    lines, some = kept["metrics.csv"], listed(peers)
    if some is not None and len(lines) == rounds * peers:
        some = None  # a version listed everyone, however many
    numbers = range(peers) if some is None else some.tolist()
    measured = [(int(line["round"]), int(line["peer"])) for line in lines]
    if measured != [(round, peer) for round in range(rounds) for peer in numbers]:
        raise ValueError(f"it lacks lines of the {rounds} rounds that the checkpoint has")
    spreads = _spreads(kept["distributions.csv"])
    for number in range(rounds):
        of_round = lines[number * len(numbers) : (number + 1) * len(numbers)]
        found = _measurement(number, of_round, 0 if some is None else peers, spreads.get(number, {}))
        if found.values:
            history.measurements.append(found)
    for name in WORK:  # NaN: records of a version that did not count it
        done = torch.tensor([float(line.get(name) or "nan") for line in lines], dtype=torch.double)
        total = done.view(rounds, len(numbers)).sum(0)
        history.work[name] = total
        if some is not None:
            history.work[name] = torch.full((peers,), torch.nan, dtype=torch.double)
            history.work[name][torch.from_numpy(some)] = total
    return history


def _spreads(lines: Iterable[Line]) -> dict[int, dict[str, Spread]]:
    found: dict[int, dict[str, Spread]] = {}
    for line in lines:
        found.setdefault(int(line["round"]), {})[line["column"]] = Spread.read(line)
    return found


def _measurement(round: int, lines: list[Line], peers: int, spreads: Mapping[str, Spread]) -> Measurement:
    values = {}
    for name in lines[0] if lines else ():
        place, texts = place_of(name), [line[name] for line in lines]
        if place is not None and any(texts):
            values[place] = _numbers(texts)
    training = {name: _numbers(line.get(name, "") for line in lines) for name in TRAINING}
    return Measurement(round, values, training, peers, spreads)


def _numbers(texts: Iterable[str]) -> Tensor:
    """NaN: not measured."""
    return torch.tensor([float(text) if text else math.nan for text in texts])
