"""`coterie peer run` and `coterie peer status`: real processes, stopped, started again and looked at."""

from __future__ import annotations

import io
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from real_peers import SLOW_MODEL, Swarm, experiment, same_as_simulated
from rich.console import Console

from coterie.cli.peer.display import Display, headline, neighbours
from coterie.cli.peer.run import failed_sums
from coterie.peer.exchange.committed import committed_rounds
from coterie.peer.exchange.metrics import Metrics
from coterie.peer.watch.standing import Neighbour, Standing

Command = Callable[..., Any]


def slow_swarm(folder: Path, **changes: Any) -> Swarm:
    """Two peers whose rounds take a moment each."""
    (folder / "slow.py").write_text(SLOW_MODEL.format(seconds=0.02))
    return Swarm(folder, experiment(peers=2, model=f"{folder / 'slow.py'}:Slow", **changes))


def test_stopped_in_the_middle_and_started_again_gives_the_same_numbers(
    coterie: Command, folder: Path
) -> None:
    table_rounds = 6
    with slow_swarm(folder, rounds=table_rounds) as swarm:
        swarm.start()
        swarm.until(lambda: min(swarm.rounds()) >= 2, "two rounds")
        swarm.signal(0, signal.SIGINT)
        swarm.signal(1, signal.SIGTERM)
        for number in (0, 1):
            swarm.processes[number].wait(20)
            assert swarm.processes[number].code() == 130, swarm.log(number)
            assert f"interrupted; go on with: coterie peer run --dir {swarm.place(number)}" in swarm.log(
                number
            )
            assert not (swarm.place(number) / "state" / "monitor.json").exists()
            assert "Traceback" not in swarm.log(number)
        assert max(swarm.rounds()) < table_rounds
        swarm.start()
        swarm.finish()
        assert "peer-0 goes on after round" in swarm.log(0)
        same_as_simulated(swarm.experiment, swarm.peers(), swarm)
        again = coterie("peer", "run", "--dir", str(swarm.place(0)), "--json")
        assert again.exit_code == 0, again.stderr
        assert again.stderr == f"peer-0 has finished its {table_rounds} rounds already\n"
        assert json.loads(again.stdout)["accuracy"] == swarm.records(0)[-1]["accuracy"]
        assert json.loads(again.stdout)["alone"] == 0
        assert coterie("peer", "status", "--dir", str(swarm.place(0))).exit_code == 0, "it has finished"


def test_status_of_a_running_peer_which_cannot_run_twice(coterie: Command, folder: Path) -> None:
    with slow_swarm(folder, rounds=400) as swarm:
        home = str(swarm.place(1))
        swarm.start()
        swarm.until(lambda: min(swarm.rounds()) >= 1, "a round")
        done = coterie("peer", "status", "--dir", home, "--json")
        assert done.exit_code == 0, done.stderr
        status = json.loads(done.stdout)
        assert status["running"]
        assert (status["name"], status["rounds"], status["finished"]) == ("peer-1", 400, False)
        assert [(one["name"], one["alive"]) for one in status["neighbours"]] == [("peer-0", True)]
        assert status["neighbours"][0]["weight"] == 1
        assert status["neighbours"][0]["bytes_in"] > 0
        text = coterie("peer", "status", "--dir", home).stdout
        assert text.startswith("peer-1: round ")
        assert "peer-0  yes" in text

        again = coterie("peer", "run", "--dir", home)
        assert again.exit_code == 1
        assert again.stderr.startswith("error: peer-1 is running already")
        swarm.kill(1)  # leaves monitor.json behind
        stored = coterie("peer", "status", "--dir", home)
        assert stored.exit_code == 1, "it is down before its end"
        assert stored.stdout.startswith("peer-1 does not run; on disk:\n")
        assert f"{swarm.round(1)} of 400 rounds are finished, accuracy after local" in stored.stdout


def test_a_round_shows_its_own_scores_or_none(capsys: pytest.CaptureFixture[str]) -> None:
    """What was measured some rounds ago is not today's."""
    standing = Standing(
        name="a",
        number=0,
        round=3,
        rounds=9,
        joined=True,
        finished=False,
        in_step=True,
        uptime=1.0,
        seconds_per_round=None,
        scores={"after_mixing": 0.5},
        bytes_in=0,
        bytes_out=0,
    )
    display = Display()
    display.round(1, standing, 0.25, {"after_mixing": 0.5})
    display.round(2, standing, 0.25, {})
    assert capsys.readouterr().err.splitlines() == [
        "round 2/9: accuracy after mixing 0.500, 0 of 0 others alive, 0.25 s",
        "round 3/9: accuracy -, 0 of 0 others alive, 0.25 s",
    ]


