"""Runs that are killed, stopped by Ctrl-C or out of disk space, then resumed: the same records and numbers.

A helper process imports Coterie once and forks a child for each way to die. A child kills itself at an exact
moment, such as between writing a checkpoint and putting it in place.
"""

from __future__ import annotations

import contextlib
import csv
import json
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import coterie
from coterie.cli import app
from coterie.errors import DamagedRunError, RunFolderError, RunInUseError
from coterie.experiments.runs.folder import RunFolder
from coterie.experiments.setup.config import resolve

ROUNDS = 5
EXPERIMENT: dict[str, Any] = {
    "algorithm": "random-gossip(1)",
    "data": "digits",
    "model": "mlr",
    "partition": "dirichlet(0.5)",
    "topology": "ring",
    "peers": 4,
    "rounds": ROUNDS,
    "seed": 3,
    "splitting": {"samples_per_peer": 20, "validation": 0.2, "test_samples_per_peer": 10},
    "evaluation": {"every": 2, "global_samples": 20},
    "faults": {"churn": 0.2, "loss": 0.2},
    "execution": {"executor": "stacked", "workers": 1, "checkpoint_seconds": 0.0},
}

# kind, and the how-manieth call (or round) it happens at. A run makes 2 files at its start, then a checkpoint
# after each round, then its result; each of them is one replace and two fsyncs, besides the records' fsyncs.
MOMENTS: list[tuple[str, float]] = [
    ("kill before replace", 2),
    ("kill before replace", 3),
    ("kill after replace", 4),
    ("kill before replace", 5),
    ("kill before replace", 2 + ROUNDS),
    ("kill after replace", 2 + ROUNDS),
    ("kill before replace", 3 + ROUNDS),
    ("kill at fsync", 5),
    ("kill at fsync", 11),
    ("kill after round", 0),
    ("kill after round", 3),
    ("kill after seconds", 0.3),
    ("kill after seconds", 0.6),
    ("ctrl-c in round", 1),
    ("ctrl-c in round", 4),
    ("disk full after bytes", 1300),  # more than a config has
    ("disk full after bytes", 3000),
]

SCRIPT = """
    import json, os, resource, signal, sys
    import coterie
    from coterie.errors import DamagedRunError, RunFolderError
    from coterie.simulation import engine

    job = json.load(sys.stdin)
    coterie.simulate(**{**job["experiment"], "rounds": 1})  # import everything before the first fork

    def die():
        os.kill(os.getpid(), signal.SIGKILL)

    def at_call(module, name, count, before=True):
        original, calls = getattr(module, name), [0]
        def counted(*args, **more):
            calls[0] += 1
            if before and calls[0] == count:
                die()
            result = original(*args, **more)
            if not before and calls[0] == count:
                die()
            return result
        setattr(module, name, counted)

    def play(folder, kind, when):
        observer = None
        if kind == "kill before replace":
            at_call(os, "replace", when)
        elif kind == "kill after replace":
            at_call(os, "replace", when, before=False)
        elif kind == "kill at fsync":
            at_call(os, "fsync", when)
        elif kind == "kill after round":
            observer = lambda record, history: die() if record.round == when else None
        elif kind == "kill after seconds":
            signal.setitimer(signal.ITIMER_REAL, when)  # SIGALRM kills: nobody handles it
        elif kind == "ctrl-c in round":
            signal.signal(signal.SIGINT, signal.default_int_handler)
            step = engine.Simulation.step
            def interrupted(simulation, **how):
                if simulation.round == when:
                    signal.raise_signal(signal.SIGINT)
                return step(simulation, **how)
            engine.Simulation.step = interrupted
        elif kind == "disk full after bytes":
            resource.setrlimit(resource.RLIMIT_FSIZE, (when, when))
        try:
            coterie.simulate(**job["experiment"], run_dir=folder, observer=observer)
        except KeyboardInterrupt:
            return "interrupted"
        except RunFolderError as error:
            return "refused: " + str(error)
        return "finished"

    endings = []
    for number, (kind, when) in enumerate(job["moments"]):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.write(writer, play(f"{job['folder']}/{number}", kind, when).encode())
            finally:
                os._exit(0)
        os.close(writer)
        _, status = os.waitpid(child, 0)
        said = os.read(reader, 10000).decode()
        os.close(reader)
        endings.append("killed" if os.WIFSIGNALED(status) else said)
    json.dump(endings, sys.stdout)
"""


def endings(folder: Path) -> list[str]:
    """Leave one interrupted run per moment in `folder`; returns how each ended."""
    job = {"experiment": EXPERIMENT, "moments": MOMENTS, "folder": str(folder)}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SCRIPT)],
        input=json.dumps(job),
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
    )
    assert done.returncode == 0, done.stderr
    said: list[str] = json.loads(done.stdout)
    return said


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> coterie.Run:
    return coterie.simulate(**EXPERIMENT, run_dir=tmp_path_factory.mktemp("whole") / "run")


def without_seconds(path: Path) -> list[list[str]]:
    with open(path, newline="") as file:
        return [[line[0], *line[2:]] for line in csv.reader(file)]


