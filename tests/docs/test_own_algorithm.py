"""Every block of docs/own-algorithm.md is carried out, in its order."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Iterator
from pathlib import Path

import documents
import pytest
from typer.testing import CliRunner

from coterie import catalogue
from coterie.cli import app

DOCUMENT = Path(__file__).parents[2] / "docs" / "own-algorithm.md"
BLOCKS = documents.blocks(DOCUMENT)
FILES = [block for block in BLOCKS if block.file]
COMMANDS = [shown for block in BLOCKS for shown in documents.commands(block)]


QUICKER = {"run": ["--no-plots"], "compare": ["--no-plots"], "sweep": ["--jobs", "1"]}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where a reader of the page would have saved its files, and would start Python."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(catalogue.algorithms, "_factories", dict(catalogue.algorithms._factories))
    for block in FILES:
        (tmp_path / block.file).write_text(block.text)
    yield tmp_path
    sys.modules.pop("own", None)


def test_all_that_the_page_shows_is_tried() -> None:
    assert [block.file for block in FILES] == ["own.py", "experiment.toml", "test_own.py"]
    tried = [shown.arguments[1] for shown in COMMANDS]
    assert tried == ["run", "explain", "compare", "sweep", "run", "swarm"]
    assert len(BLOCKS) == len(FILES) + len(COMMANDS) + 1  # and one of Python


@pytest.mark.parametrize("shown", COMMANDS, ids=lambda shown: shown.arguments[1])
def test_commands_print_what_the_page_shows(shown: documents.Shown) -> None:
    assert shown.arguments[0] == "coterie"
    command, *options = shown.arguments[1:]
    done = CliRunner().invoke(app, [command, *options, *QUICKER.get(command, [])], prog_name="coterie")
    assert done.exit_code == 0, done.output
    assert shown.missing_from(done.output) == []


def test_the_tests_of_the_page_pass(folder: Path) -> None:
    namespace = runpy.run_path(str(folder / "test_own.py"))
    tests = [value for name, value in namespace.items() if name.startswith("test_")]
    assert len(tests) == 2
    for test in tests:
        test()


def test_the_same_from_python() -> None:
    (block,) = (block for block in BLOCKS if block.kind == "python" and not block.file)
    exec(compile(block.text, str(DOCUMENT), "exec"), {})
