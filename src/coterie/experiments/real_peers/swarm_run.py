"""A run of real peers, as the folder that `coterie swarm` kept has it: each peer's records, audit and model.

Nothing there is changed. What was exchanged is what the peers wrote into their audits.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from coterie.catalogue import algorithms
from coterie.errors import RunFolderError
from coterie.experiments.real_peers.joining import executor_of, experiment_of
from coterie.experiments.real_peers.peer_records import RECORDS_FILE, Records
from coterie.experiments.real_peers.predicting import personal_model
from coterie.experiments.runs.records import WORK, History, Measurement
from coterie.experiments.runs.run import Run
from coterie.experiments.setup.prepare import task_of
from coterie.peer.trust.settings import SETTINGS_FILE, load_settings
from coterie.peer.watch.audit import AUDIT_FILE, events
from coterie.protocol import Facts
from coterie.simulation import POINTS, PeerModels, Totals, Traffic

_RESULT = "result.json"  # what a peer printed at its end
_NAN = float("nan")


class SwarmRun(Run):
    """What real peers of one machine left behind. They do not know the true clusters."""

    clusters = collaboration = stopped = None

    def __init__(self, folder: Path) -> None:
        settings = sorted(map(load_settings, peers_in(folder)), key=lambda one: one.number)
        self.run_dir, self._names = folder, [one.name for one in settings]
        self.experiment = experiment_of(settings[0])
        if [one.number for one in settings] != list(range(self.experiment.peers + self._facts.hub)):
            raise RunFolderError(f"{folder}: its peers are not those of their experiment.toml")
        self.names = tuple(self._names[: self.experiment.peers])
        records = [Records(folder / name / RECORDS_FILE).read() for name in self._names]
        self._rounds = [lines[-1]["round"] + 1 if lines else 0 for lines in records]
        self.history = _history(records[: self.experiment.peers], self._traffic)
        self.executor = executor_of(self.experiment)
        self.point, self.metric = self._facts.measured, task_of(self.experiment).metrics[0]

    @property
    def finished(self) -> bool:
        return min(self._rounds) >= self.experiment.rounds

    @property
    def _facts(self) -> Facts:
        return algorithms[self.experiment.algorithm].facts  # type: ignore[attr-defined]

    def folder_of(self, node: int) -> Path:
        """Where a peer, or the hub behind the last of them, has its key, records and model."""
        assert self.run_dir is not None
        return self.run_dir / self._names[node]

    @functools.cached_property
    def _traffic(self) -> dict[int, Traffic]:
        """What every round's messages were; those that were sent and did not arrive are not known as such."""
        numbers = {name: number for number, name in enumerate(self._names)}
        found: dict[int, list[tuple[int, int, int]]] = {}
        for name, receiver in numbers.items():
            path = self.folder_of(receiver) / AUDIT_FILE
            for line in events(path) if path.is_file() else ():
                if line.get("event") == "received" and line.get("peer") in numbers:
                    message = (numbers[line["peer"]], numbers[name], int(line.get("bytes", 0)))
                    found.setdefault(int(line.get("round", 0)), []).append(message)
        return {round: _traffic(messages) for round, messages in found.items()}

    @functools.cached_property
    def totals(self) -> Totals:  # type: ignore[override]
        totals = Totals.zero(len(self._names))
        for traffic in self._traffic.values():
            totals.add(traffic)
        for node in range(len(self._names)):
            sent = self._printed(node).get("bytes_out")
            if sent is not None:  # whole messages, also those that were lost
                totals.bytes_sent[node] = sent
        return totals

    def _printed(self, node: int) -> Mapping[str, Any]:
        with suppress(OSError, ValueError):
            found = json.loads((self.folder_of(node) / _RESULT).read_bytes())
            if isinstance(found, dict):
                return found
        return {}

    @functools.cached_property
    def trained(self) -> list[PeerModels]:  # type: ignore[override]
        models = [personal_model(self.folder_of(peer)) for peer in range(self.peers)]
        params = {name: torch.stack([model.params[name] for model in models]) for name in models[0].params}
        return [PeerModels(torch.arange(self.peers), params, models[0].module)]


def peers_in(folder: Path) -> list[Path]:
    """The folders of the peers of a swarm; empty if it is none."""
    return sorted(path.parent for path in folder.glob(f"*/{SETTINGS_FILE}"))


def _history(records: list[list[dict[str, Any]]], traffic: Mapping[int, Traffic]) -> History:
    """records: the lines of each peer; one that was away in a round has none."""
    by_round: dict[int, dict[int, dict[str, Any]]] = {}
    for peer, lines in enumerate(records):
        for line in lines:
            by_round.setdefault(line["round"], {})[peer] = line
    history, peers = History(), len(records)
    for round in range(max(by_round, default=-1) + 1):
        lines = [by_round.get(round, {}).get(peer, {}) for peer in range(peers)]
        history.seconds.append(max((line.get("seconds", 0.0) for line in lines), default=0.0))
        history.traffic.append(_summed(traffic.get(round), peers))
        for name in WORK:
            done = _column(line.get(name, 0) for line in lines)
            history.work[name] = history.work.get(name, torch.zeros_like(done)) + done
        values = _values(lines)
        if values:
            training = {name: _column(line.get(name) for line in lines) for name in ("train_loss", *WORK)}
            training["online"] = torch.tensor([bool(line) for line in lines])
            history.measurements.append(Measurement(round, values, training))
    return history


def _values(lines: list[dict[str, Any]]) -> dict[tuple[str, str], Tensor]:
    """By column and point, where some peer has measured it."""
    columns = dict.fromkeys(
        name
        for line in lines
        for name, value in line.items()
        if isinstance(value, dict) and value.keys() & set(POINTS)
    )
    return {
        (column, point): found
        for column in columns
        for point in POINTS
        if not (found := _column((line.get(column) or {}).get(point) for line in lines)).isnan().all()
    }


def _column(values: Iterable[float | None]) -> Tensor:
    return torch.tensor([_NAN if value is None else value for value in values], dtype=torch.double)


def _traffic(messages: list[tuple[int, int, int]]) -> Traffic:
    """messages: sender, receiver and bytes of those that arrived."""
    senders, receivers, sizes = torch.tensor(messages).T
    return Traffic(senders, receivers, sizes, torch.ones(len(messages), dtype=torch.bool))


def _summed(traffic: Traffic | None, peers: int) -> tuple[int, int, int]:
    """Messages, bytes, and those of a hub."""
    if traffic is None:
        return 0, 0, 0
    by_hub = int(traffic.bytes[traffic.senders >= peers].sum())
    return len(traffic.bytes), int(traffic.bytes.sum()), by_hub
