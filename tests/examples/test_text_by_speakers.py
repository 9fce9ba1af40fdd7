"""examples/text_by_speakers.py runs, at small scale, from Python and on the command line."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import coterie
from coterie.cli import app

EXAMPLE = Path(__file__).parents[2] / "examples" / "text_by_speakers.py"


def test_it_runs_and_prints_its_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), "--peers", "4", "--rounds", "2"])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    assert [re.sub(r" +accuracy +\d+\.\d %$", "", line) for line in lines[:3]] == [
        "learning alone",
        "learning with everyone",
        "learning with those who speak alike",
    ]
    assert [line.partition(" speaker")[0] for line in lines[3:]] == [
        "a bonnet of the British",
        "a bonnet of the American",
    ]


def test_speakers_differ_where_the_example_says() -> None:
    """The same words, with another label for the ambiguous ones and for no others."""
    example = runpy.run_path(str(EXAMPLE))
    meant: list[dict[str, set[int]]] = [{}, {}]
    for number in range(40):
        for sentence, place in zip(*example["speaker"](number, 0), strict=True):
            words = {example["WORDS"][word] for word in sentence}
            (thing,) = words & {*example["THINGS"], *example["AMBIGUOUS"]}
            meant[number % 2].setdefault(thing, set()).add(place)
    assert all(len(places) == 1 for dialect in meant for places in dialect.values())
    assert {thing for thing in meant[0] if meant[0][thing] != meant[1][thing]} == {*example["AMBIGUOUS"]}


def test_those_who_speak_alike_help_each_other() -> None:
    """Twelve rounds suffice to see what the example is about."""
    example = runpy.run_path(str(EXAMPLE))
    alike = [(0, 2), (0, 4), (2, 4), (1, 3), (1, 5), (3, 5)]
    scores = {
        algorithm: coterie.simulate(
            algorithm,
            data=example["load"](6, seed=0),
            model=example["Listener"],
            topology=alike,
            rounds=12,
            training={"lr": 1.0, "batch_size": 8},
        ).personal_accuracy.mean()
        for algorithm in ("local", "d-psgd")
    }
    assert scores["d-psgd"] > scores["local"] + 0.03


def test_the_command_line_takes_its_data_and_its_network(tmp_path: Path) -> None:
    own = ["--data", f"{EXAMPLE}:load", "--model", f"{EXAMPLE}:Listener(width=8)"]
    others = ["--peers", "3", "--rounds", "2", "--topology", "ring", "--run-dir", str(tmp_path / "run")]
    done = CliRunner().invoke(app, ["run", "--algorithm", "d-psgd", *own, *others])
    assert done.exit_code == 0, done.output
