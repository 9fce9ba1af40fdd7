"""`coterie swarm`: real processes that give the simulator's numbers and leave nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from coterie import simulate
from coterie.cli.swarm.folders import free_ports, make_folders
from coterie.cli.swarm.processes import Process, end_all
from coterie.cli.swarm.result import swarm_result
from coterie.experiments.setup.config import resolve
from coterie.peer.trust.roster import Roster
from coterie.peer.trust.settings import load_settings

Command = Callable[..., Any]
SMALL = ["--model", "mlr", "--peers", "3", "--partition", "dirichlet(0.5)"]
PATIENCE = 240.0


@contextmanager
def started(temporary: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """`coterie swarm` whose temporary folders are made in `temporary`."""
    temporary.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-m", "coterie", "swarm", *SMALL, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(temporary)},
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def peers_of(temporary: Path) -> list[int]:
    """Processes that write to a log in `temporary`."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            log = os.readlink(entry / "fd" / "2") if entry.name.isdigit() else ""
        except OSError:  # it ended meanwhile
            continue
        if log.startswith(f"{temporary}/"):
            found.append(int(entry.name))
    return found


def until(condition: Callable[[], object], what: str) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, f"waited in vain: {what}"
        time.sleep(0.05)


def test_real_processes_give_the_numbers_of_the_simulator(folder: Path) -> None:
    with started(folder / "tmp", "--rounds", "2", "--json") as process:
        out, err = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, err
        assert peers_of(folder / "tmp") == []
        assert list((folder / "tmp").glob("coterie-*")) == []
    swarm = json.loads(out)
    run = simulate(
        algorithm="d-psgd", data="digits", model="mlr", peers=3, rounds=2, partition="dirichlet(0.5)",
        execution={"executor": "looped"}, evaluation={"global_accuracy": "never"},
    ).result()  # fmt: skip
    assert swarm.keys() == run.keys() | {"swarm"}
    measured = {"seconds", "seconds_per_round", "bytes_sent_per_peer", "bytes_sent_busiest"}
    for key in run.keys() - measured:
        assert swarm[key] == alike(run[key]), key
    for key in ("bytes_sent_per_peer", "bytes_sent_busiest"):  # 2 rounds with 2 others, and a head each
        assert run[key] < swarm[key] < run[key] + 4 * 300
    processes = swarm["swarm"]["processes"]
    assert [one["name"] for one in processes] == ["peer-0", "peer-1", "peer-2"]
    assert all(one["rounds"] == 2 and not one["failed"] and not one["refused"] for one in processes)
    assert swarm["swarm"]["bytes_in"] == swarm["swarm"]["bytes_out"] == 3 * swarm["bytes_sent_per_peer"] > 0
    assert 0 < swarm["seconds"] < swarm["swarm"]["seconds"]


def alike(value: Any) -> Any:
    """Numbers may differ in the last digits: the peers' sums have another order."""
    if isinstance(value, dict):
        return {key: alike(item) for key, item in value.items()}
    return pytest.approx(value, abs=1e-6) if isinstance(value, float | list) else value


