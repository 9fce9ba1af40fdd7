"""The table of commands: what `coterie --help` says is what the commands say, and it is said quickly."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from coterie.cli import CA_COMMANDS, COMMANDS, DATA_COMMANDS, PEER_COMMANDS, load

Command = Callable[..., Any]
GROUPS = {(): COMMANDS, ("data",): DATA_COMMANDS, ("peer",): PEER_COMMANDS, ("ca",): CA_COMMANDS}
EVERY = [(*group, name) for group, commands in GROUPS.items() for name in commands]


@pytest.mark.parametrize("words", EVERY, ids=" ".join)
def test_a_line_in_the_list_is_the_first_line_of_the_docstring(words: tuple[str, ...]) -> None:
    home, line = GROUPS[words[:-1]][words[-1]]
    assert line == (inspect.getdoc(load(home)) or "").partition("\n")[0]


@pytest.mark.parametrize("words", EVERY, ids=" ".join)
def test_every_command_has_its_own_help(coterie: Command, words: tuple[str, ...]) -> None:
    _, line = GROUPS[words[:-1]][words[-1]]
    for option in ("--help", "-h"):
        done = coterie(*words, option)
        assert done.exit_code == 0, done.stderr
        shown = " ".join(done.stdout.split())
        assert f"Usage: coterie {' '.join(words)} " in shown
        assert line in shown


@pytest.mark.parametrize("group", GROUPS, ids=" ".join)
def test_a_group_lists_its_commands(coterie: Command, group: tuple[str, ...]) -> None:
    text = " ".join(coterie(*group, "--help").stdout.replace("│", " ").split())
    assert all(f" {name} {line}" in text for name, (_, line) in GROUPS[group].items())


def test_help_needs_neither_pytorch_nor_the_commands() -> None:
    code = f"""
import sys
from typer.testing import CliRunner
from coterie.cli import app
for arguments in [["--help"], ["--version"], ["peer", "--help"], ["unknown"], ["peer", "unknown"]]:
    CliRunner().invoke(app, arguments)
loaded = [name for name in sys.modules if name.startswith("coterie.cli.")]
assert loaded == ["coterie.cli.problems"], loaded
for words in {EVERY}:
    assert CliRunner().invoke(app, [*words, "--help"]).exit_code == 0
    slow = {{"torch", "numpy", "matplotlib"}} & set(sys.modules)
    assert not slow, (words, slow)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
