"""Runs in other programs: what the real packages wrote to disk is what the run says."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import coterie
from coterie.errors import ConfigError
from coterie.experiments.runs.records import History
from coterie.experiments.runs.tracking import Tracker

SMALL = {"partition": "rotations(2)", "topology": "ring", "peers": 4, "rounds": 3, "model": "mlr"}


class Kept(Tracker):
    """A tracker in ten lines."""

    def __init__(self) -> None:
        self.said: list[object] = []

    def open(self, name: str, settings: dict[str, object]) -> None:
        self.said.append((name, settings["training.lr"], settings["peers"]))

    def log(self, round: int, numbers: dict[str, float]) -> None:
        self.said.append((round, numbers))

    def close(self, finished: bool = False) -> None:
        self.said.append(finished)


def expected(run: coterie.Run) -> dict[str, list[float]]:
    frame = run.frame("rounds", "pandas")
    return {name: frame[name].tolist() for name in frame.columns if name != "round"}


def test_a_tracker_hears_what_the_frame_of_rounds_has() -> None:
    kept = Kept()
    run = coterie.simulate("d-psgd", **SMALL, observer=kept, training={"lr": 0.25})  # type: ignore[arg-type]
    _, start, *rounds, end = kept.said
    assert start == ("d-psgd-digits-s0", 0.25, 4)
    assert end is True
    for place, (round, numbers) in enumerate(rounds):  # type: ignore[misc]
        assert round == place + 1
        assert numbers == {name: pytest.approx(values[place]) for name, values in expected(run).items()}


def test_a_run_that_goes_on_is_told_from_its_first_round(tmp_path: Path) -> None:
    class Cut(coterie.Observer):
        def round(self, record: object, history: History) -> None:
            if len(history.seconds) == 2:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        coterie.simulate("d-psgd", **SMALL, run_dir=tmp_path / "run", observer=Cut())  # type: ignore[arg-type]
    kept = Kept()
    coterie.simulate(resume_from=tmp_path / "run", observer=kept)
    assert [entry[0] for entry in kept.said if isinstance(entry, tuple)][1:] == [1, 2, 3]


def test_tensorboard_reads_the_scalars(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    tracker = coterie.track("tensorboard", tmp_path, "mine")
    run = coterie.simulate("d-psgd", **SMALL, observer=tracker)  # type: ignore[arg-type]
    found = EventAccumulator(str(tmp_path / "mine")).Reload()
    assert set(found.Tags()["scalars"]) == set(expected(run))
    for name, values in expected(run).items():
        events = found.Scalars(name)
        assert [event.step for event in events] == [1, 2, 3]
        assert [event.value for event in events] == pytest.approx(values, rel=1e-6)


PROGRAM = """
import coterie, json, sys
small = dict(partition="rotations(2)", topology="ring", peers=4, rounds=3, model="mlr")
run = coterie.simulate("d-psgd", **small, observer=coterie.track(sys.argv[1], sys.argv[2]))
frame = run.frame("rounds", "pandas")
print(json.dumps({name: frame[name].tolist() for name in frame.columns}))
"""


def in_a_process(name: str, folder: Path) -> dict[str, list[float]]:
    """Both packages start threads or services that outlive a test."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HOME": str(folder)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, name, str(folder / "out")],
        capture_output=True, text=True, env=environment, cwd=folder, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


def records_in(content: bytes) -> Iterator[bytes]:
    """The records of a file of wandb: LevelDB's log format, after a head of seven bytes."""
    whole, place = b"", 7
    while place + 7 <= len(content):
        left = 32768 - place % 32768
        if left < 7:  # the rest of a block is empty
            place += left
            continue
        length, kind = struct.unpack_from("<4xHB", content, place)
        whole += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # all of it, or its end
            yield whole
            whole = b""


def test_wandb_has_the_history_offline(tmp_path: Path) -> None:
    from wandb.proto import wandb_internal_pb2

    told = in_a_process("wandb", tmp_path)
    (path,) = (tmp_path / "out" / "wandb").glob("offline-run-*/*.wandb")
    rows: list[dict[str, float]] = []
    for data in records_in(path.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "history":
            rows.append(
                {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
            )
    assert [row["_step"] for row in rows] == [1, 2, 3]
    for name in ("accuracy_after_mixing", "bytes"):
        assert [row[name] for row in rows] == pytest.approx(told[name])


@pytest.mark.slow
def test_mlflow_has_the_metrics_and_the_settings(tmp_path: Path) -> None:
    """Its database takes seconds to make."""
    told = in_a_process("mlflow", tmp_path)
    with contextlib.closing(sqlite3.connect(tmp_path / "out" / "mlflow.db")) as database:
        lines = database.execute("select key, step, value from metrics order by step").fetchall()
        params = dict(database.execute("select key, value from params").fetchall())
        runs = database.execute("select name, status from runs").fetchall()
    assert runs == [("d-psgd-digits-s0", "FINISHED")]
    assert (params["peers"], params["partition"]) == ("4", "rotations(2)")
    for name in ("accuracy_after_mixing", "bytes", "seconds"):
        assert [value for key, _, value in lines if key == name] == pytest.approx(told[name])


def test_what_is_not_there_gets_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"no tracker 'tensorbord'.*tensorboard"):
        coterie.track("tensorbord", tmp_path)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'coterie\[wandb\]'"):
        coterie.track("wandb", tmp_path)
