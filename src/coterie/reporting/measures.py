"""Numbers of finished cells, from their records alone."""

from __future__ import annotations

import contextlib
import csv
import functools
import json
import math
import statistics
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.errors import RunFolderError
from coterie.experiments.cells.cell import FACTS, Cell, breakage, is_finished
from coterie.experiments.cells.paper_schema import NUMBERS, check_metric
from coterie.experiments.cells.sweeping import SAME_DATA
from coterie.metric import Metric
from coterie.reporting.numbers.curves import reached

Array = NDArray[np.float64]
_NEEDED = {  # entries of the JSON files, columns of the CSV files
    "result.json": ("point", "peers", "seconds"),
    FACTS: ("clusters", "majority_floor", "majority_floor_global", "shares"),
    "metrics.csv": ("round", "peer"),
    "rounds.csv": ("round", "bytes", "hub_bytes"),
}
_NOTHING: tuple[list[int], Array] = ([], np.zeros((0, 1)))
_DISTRIBUTIONS = {  # measure -> (entry of the result, for its main metric; which statistic)
    "personal": ("personal_{}", "mean"),
    "personal-after-local": ("personal_{}_after_local", "mean"),
    "personal-after-mixing": ("personal_{}_after_mixing", "mean"),
    "personal-spread": ("personal_{}", "std"),
    "worst-decile": ("personal_{}", "worst_decile"),
    "global": ("global_{}", "mean"),
    "global-spread": ("global_{}", "std"),
    "validation": ("validation_{}", "mean"),
}


@dataclass(frozen=True)
class Record:
    """What a finished cell left behind."""

    folder: Path
    result: dict[str, Any]
    facts: dict[str, Any]

    @property
    def metric(self) -> Metric:
        """The main one."""
        return Metric.of(self.result)

    @functools.cached_property
    def _metrics(self) -> dict[str, tuple[list[int], Array]]:
        """By column of metrics.csv: the rounds in which it was measured, and (rounds, peers) values."""
        columns: dict[str, dict[int, dict[int, float]]] = {}
        with _reading(self.folder, "metrics.csv"):
            for line in self._lines("metrics.csv"):
                number, peer = int(line["round"]), int(line["peer"])
                for name, text in line.items():
                    if name not in ("round", "peer", "online") and text:
                        columns.setdefault(name, {}).setdefault(number, {})[peer] = float(text)
        return {
            name: ([number + 1 for number in sorted(rounds)], _rows([rounds[n] for n in sorted(rounds)]))
            for name, rounds in columns.items()
        }

    @functools.cached_property
    def _bytes(self) -> dict[int, int]:
        """By round, what all peers sent; a hub is none."""
        with _reading(self.folder, "rounds.csv"):
            return {
                int(line["round"]): int(line["bytes"]) - int(line["hub_bytes"])
                for line in self._lines("rounds.csv")
            }

    def _lines(self, name: str) -> Iterator[dict[str, str]]:
        """The lines of a CSV file; a file that lost its end must not pass for a shorter run."""
        with open(self.folder / name, newline="", encoding="utf-8") as file:
            reader, last = csv.DictReader(file), -1
            _require(name, reader.fieldnames or ())
            for line in reader:
                if None in line or None in line.values():
                    raise ValueError(f"line {reader.line_num} has another number of columns than the first")
                last = int(line["round"])
                yield line
            if last + 1 < self.result.get("rounds", 0):
                raise ValueError(f"it ends after {last + 1} of {self.result['rounds']} rounds")

    def require_readable(self) -> None:
        """Find out now, not in the middle of a table or figure, that a file is missing or damaged."""
        _ = self._metrics, self._bytes

    def curve(self, metric: str) -> tuple[list[int], Array]:
        """The rounds, counted from 1, and the mean over peers in each."""
        rounds, values = self.of_peers(metric)
        return rounds, np.nanmean(values, axis=1) if rounds else np.zeros(0)

    def of_peers(self, metric: str) -> tuple[list[int], Array]:
        """The rounds, counted from 1, and the values in each: (rounds, peers), NaN for an absent peer."""
        if metric == "divergence":
            return self._divergence()
        if metric == "train-loss":
            return self._metrics.get("train_loss", _NOTHING)
        column, _, point = metric.partition("-")
        main = self.metric.name
        name = {"personal": main, "global": f"global_{main}", "loss": "loss"}[column]
        point = point.replace("-", "_") or str(self.result["point"])
        return self._metrics.get(f"{name}_{point}", _NOTHING)

    def _divergence(self) -> tuple[list[int], Array]:
        """BlendDFL eq. 5: the local model of a round minus the aggregated model that it started from.

        Only rounds whose predecessor was measured have one, the first never.
        """
        (rounds, local), (before, mixed) = map(self.of_peers, ("global-after-local", "global-after-mixing"))
        pairs = [(n, before.index(r - 1)) for n, r in enumerate(rounds) if r - 1 in before]
        if not pairs:
            return _NOTHING
        now, then = map(list, zip(*pairs, strict=True))
        return [rounds[n] for n in now], self.metric.gain(local[now], mixed[then])

    def bytes_until(self, round: int) -> float:
        """Bytes sent per peer in the first so many rounds."""
        total = sum(volume for number, volume in self._bytes.items() if number < round)
        return total / int(self.result["peers"])

    def last(self, column: str) -> float | None:
        """Mean over peers of a column of metrics.csv, when it was last measured."""
        rounds, values = self._metrics.get(column, _NOTHING)
        return float(np.nanmean(values[-1])) if rounds else None


