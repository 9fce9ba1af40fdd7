"""Every block of own-data.md, own-model.md and tasks.md in docs is run, and prints what stands there."""

from __future__ import annotations

from pathlib import Path

import documents
import pytest

PAGES = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("page", ["own-data.md", "own-model.md", "tasks.md"])
def test_the_blocks_print_what_the_page_says(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "page"}
    printed, checked = "", 0
    for block in documents.blocks(PAGES / page):
        if block.kind == "python":
            exec(compile(block.text, page, "exec"), namespace)
            printed = capsys.readouterr().out
        elif block.kind == "text":
            assert printed == block.text
            checked += 1
    assert checked >= 3


def test_the_page_shows_what_the_example_prints() -> None:
    """Its sentences; tests/examples runs it, at a smaller scale than the page."""
    found = documents.blocks(PAGES / "own-data.md")
    commands = [command for block in found for command in documents.commands(block)]
    (shown,) = (command for command in commands if command.arguments[0] == "python")
    text = (PAGES.parent / shown.arguments[1]).read_text(encoding="utf-8")
    assert not shown.missing_from(text)
