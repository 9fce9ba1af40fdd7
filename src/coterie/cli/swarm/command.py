"""`coterie swarm`: real peers as processes of this machine, to see them learn from each other."""

from __future__ import annotations

import importlib
import shutil
import tempfile
import time
import webbrowser
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from coterie.catalogue import algorithms
from coterie.cli.interruption import ended_like_interrupted, undisturbed
from coterie.cli.options import Asked, experiment_options
from coterie.cli.output import Json, Quiet, print_json
from coterie.cli.problems import draws, note
from coterie.cli.swarm.display import SwarmDisplay, summary
from coterie.cli.swarm.folders import make_folders
from coterie.cli.swarm.processes import Process, end_all
from coterie.errors import ConfigError, RunFailedError, RunFolderError
from coterie.experiments.setup.config import (
    build_algorithm,
    decides_peers,
    note_of_validation,
    require_pace,
    resolve,
)
from coterie.experiments.setup.recommending import Wishes, with_advice
from coterie.experiments.setup.schema import Experiment
from coterie.peer.trust.names import check_name
from coterie.reporting.tables import show

DEFAULTS = {"algorithm": "d-psgd", "peers": 5, "rounds": 10}
_LOOK = 0.3  # seconds between two looks at the peers

Peers = Annotated[int | None, typer.Option(help="Number of peers.", show_default=str(DEFAULTS["peers"]))]
Rounds = Annotated[int | None, typer.Option(help="Number of rounds.", show_default=str(DEFAULTS["rounds"]))]
Mode = Annotated[
    Literal["synchronous", "free"], typer.Option(help="Rounds in step, or each peer at its own pace.")
]
Dir = Annotated[
    Path | None,
    typer.Option(
        "--dir", help="A new folder for the peers; it is kept.", metavar="DIR", show_default="a temporary one"
    ),
]
Keep = Annotated[bool, typer.Option("--keep", help="Keep the temporary folder.")]
Page = Annotated[bool, typer.Option("--dashboard", help="Show the peers as a page in the browser, too.")]


@experiment_options(without=("peers", "rounds", "executor", "workers"))
def swarm(
    asked: Asked,
    *,
    peers: Peers = None,
    rounds: Rounds = None,
    mode: Mode = "synchronous",
    folder: Dir = None,
    keep: Keep = False,
    dashboard: Page = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Start real peers on this machine, each a process with its own key, and show how they learn.

    Default: 5 peers with handwritten digits average their models over 10 rounds; offline.
    """
    given = {"peers": peers, "rounds": rounds}
    flags = {**asked.flags, **{name: value for name, value in given.items() if value is not None}}
    table = Asked(flags, asked.config, asked.sets).table()
    unsaid = {key: value for key, value in DEFAULTS.items() if key != "peers" or not decides_peers(table)}
    wishes = Wishes(free_running=mode == "free")
    table = with_advice({**unsaid, **table}, partial(note, quiet=quiet), wishes)
    experiment, names = _check(table, mode)
    if dashboard:
        importlib.import_module("coterie.dashboard.server").require_packages()
    note(note_of_validation([table]), quiet)
    with ended_like_interrupted(), _folder(folder, keep, quiet) as home:
        started = time.monotonic()
        folders = make_folders(home, table, names, mode)
        with _page(home, folders) if dashboard else nullcontext():
            processes = _let_learn(folders, quiet)
        seconds = round(time.monotonic() - started, 1)

    from coterie.cli.swarm.result import swarm_result  # PyTorch

    result = swarm_result(experiment, processes, mode, seconds, home if folder or keep else None)
    if json:
        print_json(result)
    else:
        show(summary(result))
    failed = [one["name"] for one in processes if one["failed"]]
    if failed:
        raise RunFailedError(f"{len(failed)} of {len(names)} peers failed: {', '.join(failed)}")


def _check(table: Mapping[str, Any], mode: str) -> tuple[Experiment, list[str]]:
    """The experiment and the peers' names; mistakes are found here, before any process starts."""
    experiment = resolve(table)
    facts = algorithms[experiment.algorithm].facts  # type: ignore[attr-defined]
    if experiment.models:
        raise ConfigError("real peers have one architecture so far: leave out `models`")
    if mode == "free":
        require_pace(experiment.algorithm, build_algorithm(experiment), "leave out --mode free")
    if experiment.peers + facts.hub < 2:
        raise ConfigError("a swarm needs at least 2 peers")
    names = list(experiment.names) or [f"peer-{number}" for number in range(experiment.peers)]
    if facts.hub and "hub" in names:
        raise ConfigError("names: 'hub' is the name of the hub itself; give that peer another")
    return experiment, [check_name(name, "names:") for name in names] + ["hub"] * facts.hub


@contextmanager
def _folder(wanted: Path | None, keep: bool, quiet: bool) -> Iterator[Path]:
    """Where the peers live: a new folder, or a temporary one that is removed whatever happens."""
    if wanted is not None:
        if wanted.exists() and (not wanted.is_dir() or any(wanted.iterdir())):
            raise RunFolderError(f"{wanted} exists already and is not empty; choose another folder")
        wanted.mkdir(parents=True, exist_ok=True)
    home = wanted or Path(tempfile.mkdtemp(prefix="coterie-swarm-"))
    try:
        yield home
    finally:
        if wanted is None and not keep:
            with undisturbed():
                shutil.rmtree(home, ignore_errors=True)
        else:
            note(f"peers: {home}", quiet)


@contextmanager
def _page(home: Path, folders: list[Path]) -> Iterator[None]:
    """The page of these peers, as long as they learn; in the browser, where somebody looks on."""
    board = importlib.import_module("coterie.dashboard.server").Dashboard(home / "runs", folders)
    board.start()
    note(f"the page: {board.url}")
    if draws():
        webbrowser.open(board.url)
    try:
        yield
    finally:
        with undisturbed():
            board.stop()


def _let_learn(folders: list[Path], quiet: bool) -> list[dict[str, Any]]:
    """Start a process for each folder, watch them to their end, and return what each of them printed."""
    processes: list[Process] = []
    try:
        for folder in folders:
            processes.append(Process(folder))
        with SwarmDisplay(quiet) as display:
            _watch(processes, display)
        return [_of_peer(one) for one in processes]
    finally:
        with undisturbed():
            end_all(processes)


def _watch(processes: list[Process], display: SwarmDisplay) -> None:
    """Until all have ended, in whatever way."""
    told: set[str] = set()
    while any(one.code is None for one in processes):
        for one in processes:
            one.look()
        display.show(processes)
        _tell_of_dead(processes, display, told)
        time.sleep(_LOOK)
    display.show(processes)
    _tell_of_dead(processes, display, told)


def _tell_of_dead(processes: list[Process], display: SwarmDisplay, told: set[str]) -> None:
    for one in processes:
        if one.died and one.name not in told:
            told.add(one.name)
            display.say(f"{one.name} died (exit code {one.code}); its last words:")
            for line in one.last_lines():
                display.say(f"  {line}")


def _of_peer(process: Process) -> dict[str, Any]:
    found = process.result()
    if found is None or process.died:
        return {"name": process.name, "failed": True, "exit_code": process.code}
    return {**found, "failed": False, "exit_code": process.code}