def test_the_result_of_a_swarm_in_which_a_peer_fails() -> None:
    """By hand: what failed is null among the peers and counts nowhere; the hub counts as the busiest."""

    def printed(accuracy: dict[str, float], bytes_out: int, seconds: float) -> dict[str, Any]:
        return {"failed": False, "rounds": 4, "accuracy": accuracy, "bytes_in": 7, "bytes_out": bytes_out,
                "gradient_steps": bytes_out // 10, "samples_seen": bytes_out, "seconds": seconds}  # fmt: skip

    processes = [
        printed({"after_local": 0.5, "after_mixing": 0.7}, 100, 2.0),
        {"name": "peer-1", "failed": True, "exit_code": 1},
        printed({"after_local": 0.7, "after_mixing": 0.9}, 300, 3.0),
        printed({}, 900, 1.0),
    ]
    experiment = resolve({"algorithm": "fedavg", "peers": 3, "rounds": 4})
    result = swarm_result(experiment, processes, "synchronous", 9.0, None)
    assert result["personal_accuracy_after_local"]["per_peer"] == [0.5, None, 0.7]
    assert result["personal_accuracy_after_local"]["mean"] == pytest.approx(0.6)
    assert result["personal_accuracy"] == result["personal_accuracy_after_mixing"]
    assert result["personal_accuracy"]["worst_decile"] == pytest.approx(0.7)
    assert (result["bytes_sent_per_peer"], result["bytes_sent_busiest"]) == (200.0, 900.0)
    assert result["gradient_steps_per_peer"] == {"mean": 20.0, "min": 10.0, "max": 30.0}
    assert result["samples_seen_per_peer"] == {"mean": 200.0, "min": 100.0, "max": 300.0}
    assert (result["rounds"], result["seconds"], result["seconds_per_round"]) == (4, 3.0, 0.75)
    assert (result["swarm"]["bytes_in"], result["swarm"]["bytes_out"]) == (21, 1300)
    nobody = swarm_result(experiment, [{"failed": True}] * 4, "synchronous", 9.0, None)
    assert (
        nobody["personal_accuracy"] is nobody["bytes_sent_per_peer"] is nobody["bytes_sent_busiest"] is None
    )
    assert nobody.keys() == result.keys()


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_no_process_outlives_the_swarm(how: signal.Signals, folder: Path) -> None:
    temporary = folder / "tmp"
    with started(temporary, "--rounds", "100000", "--quiet") as process:
        until(lambda: [*temporary.glob("*/peer-2/state/monitor.json")], "all peers run")
        assert len(peers_of(temporary)) == 3
        process.send_signal(how)
        _, err = process.communicate(timeout=PATIENCE)
        until(lambda: not peers_of(temporary), "the end of all peers")
    if how is not signal.SIGKILL:
        assert (process.returncode, err) == (130, "interrupted\n")
        assert list(temporary.glob("coterie-*")) == []


def test_a_peer_that_dies_says_why(folder: Path) -> None:
    (folder / "alice").mkdir()
    process = Process(folder / "alice")
    try:
        until(lambda: process.died, "its end")
        assert (process.code, process.state, process.result()) == (2, "died", None)
        assert process.last_lines() == [f"error: {folder}/alice is not a peer's folder: it has no peer.toml"]
    finally:
        end_all([process])


def test_folders_of_peers_that_trust_each_other(folder: Path) -> None:
    names = ["peer-0", "peer-1", "hub"]
    made = make_folders(folder, {"algorithm": "fedavg", "peers": 2}, names, "free")
    assert [load_settings(path).number for path in made] == [0, 1, 2]
    assert len({load_settings(path).listen for path in made}) == 3
    for path in made:
        settings = load_settings(path)
        assert (settings.mode, settings.experiment) == ("free", str(folder / "experiment.toml"))
        assert set(Roster.load(path).members) == set(names) - {path.name}
        assert (path / "identity.pem").stat().st_mode & 0o077 == 0


def test_free_ports_differ() -> None:
    assert len(set(free_ports(50))) == 50


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--peers", "1"], "a swarm needs at least 2 peers"),
        (["--algorithm", "fedavg", "--mode", "free"], "'fedavg' needs rounds in step"),
        (["--algorithm", "kin", "--mode", "free"], "so that it seals nothing: coterie explain kin"),
        (["--algorithm", "d-psdg"], "d-psdg"),
        (["--dir", "full"], "full exists already and is not empty"),
        (["--set", "models.mlr=0"], "one architecture"),
    ],
)
def test_mistakes_are_found_before_anything_starts(
    coterie: Command, folder: Path, arguments: list[str], message: str
) -> None:
    (folder / "full").mkdir()
    (folder / "full" / "file").touch()
    done = coterie("swarm", *arguments)
    assert done.exit_code == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