def test_mistakes_are_told_in_a_line(coterie: Command, folder: Path) -> None:
    (folder / "empty").mkdir()
    for command in ("run", "status"):
        nothing = coterie("peer", command, "--dir", "empty")
        assert nothing.exit_code == 2
        assert nothing.stderr == "error: empty is not a peer's folder: it has no peer.toml\n"
    assert coterie("peer", "init", "alice").exit_code == 0
    alone = coterie("peer", "run", "--dir", "alice")
    assert alone.exit_code == 2
    assert "the roster is empty" in alone.stderr
    file = folder / "alice" / "experiment.toml"
    file.write_text(file.read_text().replace("d-psgd", "d-psdg"))
    typo = coterie("peer", "run", "--dir", "alice")
    assert typo.exit_code == 2
    assert "d-psdg" in typo.stderr
    assert len(typo.stderr.splitlines()) == 1
    settings = folder / "alice" / "peer.toml"
    settings.write_text(settings.read_text().replace("number = 0", "number = 7"))
    file.write_text(file.read_text().replace("d-psdg", "d-psgd"))
    assert "number 7 is not in this experiment" in coterie("peer", "run", "--dir", "alice").stderr


def test_rounds_of_a_checkpoint_without_pytorch(tmp_path: Path) -> None:
    assert committed_rounds(tmp_path / "checkpoint.safetensors") == 0
    (tmp_path / "checkpoint.safetensors").write_bytes(os.urandom(100))
    with pytest.raises(Exception, match="not a readable checkpoint"):
        committed_rounds(tmp_path / "checkpoint.safetensors")


# --- what is shown -------------------------------------------------------------------------------


def some_standing(**changes: Any) -> Standing:
    bob = Neighbour(
        name="bob",
        number=1,
        alive=True,
        finished=False,
        round=3,
        bytes_in=2_000_000,
        bytes_out=1000,
        weight=0.25,
        staleness=2,
        missing=0,
        trouble="",
    )
    carol = bob.model_copy(
        update={
            "name": "carol",
            "alive": False,
            "round": -1,
            "weight": None,
            "trouble": "connection [refused]",
        }
    )
    values = {
        "name": "alice",
        "number": 0,
        "round": 3,
        "rounds": 20,
        "joined": True,
        "finished": False,
        "in_step": True,
        "uptime": 9.0,
        "seconds_per_round": 0.5,
        "scores": {"after_local": 0.9, "after_mixing": 0.8},
        "bytes_in": 0,
        "bytes_out": 0,
        "neighbours": (bob, carol),
    }
    return Standing.model_validate({**values, **changes})


def drawn(standing: Standing) -> list[str]:
    console = Console(width=100, file=io.StringIO())
    console.print(neighbours(standing))
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined]


def test_the_headline_says_what_matters_now() -> None:
    learning = "alice: round 3 of 20, accuracy after local 0.900, after mixing 0.800, 0.50 s/round, left 8 s"
    assert headline(some_standing()) == learning
    waiting = some_standing(joined=False, round=0, scores={}, seconds_per_round=None)
    assert headline(waiting) == "alice: round 0 of 20, waiting for the others, 1 of 2 are there"
    assert headline(some_standing(finished=True)).endswith("finished")


def test_the_table_has_a_row_for_each_neighbour() -> None:
    header, bob, carol = drawn(some_standing())
    assert header.split() == ["name", "alive", "round", "received", "sent", "weight", "trouble"]
    assert bob.split() == ["bob", "yes", "4", "2", "MB", "1", "kB", "0.250"]
    assert carol.split() == ["carol", "no", "-", "2", "MB", "1", "kB", "-", "connection", "[refused]"]
    assert "staleness" in drawn(some_standing(in_step=False))[0]


@pytest.mark.parametrize(
    ("opened", "failed", "implausible", "said"),
    [
        (0, 0, 0, ""),
        (20, 0, 0, ""),
        (18, 2, 0, "sealed sums 18 of 20"),
        (0, 20, 0, "sealed sums 0 of 20; this peer learned nothing from the others: its log says why"),
        (5, 0, 5, "sealed sums 0 of 5; this peer learned nothing from the others: its log says why"),
    ],
)
def test_sealed_sums_that_failed_are_said_at_the_end(
    opened: int, failed: int, implausible: int, said: str
) -> None:
    metrics = Metrics(sealed_sums=opened, sealed_failures=failed, sealed_implausible=implausible)
    assert failed_sums(metrics) == said
