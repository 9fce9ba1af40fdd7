"""`coterie peer rollback`: what is kept, the way back, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from real_peers import Swarm, experiment

from coterie.experiments.real_peers.peer_records import Records
from coterie.peer.exchange.committed import committed_rounds
from coterie.peer.watch.monitoring import running

Command = Callable[..., Any]


def test_back_to_a_round_and_on_again(coterie: Command, folder: Path) -> None:
    with Swarm(folder, experiment(peers=2, rounds=5), settings={"checkpoints": 2}) as swarm:
        swarm.start()
        swarm.finish()
        home = swarm.place(0)
    shown = coterie("peer", "rollback", "--dir", str(home))
    assert shown.exit_code == 0
    lines = shown.stdout.splitlines()
    assert lines[0] == "peer-0 is after round 5; kept are:"
    measured = {line["round"] + 1: line["accuracy"]["after_mixing"] for line in swarm.records(0)}
    assert [line.split(":")[0] for line in lines[1:]] == ["  after round 3", "  after round 4"]
    assert all(f"after mixing {measured[3 + n]:.3f}" in line for n, line in enumerate(lines[1:]))
    wrong = coterie("peer", "rollback", "--dir", str(home), "--to", "1")
    assert wrong.exit_code == 2
    assert "there are: 3, 4" in wrong.stderr
    with running(home / "state", "peer-0"):
        busy = coterie("peer", "rollback", "--dir", str(home), "--to", "3")
    assert busy.exit_code == 1
    assert "is running already" in busy.stderr
    back = coterie("peer", "rollback", "--dir", str(home), "--to", "3")
    assert back.exit_code == 0, back.stderr
    assert back.stdout == f"peer-0 is back after round 3; go on with: coterie peer run --dir {home}\n"
    assert committed_rounds(home / "state" / "checkpoint.safetensors") == 3


def test_records_that_are_nested_or_cut_off_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    good = {"round": 0, "accuracy": {}}
    strange = ["[" * 100_000, "7", '{"seconds": 1}', '{"round": 1, "acc', "\x00"]
    path.write_text("\n".join([json.dumps(good), *strange]))
    assert Records(path).read() == [good]
