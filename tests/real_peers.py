"""Peers as real processes: their folders, starting and ending them, and what they left on disk.

A peer is the program `coterie peer run` in a process of its own. By default it is forked off a process that
has imported PyTorch already, which saves seconds for each; `executed=True` starts the interpreter anew.
"""

from __future__ import annotations

import asyncio
import ctypes
import itertools
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import torch

from coterie import simulate
from coterie.catalogue import algorithms
from coterie.cli.peer.run import ALONE
from coterie.experiments.real_peers.joining import Joining, join
from coterie.experiments.real_peers.peer_records import RECORDS_FILE, Records
from coterie.experiments.runs.records import History
from coterie.peer.exchange.committed import committed_rounds
from coterie.peer.process import Peer
from coterie.peer.trust.cards import card_of
from coterie.peer.trust.identity import Identity
from coterie.peer.trust.roster import ROSTER_FILE, roster_text
from coterie.peer.trust.settings import SETTINGS_FILE, PeerSettings, settings_text
from coterie.protocol import Params

PORT = 7400
PATIENCE = 120.0  # seconds that a test waits for what must happen: more than any machine needs

_CLONE_NEWNET = 0x40000000
_hosts = itertools.count(1)
_forking = multiprocessing.get_context("forkserver")
_forking.set_forkserver_preload(
    ["coterie.cli", "coterie.experiments.real_peers.joining", "coterie.cli.peer.run"]
)

# A model whose every use takes a while without work for the processor, so that a run of many small rounds
# lasts long enough for things to happen in it.
SLOW_MODEL = """\
import os
import time
from torch import nn

class Slow(nn.Sequential):
    def __init__(self, shape, n_classes):
        features = 1
        for size in shape:
            features *= size
        super().__init__(nn.Flatten(), nn.Linear(features, 16), nn.ReLU(), nn.Linear(16, n_classes))

    def forward(self, x):
        if not os.environ.get("NO_SLOW_MODEL"):
            time.sleep({seconds})
        return super().forward(x)
"""


def experiment(algorithm: str = "d-psgd", **changes: Any) -> dict[str, Any]:
    """A small one: a second of work for all peers together."""
    facts = algorithms[algorithm]().facts
    table = {
        "algorithm": algorithm,
        "data": "digits",
        "model": "mlp(16)",
        "partition": "rotations(2)" if facts.clusters else "dirichlet(0.5)",
        "topology": "star" if facts.hub else "directed(2)" if facts.directed else "full",
        "peers": 5,
        "rounds": 5,
        "seed": 0,
        "training": {"epochs": 1, "batch_size": 20, "lr": 0.1},
        "splitting": {"samples_per_peer": 60, "test_samples_per_peer": 60, "validation": 0.2},
        "evaluation": {"global_accuracy": "never"},
    }
    return {**table, **changes}


