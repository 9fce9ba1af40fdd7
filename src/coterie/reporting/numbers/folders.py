"""A run as its folder has it, finished or not, for pictures. Needs no PyTorch, and changes nothing there."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from coterie.errors import RunFolderError
from coterie.metric import Metric
from coterie.reporting.numbers import files
from coterie.reporting.numbers.known import POINTS, Array, Known, Point, Whole
from coterie.sharing import inside_share, shares_of
from coterie.spreads import SAMPLE, Spread, evenly

MOST_PEERS_SHOWN = SAMPLE  # of more, so many evenly spaced ones are shown
CONFIG, RESULT, ENVIRONMENT, FACTS = "config.toml", "result.json", "environment.json", "facts.json"


class OfFolder(Known):
    """What a run's folder says. RunFolderError if it is none, or if what decides cannot be read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = files.read_toml(path / CONFIG)
        self.environment = self._optional(ENVIRONMENT)
        self.result = self._optional(RESULT)
        self.algorithm = str(self.config.get("algorithm", "?"))
        self.peers, self.planned, self.seed = (self._whole(key) for key in ("peers", "rounds", "seed"))
        self.done = files.read_rounds(path / "rounds.csv")
        said = self.result or self.environment.get("measured") or {}
        self.metric = Metric.of(said)
        self._metrics = files.read_metrics(
            path / "metrics.csv", len(self.done), self.metric.name if said else None
        )
        if not said and self._metrics.main:
            self.metric = Metric(self._metrics.main, percent=self._metrics.main == "accuracy")
        self.point: Point = said["point"] if said.get("point") in POINTS else POINTS[1]
        self.point_known = said.get("point") in POINTS
        self.rounds = self._metrics.rounds
        self._people = files.read_people(path / "peers.csv", self.peers)
        self.names = self._people.names

    def _optional(self, name: str) -> dict[str, Any]:
        path = self.path / name
        return files.read_json(path) if path.is_file() else {}

    def _whole(self, key: str) -> int:
        value = self.config.get(key, 0)
        if (
            isinstance(value, bool)
            or not isinstance(value, int)
            or value < 0
            or (key == "peers" and not value)
        ):
            raise RunFolderError(f"{self.path / CONFIG} cannot be read: {key} is {value!r}")
        return value

    @property
    def version(self) -> str:
        return str(self.environment.get("coterie", ""))

    def scores(self, point: Point) -> Array:
        found = self._metrics.values.get(f"{self.metric.name}_{point}")
        scores = np.full((len(self.rounds), self.peers), np.nan)
        if found is not None:
            there = self._metrics.peers < self.peers
            scores[:, self._metrics.peers[there]] = found[:, there]
        return scores

    @functools.cached_property
    def _spreads(self) -> dict[tuple[int, str], Spread]:
        return files.read_spreads(self.path / "distributions.csv", len(self.done))

    def spreads(self, point: Point) -> list[Spread | None]:
        name = f"{self.metric.name}_{point}"
        if not self._spreads:
            return [Spread.of(row) for row in self.scores(point)]
        return [self._spreads.get((number - 1, name)) for number in self.rounds]

    @property
    def _entry(self) -> Mapping[str, Any]:
        """What the result says of the main metric."""
        entry = self.result.get(f"personal_{self.metric.name}")
        return entry if isinstance(entry, Mapping) else {}

    @property
    def mean(self) -> float:
        return float(self._entry["mean"]) if "sample" in self._entry else super().mean

    @property
    def worst(self) -> float:
        return float(self._entry["worst_decile"]) if "sample" in self._entry else super().worst

    @functools.cached_property
    def reported(self) -> Array:
        per_peer, sample = self._entry.get("per_peer"), self._entry.get("sample")
        if isinstance(per_peer, list) and len(per_peer) == (self.peers if sample is None else len(sample)):
            reported = np.full(self.peers, np.nan)
            places = slice(None) if sample is None else np.array(sample, np.int64)
            reported[places] = [np.nan if value is None else float(value) for value in per_peer]
            return reported
        scores = self.scores(self.point)
        return scores[-1] if len(scores) else np.full(self.peers, np.nan)

    @functools.cached_property
    def facts(self) -> dict[str, Any]:
        """What the cells of sweeps and reproductions leave besides."""
        return self._optional(FACTS)

    @functools.cached_property
    def clusters(self) -> Whole | None:
        if self._people.clusters is not None:
            clusters = np.full(self.peers, -1)  # of whom is not listed
            clusters[self._people.numbers] = self._people.clusters
            return clusters
        told = self.facts.get("clusters")
        return np.array(told) if isinstance(told, list) and len(told) == self.peers else None

    @property
    def people(self) -> files.People:
        return self._people

    @functools.cached_property
    def messages(self) -> files.Messages:
        """All of them, also a hub's and those that did not arrive."""
        return files.read_messages(self.path / "links.csv", len(self.done))

    @functools.cached_property
    def arrived(self) -> files.Messages:
        """Models from peer to peer."""
        return self.messages.arrived(self.peers)

    @property
    def received(self) -> bool:
        return bool(len(self.arrived.table))

    @functools.cached_property
    def shown(self) -> Whole:
        """The peers that pictures of single peers show."""
        return evenly(self.peers)

    @functools.cached_property
    def learned(self) -> Array | None:
        """The weights that the algorithm had learned at the end, as shares of each row."""
        return files.read_shares(self.path, self.peers)

    @functools.cached_property
    def weights(self) -> dict[int, Array]:
        """The same by round, counted from 1, where the algorithm wrote them down; the last are `learned`."""
        if self.peers > MOST_PEERS_SHOWN:
            return {}
        found = files.read_weights(self.path / "diagnostics.jsonl", self.peers, len(self.done))
        if self.learned is not None and len(self.done):
            found[len(self.done)] = self.learned
        return found

    @functools.cached_property
    def shares(self) -> Array:
        """Of the shown peers."""
        if self.learned is not None:
            return self.learned
        told = self.facts.get("shares")
        if isinstance(told, list) and len(told) == self.peers:
            return np.array(told, float)
        return shares_of(self.counts(0, len(self.done)))

    def counts(self, first: int, last: int) -> Array:
        """(receivers, senders) of the shown peers: models that arrived from a round on, before another."""
        some = self.arrived.since(first).until(last)
        return _counted(some.column("receiver"), some.column("sender"), self.shown, self.peers)

    @property
    def own_cluster_share(self) -> float | None:
        if self.result:
            return self.result.get("own_cluster_share")
        clusters = self.clusters
        return None if clusters is None else inside_share(self.shares, clusters[self.shown])


def _counted(receivers: Whole, senders: Whole, shown: Whole, peers: int) -> Array:
    place = np.full(peers, -1)
    place[shown] = np.arange(len(shown))
    rows, columns = place[receivers], place[senders]
    there = (rows >= 0) & (columns >= 0)
    cells = rows[there] * len(shown) + columns[there]
    counts = np.bincount(cells, minlength=len(shown) ** 2)
    return counts.reshape(len(shown), len(shown)).astype(float)
