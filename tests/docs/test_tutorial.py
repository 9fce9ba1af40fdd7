"""docs/tutorial.md is carried out as it stands, in its order, and what comes out bears its sentences."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path

import documents
import pytest
from typer.testing import CliRunner

from coterie.cli import app

PAGE = Path(__file__).parents[2] / "docs" / "tutorial.md"


def test_the_tutorial_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    printed: list[str] = []
    for block in documents.blocks(PAGE):
        if block.kind == "text":
            assert re.sub(r"\d+", "0", block.text) == re.sub(r"\d+", "0", printed[-1])
        elif block.file:
            Path(block.file).write_text(block.text)
        elif block.kind == "python":
            exec(compile(block.text, PAGE.name, "exec"), names)
            printed.append(capsys.readouterr().out)
        for shown in documents.commands(block):
            carry_out(shown)
    accuracy = means("runs/wards")
    assert accuracy["d-psgd"] < accuracy["local"] < accuracy["kin"]
    taken = json.loads(printed[0])
    assert sum(taken[:4]) <= 5  # of the other group
    assert min(taken[4], taken[6], taken[7]) >= 10
    shown = dict(re.findall(r"^(local|d-psgd|kin) +(\d+\.\d)±", PAGE.read_text(), re.MULTILINE))
    assert {name: round(100 * value, 1) for name, value in accuracy.items()} == pytest.approx(
        {name: float(value) for name, value in shown.items()}, abs=2
    )
    assert Path("model-of-ward-5", "model.safetensors").is_file()


def carry_out(shown: documents.Shown) -> None:
    program, *arguments = shown.arguments
    if program == "python":
        runpy.run_path(arguments[0], run_name="__main__")
        return
    quicker = {"sweep": ["--jobs", "1"]}.get(arguments[0], [])
    done = CliRunner().invoke(app, [*arguments, *quicker], prog_name="coterie")
    assert done.exit_code == 0, done.output
    assert shown.missing_from(done.output) == []


def means(folder: str) -> dict[str, float]:
    found: dict[str, list[float]] = {}
    for path in Path(folder).glob("*/result.json"):
        result = json.loads(path.read_text())
        found.setdefault(result["algorithm"], []).append(result["personal_accuracy"]["mean"])
    return {name: sum(values) / len(values) for name, values in found.items()}