def slow_model(folder: Path, seconds: float) -> str:
    """A model, in a file of its own, of which every use takes so long."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "slow.py").write_text(SLOW_MODEL.format(seconds=seconds))
    return f"{folder / 'slow.py'}:Slow"


def free_hosts(count: int) -> list[str]:
    """Loopback addresses that only this process uses, so that every peer may listen on the same port."""
    place = os.getpid() % 62_000
    return [f"127.{1 + place // 250}.{1 + place % 250}.{1 + next(_hosts) % 250}" for _ in range(count)]


@dataclass
class Swarm:
    """Folders of peers that trust each other, and the processes that were started for them.

    settings: for every `peer.toml`. namespaces: by number, the network namespace that a peer runs in.
    Use it in a `with`: whatever still runs is ended when it is left.
    """

    folder: Path
    experiment: dict[str, Any]
    settings: Mapping[str, Any] = field(default_factory=dict)
    hosts: list[str] = field(default_factory=list)
    namespaces: Mapping[int, str] = field(default_factory=dict)
    processes: dict[int, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        hub = algorithms[self.experiment["algorithm"]]().facts.hub
        self.nodes = self.experiment["peers"] + hub
        self.hosts = self.hosts or free_hosts(self.nodes)
        cards = []
        for number in range(self.nodes):
            place = self.place(number)
            place.mkdir(parents=True)
            self.write_experiment(number, self.experiment)
            settings = self._settings(number)
            (place / SETTINGS_FILE).write_text(settings_text(settings), encoding="utf-8")
            cards.append(card_of(Identity.create(place, settings.name), settings))
        for number in range(self.nodes):
            others = {card.name: card for card in cards if card.number != number}
            (self.place(number) / ROSTER_FILE).write_text(roster_text(others), encoding="utf-8")

    def _settings(self, number: int) -> PeerSettings:
        quick = {"deadline": 30.0, "join_seconds": 60.0, "heartbeat": 0.3, "suspect_after": 3.0}
        return PeerSettings(
            name=f"peer-{number}",
            number=number,
            listen=f"{self.hosts[number]}:{PORT}",
            **{**quick, **self.settings},
        )

    def write_experiment(self, number: int, table: Mapping[str, Any]) -> None:
        (self.place(number) / "experiment.toml").write_text(tomli_w.dumps(table), encoding="utf-8")

    def place(self, number: int) -> Path:
        return self.folder / f"peer-{number}"

    # --- running ---------------------------------------------------------------------------------

    def __enter__(self) -> Swarm:
        return self

    def __exit__(self, *error: object) -> None:
        for process in self.processes.values():
            process.end()

    def start(
        self, *numbers: int, executed: bool = False, environment: Mapping[str, str] | None = None
    ) -> None:
        """Start these peers, or all; also one that has ended or was killed."""
        for number in numbers or range(self.nodes):
            place = self.place(number)
            if executed:
                self.processes[number] = _Executed(place, environment or {})
            else:
                self.processes[number] = _Forked(place, self.namespaces.get(number))

    def signal(self, number: int, which: signal.Signals) -> None:
        os.kill(self.processes[number].pid, which)

    def kill(self, number: int) -> None:
        """SIGKILL, and wait until the process is gone."""
        self.signal(number, signal.SIGKILL)
        self.processes[number].wait(PATIENCE)

    def running(self, number: int) -> bool:
        return self.processes[number].code() is None

    def finish(self, *numbers: int, timeout: float = PATIENCE, cut_off: Collection[int] = ()) -> None:
        """Wait until these peers, or all, have ended, each with success.

        Who was cut off in the middle of a round may have finished that one alone. Its exit code says so, if
        and only if its records do.
        """
        until = time.monotonic() + timeout
        for number in numbers or range(self.nodes):
            self.processes[number].wait(max(0.0, until - time.monotonic()))
        codes = {n: self.processes[n].code() for n in numbers or range(self.nodes)}
        logs = "\n".join(f"--- peer-{n}\n{self.log(n)[-3000:]}" for n, code in codes.items() if code != 0)
        expected = {n: ALONE if n in cut_off and self.alone(n) else 0 for n in codes}
        assert codes == expected, f"{codes}\n{logs}"

    def alone(self, number: int) -> int:
        """How many rounds it played while nobody else was there, by its records."""
        return sum(record.get("alone", False) for record in self.records(number))

    def until(self, condition: Callable[[], object], what: str, timeout: float = PATIENCE) -> None:
        """Wait for something that the running peers must bring about."""
        end = time.monotonic() + timeout
        while not condition():
            if time.monotonic() > end:
                logs = "\n".join(f"--- peer-{n}\n{self.log(n)[-3000:]}" for n in self.processes)
                raise AssertionError(f"waited {timeout:g} s in vain: {what}\n{logs}")
            time.sleep(0.02)

    # --- what they leave -------------------------------------------------------------------------

    def log(self, number: int) -> str:
        path = self.place(number) / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def records(self, number: int) -> list[dict[str, Any]]:
        return Records(self.place(number) / RECORDS_FILE).read()

    def round(self, number: int) -> int:
        """How many rounds are committed, by the checkpoint."""
        return committed_rounds(self.place(number) / "state" / "checkpoint.safetensors")

    def rounds(self) -> list[int]:
        return [self.round(number) for number in range(self.nodes)]

    def join(self, number: int) -> Joining:
        """The peer of a folder, in this process."""
        return join(self.place(number))

    def peers(self) -> dict[int, Peer]:
        """Everyone as the folders have it, not running."""
        peers = {number: self.join(number).peer for number in range(self.nodes)}
        for peer in peers.values():
            asyncio.run(peer.load())
        return peers

    def accuracies(self) -> list[float]:
        """Of the last round, at the end of it; without a hub's."""
        last = [self.records(number)[-1]["accuracy"] for number in range(self.experiment["peers"])]
        return [accuracy["after_mixing"] for accuracy in last]


def simulated(table: Mapping[str, Any]) -> tuple[Params, History]:
    """The simulator's models and measurements of the same experiment."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NO_SLOW_MODEL", "1")
        run = simulate(**{**table, "execution": {"sealing": "quantised", "executor": "looped", "workers": 1}})
    return run.params, run.history


def same_as_simulated(table: Mapping[str, Any], peers: Mapping[int, Peer], swarm: Swarm) -> None:
    """Accuracies of the last round are equal, parameters within 1e-4 relative (1e-5 near zero)."""
    params, history = simulated(table)
    for number, peer in peers.items():
        if number >= table["peers"]:
            continue
        assert peer.journal.round == table["rounds"]
        for name, value in peer.algorithm.personal(peer.state).items():
            torch.testing.assert_close(value[0], params[name][number], rtol=1e-4, atol=1e-5)
        last = swarm.records(number)[-1]
        assert last["round"] == table["rounds"] - 1
        for point, accuracy in last["accuracy"].items():
            expected = float(history.scores("accuracy", point)[-1][number])
            assert accuracy is None if expected != expected else abs(accuracy - expected) < 1e-6


# --- processes -----------------------------------------------------------------------------------


class _Forked:
    """`coterie peer run` in a process forked off one that has done the imports."""

    def __init__(self, place: Path, namespace: str | None) -> None:
        self._process = _forking.Process(target=_run_peer, args=(str(place), namespace), daemon=True)
        self._process.start()
        self.pid: int = self._process.pid or 0

    def code(self) -> int | None:
        return self._process.exitcode

    def wait(self, seconds: float) -> None:
        self._process.join(seconds)

    def end(self) -> None:
        self._process.kill()
        self._process.join(PATIENCE)
        self._process.close()


class _Executed:
    """`python -m coterie peer run`."""

    def __init__(self, place: Path, environment: Mapping[str, str]) -> None:
        with open(place / "log", "ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "coterie", "peer", "run", "--dir", str(place)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **environment},
                start_new_session=True,
            )
        self.pid = self._process.pid

    def code(self) -> int | None:
        return self._process.poll()

    def wait(self, seconds: float) -> None:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()


def _run_peer(place: str, namespace: str | None) -> None:
    """What a forked process does."""
    os.setsid()
    log = os.open(os.path.join(place, "log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for descriptor in (1, 2):
        os.dup2(log, descriptor)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the parent ignores it
    if namespace is not None:
        _enter(namespace)
    from coterie.cli import main

    sys.argv = ["coterie", "peer", "run", "--dir", place]
    main()


def _enter(namespace: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open(f"/run/netns/{namespace}", os.O_RDONLY)
    if libc.setns(descriptor, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), f"cannot enter network namespace {namespace}")
    os.close(descriptor)
