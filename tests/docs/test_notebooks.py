"""Notebooks of examples/ are well formed, are run for the site, and print what their sentences say."""

from __future__ import annotations

import json
import re
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    monkeypatch.syspath_prepend(ROOT / "docs" / "making")
    yield runpy.run_path(str(ROOT / "docs" / "making" / "notebook_pages.py"))
    sys.modules.pop("example_pages", None)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_they_are_notebooks_without_output(path: Path) -> None:
    """By the format of version 4.5; output would grow stale, and is made when the site is built."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert notebook["metadata"]["kernelspec"]["name"] == "python3"
    cells = notebook["cells"]
    assert len({cell["id"] for cell in cells}) == len(cells)
    assert {cell["cell_type"] for cell in cells} == {"markdown", "code"}
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
    assert not [cell for cell in code if re.search(r"^[%!]", "".join(cell["source"]), re.MULTILINE)]


def test_the_tour_shows_what_it_says(pages: dict[str, Any]) -> None:
    cells = list(pages["run"](ROOT / "examples" / "tour.ipynb"))
    assert sum(len(cell.pictures) for cell in cells) == 4
    alone, cost = (next(c.printed for c in cells if word in c.printed) for word in ("worst peer", "sent per"))
    mean = {line.split()[0]: float(line.split()[2]) for line in alone.splitlines()}
    assert mean["gossip-fedavg"] < mean["local"] < mean["kin"] < mean["oracle"]
    sent = {line.split()[0]: float(line.split()[4]) for line in cost.splitlines()}
    assert 0 == sent["local"] < sent["kin"] < sent["gossip-fedavg"]
    (chosen,) = (cell.printed for cell in cells if "own cluster" in cell.printed)
    share = {line.split()[0]: int(line.split()[2]) for line in chosen.splitlines()}
    assert share["oracle"] == 100
    assert share["kin"] > 90 > share["gossip-fedavg"]


def test_cells_share_names_and_the_first_that_fails_ends_it(pages: dict[str, Any], tmp_path: Path) -> None:
    texts = ["x = 1", "print(x)", "raise ValueError('no')", "print('never')"]
    cells = [{"cell_type": "code", "source": [text]} for text in texts]
    (tmp_path / "bad.ipynb").write_text(json.dumps({"cells": cells}))
    done = []
    with pytest.raises(ValueError, match="no"):
        done.extend(pages["run"](tmp_path / "bad.ipynb"))
    assert [cell.printed for cell in done] == ["", "1\n"]
