"""Python leaves the report that the command leaves, wherever it keeps records."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import coterie

SMALL: dict[str, Any] = {"model": "mlr", "partition": "iid", "topology": "full", "peers": 3, "rounds": 2}


def held(folder: Path) -> dict[str, Any]:
    """What a report holds."""
    page = (folder / "report.html").read_text(encoding="utf-8")
    block = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    assert block is not None
    found: dict[str, Any] = json.loads(block[1])
    return found


def test_a_run(tmp_path: Path) -> None:
    run = coterie.simulate("d-psgd", **SMALL, run_dir=tmp_path / "one")
    found = held(tmp_path / "one")
    assert found["start"] == {"view": "run", "id": "one"}
    shown = found["data"]["/api/run?id=one"]["curve"]["mean"][-1]
    assert shown == pytest.approx(float(run.personal_accuracy.mean()), abs=1e-6)


def test_a_run_that_goes_on_has_its_report_at_the_end(tmp_path: Path) -> None:
    def stop(record: Any, history: Any) -> bool:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        coterie.simulate("d-psgd", **SMALL, run_dir=tmp_path / "one", observer=stop)
    assert not (tmp_path / "one" / "report.html").exists()
    coterie.simulate(resume_from=tmp_path / "one")
    assert held(tmp_path / "one")["data"]["/api/run?id=one"]["rounds"] == {"done": 2, "planned": 2}


def test_a_comparison(tmp_path: Path) -> None:
    done = coterie.compare(["d-psgd"], **SMALL, run_dir=tmp_path / "both")
    found = held(tmp_path / "both")["data"]["/api/compare?ids="]
    means = {group["label"]: group["row"]["mean"] for group in found["groups"]}
    assert set(means) == {"local", "d-psgd"}
    for label, mean in means.items():
        assert mean == pytest.approx(float(done.runs[label][0].personal_accuracy.mean()), abs=1e-6)


def test_a_sweep(tmp_path: Path) -> None:
    coterie.sweep({"training.lr": [0.01, 0.1]}, "d-psgd", **SMALL, out=tmp_path / "s")
    found = held(tmp_path / "s")["data"]["/api/compare?ids="]
    assert [group["label"] for group in found["groups"]] == ["d-psgd (lr 0.1)", "d-psgd (lr 0.01)"]
