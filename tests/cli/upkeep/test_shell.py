"""What shells and scripts rely on: completion, logs as JSON, no colours in pipes, exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coterie import catalogue, cli
from coterie.cli import completing

Command = Callable[..., Any]
PAGE = Path(__file__).parents[3] / "docs" / "commands.md"


def offered(*words: str, shell: str = "bash") -> list[str]:
    """What a shell is told after these words, the last of which is being typed."""
    told = {
        "_COTERIE_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": " ".join(["coterie", *words]),
        "COMP_CWORD": str(len(words)),
    }
    command = [sys.executable, "-c", "from coterie.cli import main; main()"]
    done = subprocess.run(command, env={**os.environ, **told}, capture_output=True, text=True, check=False)
    return done.stdout.splitlines()


def test_commands_algorithms_and_runs_are_completed(folder: Path) -> None:
    (folder / "runs" / "first").mkdir(parents=True)
    assert offered("do") == ["doctor"]
    assert offered("run", "--algorithm", "dfedp") == ["dfedpgp"]
    assert offered("compare", "--algorithms", "kin,dfedp") == ["kin,dfedpgp"]
    assert offered("run", "--resume", "ru") == ["runs/first"]
    assert offered("runs", "clean", "runs/f") == ["runs/first"]
    assert offered("report", "ru") == ["runs/first"]
    assert offered("run", "--no-p") == ["--no-plots"]


@pytest.mark.parametrize("kind", ["algorithms", "sources", "models", "partitions", "tasks", "topologies"])
def test_every_name_is_offered(kind: str) -> None:
    names = list(getattr(catalogue, kind))
    assert completing.names_of(kind)("") == names
    assert set(names) <= set(completing.explained(""))


def test_completing_needs_no_pytorch() -> None:
    code = (
        "import sys, coterie.cli.running.compare, coterie.cli.upkeep.runs; assert 'torch' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_logs_as_json_have_a_line_for_each_note_and_round(coterie: Command, small: list[str]) -> None:
    done = coterie("--log-json", "run", *small, "--algorithm", "d-psgd", "--topology", "edges(none.txt)")
    assert done.exit_code == 2
    (line,) = done.stderr.splitlines()
    assert json.loads(line)["level"] == "error"
    assert "none.txt" in json.loads(line)["message"]
    done = coterie("--log-json", "run", *small, "--json", "--no-plots")
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    rounds = [line for line in lines if line.get("event") == "round"]
    assert [(line["round"], line["rounds"], line["label"]) for line in rounds] == [
        (1, 2, "local"),
        (2, 2, "local"),
    ]
    mean = json.loads(done.stdout)["personal_accuracy"]["mean"]
    assert rounds[-1]["accuracy"] == pytest.approx(mean, abs=1e-6)
    assert lines[-1]["message"].startswith("records: ")
    behind = coterie("run", *small, "--json", "--no-plots", "--log-json").stderr
    assert json.loads(behind.splitlines()[0])["event"] == "round"  # it may stand anywhere
    plain = coterie("run", *small, "--no-plots").stderr
    assert plain.startswith("local: round 1/2")  # the next command is as ever


@pytest.mark.parametrize(
    "wrong", [["run", "--peers", "many"], ["run", "--bogus"], ["nosuch"]], ids=lambda wrong: wrong[-1]
)
def test_a_mistake_in_usage_is_json_too(coterie: Command, wrong: list[str]) -> None:
    done = coterie("--log-json", *wrong)
    assert done.exit_code == 2
    (line,) = done.stderr.splitlines()
    assert json.loads(line)["level"] == "error"
    assert wrong[-1].strip("-") in json.loads(line)["message"] or "integer" in json.loads(line)["message"]
    assert not coterie(*wrong).stderr.startswith("{")  # the next command is as ever


def test_nothing_is_coloured_in_a_pipe(
    process: Command, small: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    command = [sys.executable, "-m", "coterie", "run", *small, "--no-plots"]
    done = subprocess.run(command, capture_output=True, check=False)
    assert done.returncode == 0
    assert b"\x1b" not in done.stdout + done.stderr


def test_the_page_has_every_command() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for name in [*cli.COMMANDS, "data show", "peer", "ca", "runs", "runs clean"]:
        assert f"`coterie {name}`" in page, name


def test_the_page_shows_what_commands_print(coterie: Command) -> None:
    import documents

    commands = [shown for block in documents.blocks(PAGE) for shown in documents.commands(block)]
    assert len(commands) == 4
    for shown in commands:
        done = coterie(*shown.arguments[1:])
        assert done.exit_code == 0
        assert shown.missing_from(done.output) == []


INTERRUPTED_AT = """
import sys

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == {name!r}:
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupting())
sys.argv = ["coterie", "doctor"]
from coterie.__main__ import main
main()
"""


@pytest.mark.parametrize("name", ["typer", "coterie.cli.problems", "coterie.cli.upkeep.doctor"])
def test_an_interruption_while_commands_are_loaded_is_said_in_a_word(name: str) -> None:
    """Before there is a command line, while it is put together, and when a command's module is loaded."""
    code = INTERRUPTED_AT.format(name=name)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


def test_an_interruption_while_the_commands_are_put_together() -> None:
    code = "import typer\ndef stop(*_): raise KeyboardInterrupt\ntyper.main.get_group = stop\n"
    code += "from coterie.__main__ import main\nmain()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "interrupted\n")
