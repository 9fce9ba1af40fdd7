"""Sweeps and reproductions: found with their runs, compared, and with a report in their folder."""

from __future__ import annotations

import contextlib
import csv
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from coterie.cli import app
from coterie.errors import RunFolderError
from coterie.reporting.numbers.folders import OfFolder
from coterie.reporting.page.found import FoundRuns
from coterie.reporting.page.report import content_of

SMALL = ["--peers", "4", "--rounds", "2", "--model", "mlr", "--partition", "rotations(2)", "--quiet"]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep over two learning rates with Local, and a reproduction."""
    root = tmp_path_factory.mktemp("plans")
    over = ["--over", "algorithm=local,d-psgd", "--over", "training.lr=0.01,0.5", "--jobs", "1"]
    swept = CliRunner().invoke(app, ["sweep", *over, *SMALL, "--out", str(root / "swept")])
    assert swept.exit_code == 0, swept.output
    again = ["reproduce", "kin/table-2", "--out", str(root / "again"), "--quiet", "--no-plots", "--jobs", "1"]
    made = CliRunner().invoke(app, again)
    assert made.exit_code == 0, made.output
    return root


def test_a_sweep_measures_each_setting_against_local_with_that_setting(root: Path) -> None:
    found = FoundRuns(root)
    found.look()
    runs = [OfFolder(path) for path in (root / "swept" / "cells").glob("*-s0-*")]
    means = {(run.algorithm, run.config["training"]["lr"]): float(run.reported.mean()) for run in runs}
    groups = {group["label"]: group["row"] for group in found.compare(["swept"])["groups"]}
    for rate in (0.01, 0.5):
        gain = means["d-psgd", rate] - means["local", rate]
        assert groups[f"d-psgd (lr {rate})"]["gain"] == pytest.approx(gain, abs=1e-6)
        assert groups[f"local (lr {rate})"]["gain"] is None


def test_a_reproduction_shows_its_tables_and_its_runs(root: Path) -> None:
    found = FoundRuns(root)
    found.look()
    name = "again/kin/table-2/smoke"
    view = found.compare([name])
    with open(root / name / "cells.csv", newline="") as file:
        cells = list(csv.DictReader(file))
    result = json.loads((root / name / "results.json").read_text())
    rows = result["rows"]
    assert {group["label"] for group in view["groups"]} == {rows[cell["row"]] for cell in cells}
    assert sorted(id for group in view["groups"] for id in group["ids"]) == sorted(
        f"again/cells/{cell['folder']}" for cell in cells
    )
    claims, table = view["tables"][:2]
    assert [says for says, *_ in claims["rows"]] == [one["says"].rstrip(".") for one in result["claims"]]
    assert [status for _, status, _ in claims["rows"]] == [one["status"] for one in result["claims"]]
    told = dict(table["rows"])
    for cell in cells:
        assert told[rows[cell["row"]]].startswith(f"{float(cell['personal-after-mixing']):.1f}")
    assert view["words"][0].startswith(f"Of {len(result['claims'])} claim")


@pytest.mark.parametrize("name", ["swept", "again/kin/table-2/smoke"])
def test_their_folders_have_a_report(name: str, root: Path) -> None:
    text = (root / name / "report.html").read_text()
    assert len(text) < 500_000
    assert "http://" not in text.replace("http://www.w3.org/", "")
    start, data = content_of([root / name])
    assert start == {"view": "compare"}
    assert data["/api/compare?ids="]["words"]
    assert any(address.startswith("/api/links?") for address in data)


def test_what_reproductions_leave_may_be_damaged(root: Path, tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "a" / "b"
    folder.mkdir(parents=True)
    (tmp_path / "runs" / "cells").mkdir()
    source = root / "again" / "kin" / "table-2" / "smoke"
    rng = np.random.default_rng(0)
    for name in ("results.json", "cells.csv"):
        for other in ("results.json", "cells.csv"):
            (folder / other).write_bytes((source / other).read_bytes())
        content = (source / name).read_bytes()
        for _ in range(20):
            damaged = bytearray(content[: rng.integers(len(content))])
            for place in rng.integers(0, max(1, len(damaged)), 3):
                damaged[place : place + 1] = rng.bytes(1)
            (folder / name).write_bytes(damaged)
            found = FoundRuns(tmp_path / "runs")
            found.look()
            (row,) = found.table()["runs"]
            assert row["kind"] == "reproduction"
            with contextlib.suppress(RunFolderError):  # and nothing else
                found.compare(["a/b"])


def test_figures_for_print(root: Path, tmp_path: Path) -> None:
    """PNG of 300 dots per inch, and SVG whose text is text."""
    swept = root / "swept" / "cells"
    chosen = [path for path in swept.glob("*-s0-*") if OfFolder(path).config["training"]["lr"] == 0.5]
    command = [
        "report",
        *map(str, chosen),
        "--out",
        str(tmp_path / "r.html"),
        "--figures",
        str(tmp_path / "f"),
    ]
    made = CliRunner().invoke(app, command)
    assert made.exit_code == 0, made.output
    names = {path.name for path in (tmp_path / "f").iterdir()}
    stems = ("learning_curves", "per_peer_accuracy", "who_learned_from_whom")
    assert names == {f"{stem}.{kind}" for stem in stems for kind in ("png", "svg")}
    with Image.open(tmp_path / "f" / "learning_curves.png") as image:
        assert image.info["dpi"] == pytest.approx((300, 300), abs=0.1)
    assert "d-psgd</text>" in (tmp_path / "f" / "learning_curves.svg").read_text()


def test_what_cannot_stand_side_by_side_is_not_drawn(root: Path, tmp_path: Path) -> None:
    command = [
        "report",
        str(root / "swept"),
        "--out",
        str(tmp_path / "r.html"),
        "--figures",
        str(tmp_path / "f"),
    ]
    made = CliRunner().invoke(app, command)
    assert made.exit_code == 2
    assert "several runs of Local" in made.output
    assert not (tmp_path / "f").exists()
