"""The section Files of docs/own-data.md is carried out: its files, and commands that print what it shows."""

from __future__ import annotations

from pathlib import Path

import documents
import pytest
from typer.testing import CliRunner

from coterie.cli import app

PAGE = Path(__file__).parents[2] / "docs" / "own-data.md"


def test_the_section_files_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "page.md").write_text("##" + PAGE.read_text(encoding="utf-8").split("\n## Files", 1)[1])
    ran = []
    for block in documents.blocks(tmp_path / "page.md"):
        commands = documents.commands(block)
        if block.kind == "python" and "wards" in block.text:
            exec(compile(block.text, "own-data.md", "exec"), {})
        for shown in commands:
            command, *options = shown.arguments[1:]
            done = CliRunner().invoke(app, [command, *options])
            assert done.exit_code == 0, done.output
            assert shown.missing_from(done.output) == []
            ran.append(command)
    assert ran == ["data", "compare"]