def read_record(folder: Path) -> Record | None:
    """None if the cell is not finished, or not what was last asked for, as its breakage then says.

    RunFolderError if any of its files is missing or damaged.
    """
    with _reading(folder):
        if not is_finished(folder) or breakage(folder) is not None:
            return None
    record = Record(folder, _read_json(folder, "result.json"), _read_json(folder, FACTS))
    record.require_readable()
    return record


def _read_json(folder: Path, name: str) -> dict[str, Any]:
    with _reading(folder, name):
        entries = json.loads((folder / name).read_text(encoding="utf-8"))
        _require(name, entries if isinstance(entries, dict) else ())
        if name == "result.json":
            _require_key(f"personal_{Metric.of(entries).name}", entries)
    return dict(entries)


def _require(name: str, present: Collection[str]) -> None:
    for key in _NEEDED[name]:
        _require_key(key, present)


def _require_key(key: str, present: Collection[str]) -> None:
    if key not in present:
        raise ValueError(f"it has no {key!r}")


@contextlib.contextmanager
def _reading(folder: Path, name: str = "") -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, csv.Error) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise RunFolderError(
            f"{folder / name} cannot be read: {reason}; delete the cell's folder, and it runs again"
        ) from None


def measure(record: Record, metric: str, target: float | None = None) -> float | None:
    """One number of a cell, shares as fractions; None if it was not measured or not reached.

    target: of the main metric for rounds-to-target and bytes-to-target, a share as a fraction.
    """
    check_metric(metric)
    if metric in _DISTRIBUTIONS:
        entry, statistic = _DISTRIBUTIONS[metric]
        value = record.result.get(entry.format(record.metric.name))
        return None if value is None else float(value[statistic])
    if metric.startswith("cluster-"):
        return _of_clusters(record, metric.removeprefix("cluster-"))
    if metric == "own-cluster-share":
        return _number(record.result.get("own_cluster_share"))
    if metric == "loss":
        return record.last(f"loss_{record.result['point']}")
    if metric == "train-loss":
        return record.last("train_loss")
    if metric.endswith("-to-target"):
        return _to_target(record, metric, target)
    if metric == "divergence":
        return _late_mean(record.curve(metric)[1])
    column = record.metric.name if metric.startswith("personal") else f"global_{record.metric.name}"
    local, mixed = (record.last(f"{column}_{point}") for point in ("after_local", "after_mixing"))
    if metric.endswith("-mixing-gain"):
        return None if local is None or mixed is None else float(record.metric.gain(mixed, local))
    return local if metric.endswith("-after-local") else mixed


def majority_floor(record: Record, metric: str) -> float | None:
    """What always answering the peer's most frequent class gives; None where that says nothing."""
    if metric in ("global", "global-after-local", "global-after-mixing"):
        return _number(record.facts["majority_floor_global"])
    own: list[float] = [math.nan if value is None else value for value in record.facts["majority_floor"]]
    if metric.startswith("cluster-"):
        return _cluster_value(own, record.facts["clusters"], metric.removeprefix("cluster-"))
    if metric in ("personal", "personal-after-local", "personal-after-mixing"):
        return None if np.isnan(own).all() else float(np.nanmean(own))
    return None


def different_data(runs: Iterable[tuple[Cell, Record]]) -> str:
    """What to say if runs that belong together had different data; else empty.

    Such as from a loader that is not seeded, or from data files that were edited between two runs.
    """
    returned: dict[str, str] = {}  # by what was asked for: a digest of everyone's samples
    read: dict[tuple[str, str], str] = {}  # by data set and file: a digest
    for cell, record in runs:
        asked, data = cell.experiment.model_dump_json(include=SAME_DATA), record.facts.get("data")
        if data and returned.setdefault(asked, data) != data:
            return (
                f"these runs are not comparable: {cell.experiment.data} returned different data to runs of "
                "the same seed; let it draw from `seed` alone, and run them again in another folder"
            )
        for name, digest in (record.facts.get("data_files") or {}).items():
            if read.setdefault((cell.experiment.data, name), digest) != digest:
                return (
                    f"these runs are not comparable: {name} was edited between them, as that of "
                    f"{cell.describe()} shows; run them again in another folder"
                )
    return ""


def is_percentage(metric: str) -> bool:
    return metric not in NUMBERS


def _of_clusters(record: Record, which: str) -> float | None:
    per_peer = record.result[f"personal_{record.metric.name}"]["per_peer"]
    values = [math.nan if value is None else value for value in per_peer]
    return _cluster_value(values, record.facts["clusters"], which)


def _cluster_value(values: list[float], clusters: list[int] | None, which: str) -> float | None:
    """The mean of one cluster's peers, or (`mean`) of the clusters' means."""
    if clusters is None:
        return None
    members: dict[int, list[float]] = {}
    for cluster, value in zip(clusters, values, strict=True):
        members.setdefault(cluster, []).append(value)
    means = {cluster: statistics.fmean(inside) for cluster, inside in members.items()}
    return statistics.fmean(means.values()) if which == "mean" else means.get(int(which))


def _to_target(record: Record, metric: str, target: float | None) -> float | None:
    if target is None:
        return None
    rounds, means = record.curve("personal")
    first = reached(rounds, means, target, record.metric)
    if first is None:
        return None
    return float(first) if metric.startswith("rounds") else record.bytes_until(first)


def _late_mean(values: Array) -> float | None:
    """Over the last tenth of the rounds: the difference of two scores jumps from round to round."""
    return float(values[-math.ceil(len(values) / 10) :].mean()) if len(values) else None


def _rows(values: list[dict[int, float]]) -> Array:
    """A column for each peer; NaN where it was absent."""
    peers = range(1 + max(max(row) for row in values))
    return np.array([[row.get(peer, math.nan) for peer in peers] for row in values])


def _number(value: Any) -> float | None:
    return None if value is None else float(value)