def result(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((path / "result.json").read_text())
    return {k: v for k, v in loaded.items() if k not in ("seconds", "seconds_per_round", "run_dir")}


def assert_same_run(ours: coterie.Run, whole: coterie.Run) -> None:
    mine, theirs = ours.run_dir, whole.run_dir
    assert mine is not None
    assert theirs is not None
    for name in ("metrics.csv", "links.csv", "config.toml"):
        assert (mine / name).read_bytes() == (theirs / name).read_bytes(), name
    assert without_seconds(mine / "rounds.csv") == without_seconds(theirs / "rounds.csv")
    assert result(mine) == result(theirs)
    assert torch.equal(ours.accuracy_over_time(), whole.accuracy_over_time())
    assert ours.history.rounds == whole.history.rounds
    for name, value in whole.params.items():
        assert torch.equal(ours.params[name], value), name
    assert torch.equal(ours.graph, whole.graph)
    assert sorted(p.name for p in mine.iterdir()) == sorted(p.name for p in theirs.iterdir())


def check_ending(kind: str, ending: str, folder: Path) -> None:
    if kind == "kill after seconds":
        assert ending in ("killed", "finished")
    elif kind.startswith("kill"):
        assert ending == "killed"
    elif kind.startswith("ctrl-c"):
        assert ending == "interrupted"
        assert not list(folder.glob(".*")), "Ctrl-C must leave no temporary file"
    else:
        assert ending.startswith("refused: cannot write")
        assert "intact" in ending


def test_resumed_runs_equal_one_that_was_never_interrupted(tmp_path: Path, whole: coterie.Run) -> None:
    """One test for all moments, because starting the helper process takes longer than all of them."""
    for number, ((kind, when), ending) in enumerate(zip(MOMENTS, endings(tmp_path), strict=True)):
        folder = tmp_path / str(number)
        try:
            check_ending(kind, ending, folder)
            if not (folder / "config.toml").exists():  # killed before there was a run
                assert (kind, when) == ("kill before replace", 2) or kind == "kill after seconds"
                with pytest.raises(RunFolderError, match=r"config\.toml"):
                    coterie.simulate(resume_from=folder)
            else:
                assert_same_run(coterie.simulate(resume_from=folder), whole)
        except AssertionError as error:
            raise AssertionError(f"{kind} {when}: {ending}: {error}") from error


def test_resuming_a_finished_run_changes_nothing(whole: coterie.Run) -> None:
    assert whole.run_dir is not None
    before = {path.name: path.read_bytes() for path in whole.run_dir.iterdir()}
    again = coterie.simulate(resume_from=whole.run_dir)
    assert_same_run(again, whole)
    for name, content in before.items():
        if name != "result.json":  # its seconds are summed from rounded ones
            assert (whole.run_dir / name).read_bytes() == content, name


def _without_peer_2_in_round_1(text: bytes) -> bytes:
    return b"".join(line for line in text.splitlines(keepends=True) if not line.startswith(b"1,2,"))


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("metrics.csv", lambda text: b"garbage\n"),
        ("metrics.csv", lambda text: text[:300]),
        ("metrics.csv", lambda text: text + b"\xff"),
        ("metrics.csv", lambda text: text.replace(b"0.", b"x.", 1)),
        ("metrics.csv", _without_peer_2_in_round_1),
        ("metrics.csv", None),
        ("rounds.csv", lambda text: b"\n".join(text.splitlines()[:-1])),
        ("rounds.csv", None),
        ("checkpoint.safetensors", lambda text: text[:1000]),
    ],
)
def test_damaged_records_are_refused_and_left_alone(
    name: str, damage: Any, whole: coterie.Run, tmp_path: Path
) -> None:
    """To go on would replace a good result by one of what is left."""
    assert whole.run_dir is not None
    folder = tmp_path / "run"
    shutil.copytree(whole.run_dir, folder)
    if damage is None:
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(damage((folder / name).read_bytes()))
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(DamagedRunError, match=name):
        coterie.simulate(resume_from=folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


WRITER = """
    import json, sys
    import coterie

    def wait(record, history):
        print("round", record.round, flush=True)
        sys.stdin.readline()

    coterie.simulate(**json.loads(sys.argv[1]), run_dir=sys.argv[2], observer=wait)
"""


@contextlib.contextmanager
def another_process_writing(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A process in the middle of a run in this folder."""
    command = [sys.executable, "-c", textwrap.dedent(WRITER), json.dumps(EXPERIMENT), str(folder)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes, env={**os.environ, "PYTHONWARNINGS": "ignore"}) as writer:
        try:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "round 0\n"
            yield writer
        finally:
            writer.kill()


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_run_that_another_process_writes_is_left_alone(tmp_path: Path, whole: coterie.Run) -> None:
    folder = tmp_path / "run"
    with another_process_writing(folder) as writer:
        before = contents(folder)
        with pytest.raises(RunInUseError, match="is in use by another process"):
            coterie.simulate(resume_from=folder)
        resumed = CliRunner().invoke(app, ["run", "--resume", str(folder)], prog_name="coterie")
        assert resumed.exit_code == 2
        assert "is in use by another process" in resumed.stderr
        assert "go on with" not in resumed.stderr
        assert contents(folder) == before
        writer.communicate("\n" * ROUNDS)
    assert writer.returncode == 0
    assert result(folder) == result(whole.run_dir or folder)
    assert ".lock" not in contents(folder)


def test_the_lock_ends_with_a_killed_process(tmp_path: Path, whole: coterie.Run) -> None:
    with another_process_writing(tmp_path / "run") as writer:
        writer.kill()
        writer.wait()
        assert_same_run(coterie.simulate(resume_from=tmp_path / "run"), whole)


def test_a_folder_is_claimed_by_one_of_those_who_make_it(tmp_path: Path) -> None:
    experiment = resolve(EXPERIMENT)
    with RunFolder.create(tmp_path / "run", experiment, "stacked"), pytest.raises(RunInUseError):
        RunFolder(tmp_path / "run").claim()
    with RunFolder(tmp_path / "run").claim():
        assert ".lock" in contents(tmp_path / "run")
